#include "kernels/executor.h"

#include "kernels/cpu/filter.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/row_statistics.h"
#include "kernels/distance.h"
#include "kernels/additive.h"
#include "kernels/kmeans.h"
#include "kernels/rotation.h"
#include "kernels/row_pass.h"
#include "kernels/workers.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace pgwarp {

namespace {

struct BorrowedRows : Dataset {
    float* rows;
    size_t count;
    uint32_t dims;
    size_t rotated = 0;  // rows that an interrupted rotate_rows() has done
    BorrowedRows(float* r, size_t c, uint32_t d) : rows(r), count(c), dims(d) {}
};

bool nearer(const Neighbor& a, const Neighbor& b) {
    return a.distance < b.distance || (a.distance == b.distance && a.id < b.id);
}

// Tasks split the queries, so that no two write the same result. A tile's products stay in the L2
// cache.
constexpr size_t tile_queries = 128;
constexpr size_t tile_rows = 512;
// Rows of a data set that are rotated or encoded at a time.
constexpr size_t chunk_rows = 1024;

// Exact search by a matrix product. Distances from the product are |q|^2 - 2 <q, x> + |x|^2:
// rounding errors are relative to the norms, and far from the origin they may exceed a small
// distance. So the product only rejects rows that cannot be among the nearest. The few others get
// their distance from the vectors themselves, which does not depend on the rows around.
//
// A row is certainly beyond `limit` if it is so even with the norms lowered by the largest possible
// error of all sums:  factor <q, x> + low(|x|^2) > limit - low(|q|^2).
struct Bounds {
    bool l2;
    float factor;     // of <q, x> in the distance
    float norm_part;  // of a squared norm in the distance, lowered by the error

    explicit Bounds(const ExactSearch& s)
        : l2(has_norms(s.metric)), factor(product_factor(s.metric)) {
        // A sum of d products is off by at most d/2^24 of |q||x| <= (|q|^2 + |x|^2) / 2. There are
        // four such sums: the product, the two norms and the distance that it is compared with.
        const float off = static_cast<float>(4 * s.dims + 16) * 0x1p-24f;
        norm_part = l2 ? 1 - off : -off;
    }
    // Finite, even where the norm overflows: a lower value only rejects less.
    float low(const float* vector, uint32_t dims) const {
        return norm_part *
               std::min(dot_product(vector, vector, dims), std::numeric_limits<float>::max() / 4);
    }
    float distance(const float* query, const float* row, uint32_t dims) const {
        return l2 ? squared_l2_distance(query, row, dims) : -dot_product(query, row, dims);
    }
};

void insert(Neighbor* nearest, uint32_t k, const Neighbor& found) {
    if (!nearer(found, nearest[k - 1])) return;
    Neighbor* at = std::upper_bound(nearest, nearest + k - 1, found, nearer);
    std::move_backward(at, nearest + k - 1, nearest + k);
    *at = found;
}

// `low_rows`, (rows of the tile): low() of each.
void search_tile(const ExactSearch& s, const Bounds& bounds, const float* low_rows,
                 size_t first_query, size_t queries, size_t first_row, size_t rows,
                 float* products) {
    inner_products({s.queries + first_query * s.dims, queries, s.rows + first_row * s.dims, rows,
                    s.dims, bounds.factor, products},
                   products + queries * rows);
    for (size_t q = 0; q < queries; ++q) {
        const float* query = s.queries + (first_query + q) * s.dims;
        const float low_query = bounds.low(query, s.dims);
        Neighbor* nearest = s.nearest + (first_query + q) * s.k;
        for (size_t r = 0;; ++r) {
            r = next_at_most(products + q * rows, low_rows, r, rows,
                             nearest[s.k - 1].distance - low_query);
            if (r == rows) break;
            const float* row = s.rows + (first_row + r) * s.dims;
            insert(nearest, s.k, {bounds.distance(query, row, s.dims), s.ids[first_row + r]});
        }
    }
}

class CpuExecutor final : public Executor {
  public:
    CpuExecutor(int threads, const Interrupts& interrupts) : workers_(threads, interrupts) {}

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

    KmeansSums kmeans_sums(Dataset& data, uint32_t clusters, const float* centroids) override {
        const auto& rows = static_cast<BorrowedRows&>(data);
        return pgwarp::kmeans_sums(workers_, rows.rows, rows.count, rows.dims, clusters, centroids);
    }

    void gather(Dataset& data, std::span<const uint32_t> numbers, float* out) override {
        const auto& rows = static_cast<BorrowedRows&>(data);
        for (const uint32_t number : numbers)
            out = std::copy_n(rows.rows + size_t{number} * rows.dims, rows.dims, out);
    }

    void assign(Dataset& data, uint32_t clusters, const float* centroids,
                uint32_t* nearest) override {
        const auto& rows = static_cast<BorrowedRows&>(data);
        assign_nearest(workers_,
                       {rows.rows, rows.count, rows.dims, centroids, clusters, nearest, nullptr});
    }

    void make_residuals(Dataset& data, uint32_t clusters, const float* centroids,
                        const Parents& parents) override {
        auto& rows = static_cast<BorrowedRows&>(data);
        std::vector<uint32_t> nearest(rows.count);
        assign_nearest(
            workers_,
            {rows.rows, rows.count, rows.dims, centroids, clusters, nearest.data(), nullptr},
            parents);
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

    void keep_first(Dataset& data, size_t count) override {
        auto& rows = static_cast<BorrowedRows&>(data);
        rows.count = std::min(rows.count, count);
    }

    void rotate_rows(Dataset& data, const Rotation& rotation) override;

    double variance(const FirstRows& first) override {
        const auto& rows = static_cast<BorrowedRows&>(first.rows);
        return variance_of_rows(rows.rows, first.count, rows.dims);
    }

    void principal_directions(const FirstRows& first, uint32_t to, float* matrix) override {
        const auto& rows = static_cast<BorrowedRows&>(first.rows);
        pgwarp::principal_directions(workers_, rows.rows, first.count, rows.dims, to, matrix);
    }

    void rotation_start(const FirstRows& first, const QuantizerShape& shape, uint64_t seed,
                        float* matrix, float* codebook) override {
        const auto& rows = static_cast<BorrowedRows&>(first.rows);
        pgwarp::rotation_start(workers_, shape, rows.rows, first.count, rows.dims, matrix);
        rotated_codebook_start(workers_, shape, {rows.dims, shape.dims, matrix}, rows.rows,
                               first.count, seed, codebook);
    }

    double rotation_step(const FirstRows& first, const QuantizerShape& shape, float* matrix,
                         float* codebook) override {
        const auto& rows = static_cast<BorrowedRows&>(first.rows);
        return pgwarp::rotation_step(workers_, shape, rows.rows, first.count, rows.dims, matrix,
                                     codebook);
    }

    void rotate(const Rotation& rotation, const float* rows, size_t count, float* out) override {
        pgwarp::rotate(workers_, rotation, rows, count, out);
    }

    double additive_step(Dataset& data, const AdditiveStep& step) override {
        const auto& rows = static_cast<BorrowedRows&>(data);
        return lsq_step(workers_, step, rows.rows, rows.count);
    }

    void encode_residuals(const FirstRows& residuals, const Quantizer& quantizer,
                          uint8_t* codes) override;

    double code_error(const FirstRows& first, const QuantizerShape& shape, const float* codebook,
                      const uint8_t* codes) override {
        const auto& rows = static_cast<BorrowedRows&>(first.rows);
        return error_of_codes(shape, codebook, rows.rows, first.count, codes);
    }

    void encode(const Quantizer& quantizer, const Encoding& encoding) override {
        if (quantizer.shape.additive())
            additive_.encode(workers_, quantizer, encoding);
        else
            pgwarp::encode(workers_, quantizer, encoding);
    }

    void exact_search(const ExactSearch& search) override {
        const Bounds bounds(search);
        std::vector<float> low_rows(search.row_count);
        workers_.run((search.row_count + tile_rows - 1) / tile_rows, [&](size_t tile, int) {
            const size_t end = std::min(search.row_count, (tile + 1) * tile_rows);
            for (size_t r = tile * tile_rows; r < end; ++r)
                low_rows[r] = bounds.low(search.rows + r * search.dims, search.dims);
        });
        // Fewer queries per task where that gives every thread a task: results do not depend on the
        // split.
        const auto threads = static_cast<size_t>(workers_.threads());
        const size_t task_queries =
            std::clamp<size_t>((search.query_count + threads - 1) / threads, 16, tile_queries);
        auto products = workers_.scratch(task_queries * tile_rows + products_scratch(task_queries));
        const size_t tasks = (search.query_count + task_queries - 1) / task_queries;
        workers_.run(tasks, [&](size_t task, int thread) {
            const size_t first = task * task_queries;
            const size_t queries = std::min(task_queries, search.query_count - first);
            for (size_t r = 0; r < search.row_count; r += tile_rows)
                search_tile(search, bounds, low_rows.data() + r, first, queries, r,
                            std::min(tile_rows, search.row_count - r), products[thread].data());
        });
    }

    std::unique_ptr<RowPass> begin_pass(const RowPassInput& input) override {
        return make_plain_pass(*this, *this, input);
    }

  private:
    Workers workers_;
    AdditiveEncoder additive_;
};

void CpuExecutor::rotate_rows(Dataset& data, const Rotation& rotation) {
    auto& rows = static_cast<BorrowedRows&>(data);
    std::vector<float> rotated_chunk(std::min(chunk_rows, rows.count) * rotation.to);
    while (rows.rotated < rows.count) {
        const size_t here = std::min(chunk_rows, rows.count - rows.rotated);
        pgwarp::rotate(workers_, rotation, rows.rows + rows.rotated * rotation.from, here,
                       rotated_chunk.data());
        // In place: rows do not become longer, so that they overwrite no row that is still to be
        // read.
        std::copy_n(rotated_chunk.data(), here * rotation.to,
                    rows.rows + rows.rotated * rotation.to);
        rows.rotated += here;
    }
    rows.rotated = 0;
    rows.dims = rotation.to;
}

// Encodes by a model with one list, at the origin. Discards the entries' other parts.
void CpuExecutor::encode_residuals(const FirstRows& first, const Quantizer& quantizer,
                                   uint8_t* codes) {
    const auto& rows = static_cast<BorrowedRows&>(first.rows);
    Quantizer model = quantizer;
    model.shape.lists = 1;
    const std::vector<float> origin(model.shape.dims);
    model.centroids = origin.data();
    const Rotation& rotation = quantizer.rotation;
    const size_t chunk = std::min(chunk_rows, first.count);
    std::vector<float> rotated(rotation.matrix ? chunk * rotation.to : 0), offsets(chunk);
    std::vector<uint32_t> lists(chunk);
    for (size_t begin = 0; begin < first.count; begin += chunk) {
        const size_t here = std::min(chunk, first.count - begin);
        const float* residuals = rows.rows + begin * rows.dims;
        if (rotation.matrix) {
            pgwarp::rotate(workers_, rotation, residuals, here, rotated.data());
            residuals = rotated.data();
        }
        encode(model,
               {residuals, here, lists.data(), codes + begin * model.shape.m, offsets.data()});
    }
}

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(int threads, const Interrupts& interrupts) {
    return std::make_unique<CpuExecutor>(threads, interrupts);
}

}  // namespace pgwarp
