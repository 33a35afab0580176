// The device's work in a build of ten million rows: trains lists from a sample, then passes once
// over rows that come from pinned memory block by block, and finds neighbors of queries at the same
// time.

#include "bench/cuda/bench.h"
#include "kernels/cuda/executor.h"
#include "kernels/row_pass.h"

namespace pgwarp::gpu {

namespace {

constexpr uint32_t dims = 96, lists = 5534, m = 24, k = 101;
constexpr size_t rows = 1000000, sample_rows = size_t{lists} * 64, query_count = 512;

// Passes over `count` rows in all, repeating blocks of the data.
void pass_over(Executor& executor, const PinnedBuffer<float>& data,
               const std::vector<uint64_t>& ids, const Quantizer& model, size_t block_rows,
               size_t queries, size_t count) {
    RowPassInput input;
    input.quantizer = &model;
    input.dims = dims;
    input.block_rows = block_rows;
    input.queries = data.data();
    input.query_count = queries;
    input.k = k;
    const auto pass = executor.begin_pass(input);
    size_t in_flight = 0;
    for (size_t first = 0; first < count; first += block_rows) {
        const size_t at = first % (rows - block_rows);
        if (in_flight == RowPass::max_in_flight) pass->finish(), --in_flight;
        pass->start(data.data() + at * dims, ids.data() + at, std::min(block_rows, count - first));
        ++in_flight;
    }
    for (; in_flight > 0; --in_flight) pass->finish();
}

}  // namespace

void bench_passes(const Context& context, const Settings& settings) {
    const auto executor = make_executor(context);
    PinnedBuffer<float> data(rows * dims);
    Stream stream;
    {
        Buffer<float> made(context.memory, rows * dims);
        fill_uniform(made.data(), made.size(), 7, stream);
        copy_async(data.data(), made.data(), made.size(), stream);
        stream.synchronize();
    }
    std::vector<uint64_t> ids(rows);
    for (size_t i = 0; i < rows; ++i) ids[i] = i + 1;
    std::vector<float> centroids(size_t{lists} * dims), codebook(size_t{dims} * codewords);
    std::vector<float> sample(data.data(), data.data() + sample_rows * dims);
    const auto taken = executor->take(sample.data(), sample_rows, dims);
    report("a sample of 354,176 x 96, from the host",
           time_on_host([&] { executor->take(sample.data(), sample_rows, dims); }, 3, 1), "", "",
           "");
    executor->kmeans_start(*taken, lists, 1, centroids.data());
    const auto step = [&] { executor->kmeans_step(*taken, lists, centroids.data()); };
    report("  an iteration into 5,534 lists", time_on_host(step, 8, 1), "", "", "");
    profile(settings, step);

    const QuantizerShape shape{dims, lists, m, Metric::l2};
    const auto residuals = executor->take(sample.data(), 10240, dims);
    executor->make_residuals(*residuals, lists, centroids.data());
    executor->codebook_start(*residuals, shape, 1, codebook.data());
    executor->codebook_step(*residuals, shape, codebook.data());
    const Quantizer model{shape, centroids.data(), codebook.data()};
    constexpr size_t blocks[] = {875, 3566, 10240};
    for (const size_t block_rows : blocks)
        for (const size_t queries : {size_t{0}, query_count}) {
            const auto pass = [&](size_t count) {
                pass_over(*executor, data, ids, model, block_rows, queries, count);
            };
            const double begin = time_on_host([&] { pass(1); }, 5, 2);
            const double all = time_on_host([&] { pass(4 * rows); }, 3, 1);
            report("a pass, blocks of " + std::to_string(block_rows) + " rows, " +
                       std::to_string(queries) + " queries: a million rows",
                   (all - begin) / 4,
                   format("%.1f M rows/s", 4e-6 * static_cast<double>(rows) / (all - begin)),
                   format("%.1f ms to begin", begin * 1e3), "");
        }
    profile(settings, [&] { pass_over(*executor, data, ids, model, 3566, query_count, 21396); });
}

}  // namespace pgwarp::gpu
