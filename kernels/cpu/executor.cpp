#include "kernels/executor.h"

#include "kernels/cpu/blas.h"
#include "kernels/distance.h"
#include "kernels/kmeans.h"
#include "kernels/workers.h"

#include <algorithm>
#include <vector>

namespace pgwarp {

namespace {

struct BorrowedRows : Dataset {
    float* rows;
    size_t count;
    uint32_t dims;
    BorrowedRows(float* r, size_t c, uint32_t d) : rows(r), count(c), dims(d) {}
};

bool nearer(const Neighbor& a, const Neighbor& b) {
    return a.distance < b.distance || (a.distance == b.distance && a.id < b.id);
}

// Tasks cut the queries, so that no two write the same result.
constexpr size_t task_queries = 64;
constexpr size_t tile_rows = 512;

void search_tile(const ExactSearch& s, const float* row_norms, size_t first_query, size_t queries,
                 size_t first_row, size_t rows, float* products) {
    const bool l2 = s.metric != Metric::inner_product;
    const int dims = static_cast<int>(s.dims);
    sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(queries),
          static_cast<int>(rows), dims, l2 ? -2.0f : -1.0f, s.queries + first_query * s.dims, dims,
          s.rows + first_row * s.dims, dims, 0.0f, products, static_cast<int>(rows));
    for (size_t q = 0; q < queries; ++q) {
        const float* query = s.queries + (first_query + q) * s.dims;
        const auto query_norm = static_cast<float>(l2 ? squared_norm(query, s.dims) : 0.0);
        Neighbor* nearest = s.nearest + (first_query + q) * s.k;
        for (size_t r = 0; r < rows; ++r) {
            float distance = products[q * rows + r];
            if (l2) distance = std::max(0.0f, distance + query_norm + row_norms[first_row + r]);
            const Neighbor found{distance, s.ids[first_row + r]};
            if (!nearer(found, nearest[s.k - 1])) continue;
            Neighbor* at = std::upper_bound(nearest, nearest + s.k - 1, found, nearer);
            std::move_backward(at, nearest + s.k - 1, nearest + s.k);
            *at = found;
        }
    }
}

class CpuExecutor final : public Executor {
  public:
    CpuExecutor(int threads, const volatile std::sig_atomic_t* interrupt,
                const volatile std::sig_atomic_t* other_interrupt)
        : workers_(threads, interrupt, other_interrupt) {}

    const char* name() const noexcept override { return "cpu"; }

    std::unique_ptr<Dataset> take(float* rows, size_t count, uint32_t dims) override {
        return std::make_unique<BorrowedRows>(rows, count, dims);
    }

    void kmeans_start(Dataset& data, uint32_t clusters, uint64_t seed, float* centroids) override {
        auto& rows = static_cast<BorrowedRows&>(data);
        pgwarp::kmeans_start(rows.rows, rows.count, rows.dims, clusters, seed, centroids);
    }

    double kmeans_step(Dataset& data, uint32_t clusters, float* centroids) override {
        auto& rows = static_cast<BorrowedRows&>(data);
        return pgwarp::kmeans_step(workers_, rows.rows, rows.count, rows.dims, clusters, centroids);
    }

    void make_residuals(Dataset& data, uint32_t clusters, const float* centroids) override {
        auto& rows = static_cast<BorrowedRows&>(data);
        std::vector<uint32_t> nearest(rows.count);
        assign_nearest(workers_, {rows.rows, rows.count, rows.dims, centroids, clusters,
                                  nearest.data(), nullptr});
        subtract_centroids(rows.rows, rows.count, rows.dims, centroids, nearest.data());
    }

    void codebook_start(Dataset& data, const QuantizerShape& shape, uint64_t seed,
                        float* codebook) override {
        auto& rows = static_cast<BorrowedRows&>(data);
        pgwarp::codebook_start(shape, rows.rows, rows.count, seed, codebook);
    }

    double codebook_step(Dataset& data, const QuantizerShape& shape, float* codebook) override {
        auto& rows = static_cast<BorrowedRows&>(data);
        return pgwarp::codebook_step(workers_, shape, rows.rows, rows.count, codebook);
    }

    void encode(const Quantizer& quantizer, const Encoding& encoding) override {
        pgwarp::encode(workers_, quantizer, encoding);
    }

    void exact_search(const ExactSearch& search) override {
        std::vector<float> norms(search.row_count);
        for (size_t r = 0; r < search.row_count; ++r)
            norms[r] = static_cast<float>(squared_norm(search.rows + r * search.dims, search.dims));
        const size_t tasks = (search.query_count + task_queries - 1) / task_queries;
        auto products = workers_.scratch(task_queries * tile_rows);
        workers_.run(tasks, [&](size_t task, int thread) {
            const size_t first = task * task_queries;
            const size_t queries = std::min(task_queries, search.query_count - first);
            for (size_t r = 0; r < search.row_count; r += tile_rows)
                search_tile(search, norms.data(), first, queries, r,
                            std::min(tile_rows, search.row_count - r), products[thread].data());
        });
    }

  private:
    Workers workers_;
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(int threads,
                                            const volatile std::sig_atomic_t* interrupt,
                                            const volatile std::sig_atomic_t* other_interrupt) {
    return std::make_unique<CpuExecutor>(threads, interrupt, other_interrupt);
}

}  // namespace pgwarp
