#include "bench/cuda/bench.h"
#include "kernels/cuda/products/exact_search.h"
#include "kernels/cuda/executor.h"

#include <limits>
#include <numeric>

namespace pgwarp::gpu {

namespace {

// Checks a part of the results against brute force on the host, with float32 sums of differences.
size_t count_wrong(const VectorSet& vectors, const std::vector<Neighbor>& nearest, uint32_t k,
                   size_t step) {
    size_t wrong = 0;
    const uint32_t dims = vectors.dims;
    for (size_t q = 0; q < vectors.query_count(); q += step) {
        std::vector<std::pair<float, uint64_t>> all(vectors.base_count());
        const float* query = vectors.queries.data() + q * dims;
        for (size_t r = 0; r < all.size(); ++r) {
            float sum = 0;
            for (uint32_t d = 0; d < dims; ++d) {
                const float off = query[d] - vectors.base[r * dims + d];
                sum += off * off;
            }
            all[r] = {sum, r};
        }
        std::partial_sort(all.begin(), all.begin() + k, all.end());
        for (uint32_t i = 0; i < k; ++i) wrong += all[i].second != nearest[q * k + i].id;
    }
    return wrong;
}

}  // namespace

void bench_exact(const Context& context, const Settings& settings, const Limits& limits,
                 const VectorSet& vectors) {
    const uint32_t k = 100, dims = vectors.dims;
    const size_t queries = vectors.query_count();
    Stream stream;
    const Blas blas(stream);
    Buffer<float> base(context.memory, vectors.base.size());
    Buffer<float> query_buffer(context.memory, vectors.queries.size());
    Buffer<Neighbor> nearest(context.memory, queries * k);
    std::vector<Neighbor> found(queries * k);
    copy_async(base.data(), vectors.base.data(), vectors.base.size(), stream);
    stream.synchronize();

    DeviceExactSearch search;
    search.queries = query_buffer.data();
    search.query_count = queries;
    search.rows = base.data();
    search.row_count = vectors.base_count();
    search.dims = dims;
    search.k = k;
    search.nearest = nearest.data();
    const auto resident = [&] {
        copy_async(query_buffer.data(), vectors.queries.data(), vectors.queries.size(), stream);
        exact_search(context, blas, stream, search);
        copy_async(found.data(), nearest.data(), found.size(), stream);
        stream.synchronize();
    };
    const double time = time_on_host(resident, 5, 2);
    profile(settings, resident);
    report("exact search, k = 100, rows on the device, host to host", time,
           format("%.0f queries/s", static_cast<double>(queries) / time),
           format("%.2f x the GEMM's rate", limits.sgemm_time / time),
           "<= " + format("%.1f ms (GEMM)", limits.sgemm_time * 1e3));
    const size_t step = queries / 20;
    report("  places that differ from float32 (20 queries)", 0,
           std::to_string(count_wrong(vectors, found, k, step)), "", "0");

    const auto executor = make_executor(context);
    std::vector<uint64_t> ids(vectors.base_count());
    std::iota(ids.begin(), ids.end(), uint64_t{0});
    const double all = time_on_host(
        [&] {
            std::fill(found.begin(), found.end(),
                      Neighbor{std::numeric_limits<float>::infinity(), 0});
            executor->exact_search({vectors.queries.data(), queries, vectors.base.data(),
                                    vectors.base_count(), ids.data(), dims, Metric::l2, k,
                                    found.data()});
        },
        5, 2);
    report("  the same, rows from the host too", all,
           format("%.0f queries/s", static_cast<double>(queries) / all),
           format("%.2f x the GEMM's rate", limits.sgemm_time / all), "");
}

}  // namespace pgwarp::gpu
