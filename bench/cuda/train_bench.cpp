#include "bench/cuda/bench.h"
#include "kernels/cuda/train/encode.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/lists/model.h"

namespace pgwarp::gpu {

namespace {

constexpr uint32_t lists = 1024, m = 32;
constexpr int kmeans_iterations = 20, codebook_iterations = 20;
constexpr size_t codebook_rows = 65536;

// Encodes rows on the device into lists, codes and offsets, chunk by chunk.
void bench_encoding(const Context& context, const Settings& settings, const VectorSet& vectors,
                    const Quantizer& quantizer) {
    const size_t copies = 10, rows = vectors.base_count(), chunk = 65536;
    Stream stream;
    const Blas blas(stream);
    // Several copies of the rows, so that they are not cached; their values do not matter.
    Buffer<float> data(context.memory, vectors.base.size() * copies);
    for (size_t i = 0; i < copies; ++i)
        copy_async(data + i * vectors.base.size(), vectors.base.data(), vectors.base.size(),
                   stream);
    const size_t count = rows * copies;
    Buffer<uint32_t> list_buffer(context.memory, count);
    Buffer<uint8_t> codes(context.memory, count * m);
    Buffer<float> offsets(context.memory, count);
    const Model model(context, stream, quantizer);
    const CentroidMatrix matrix(context, stream, model.view().centroids, lists, vectors.dims,
                                Origin::centroids, Wanted::nearest);
    Encoder encoder(context, stream, blas, model, chunk);
    ProductTile tile;
    const auto encode = [&](size_t end) {
        for (size_t first = 0; first < end; first += chunk) {
            const size_t size = std::min(chunk, end - first);
            const float* from = data + first * vectors.dims;
            matrix.find_nearest(blas, stream, {from, size, vectors.dims, vectors.dims}, tile,
                                list_buffer + first);
            encoder.encode({from, size, list_buffer + first, codes + first * m, offsets + first});
        }
    };
    const double time = time_on_device(
        stream, [&] { encode(count); }, 5, 2);
    profile(settings, [&] { encode(chunk); });
    report("encode, ten times the rows, on the device", time,
           format("%.1f M vectors/s", static_cast<double>(count) / time * 1e-6), "",
           ">= 50 M vectors/s");
}

}  // namespace

void bench_training(const Context& context, const Settings& settings, const Limits& limits,
                    const VectorSet& vectors) {
    const auto executor = make_executor(context);
    const uint32_t dims = vectors.dims;
    const size_t rows = vectors.base_count();
    std::vector<float> base = vectors.base;
    std::vector<float> centroids(size_t{lists} * dims), codebook(size_t{dims} * codewords);
    const QuantizerShape shape{dims, lists, m, Metric::l2};
    {
        const auto data = executor->take(base.data(), rows, dims);
        executor->kmeans_start(*data, lists, 1, centroids.data());
        const double step = time_on_host(
            [&] { executor->kmeans_step(*data, lists, centroids.data()); }, kmeans_iterations, 2);
        profile(settings, [&] { executor->kmeans_step(*data, lists, centroids.data()); });
        const double operations = 2.0 * static_cast<double>(rows) * lists * dims;
        report("k-means, 1024 centroids, 20 iterations", step * kmeans_iterations,
               format("%.1f Tflop/s", operations / step * 1e-12),
               format("%.0f%% of float32 GEMM", 100 * operations / step / limits.sgemm_rate),
               ">= 60%");
    }
    std::vector<uint32_t> list_numbers(rows);
    std::vector<uint8_t> codes(rows * m);
    std::vector<float> offsets(rows);
    double error = 0, parts[4] = {};
    const auto build = [&] {
        double last = 0;
        const auto lap = [&, begin = std::chrono::steady_clock::now()](double* part) {
            const std::chrono::duration<double> now = std::chrono::steady_clock::now() - begin;
            *part = now.count() - last;
            last = now.count();
        };
        const auto data = executor->take(base.data(), rows, dims);
        lap(&parts[0]);
        executor->kmeans_start(*data, lists, 1, centroids.data());
        for (int i = 0; i < kmeans_iterations; ++i)
            executor->kmeans_step(*data, lists, centroids.data());
        lap(&parts[1]);
        const auto residuals = executor->take(base.data(), std::min(rows, codebook_rows), dims);
        executor->make_residuals(*residuals, lists, centroids.data());
        executor->codebook_start(*residuals, shape, 1, codebook.data());
        for (int i = 0; i < codebook_iterations; ++i)
            error = executor->codebook_step(*residuals, shape, codebook.data());
        lap(&parts[2]);
        executor->encode(
            {shape, centroids.data(), codebook.data()},
            {vectors.base.data(), rows, list_numbers.data(), codes.data(), offsets.data()});
        lap(&parts[3]);
    };
    const double time = time_on_host(build, 3, 1);
    report("training on all rows and encoding them, from the host", time,
           format("%.2f M vectors/s", static_cast<double>(rows) / time * 1e-6), "", "<= 500 ms");
    const char* names[] = {"  upload", "  20 iterations of k-means", "  codebook, 65,536 rows, 20",
                           "  encoding"};
    for (int i = 0; i < 4; ++i) report(names[i], parts[i], "", "", "");
    report("  mean squared error of a code", 0, format("%.1f", error), "", "");
    bench_encoding(context, settings, vectors, {shape, centroids.data(), codebook.data()});
}

}  // namespace pgwarp::gpu
