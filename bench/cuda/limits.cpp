#include "bench/cuda/bench.h"
#include "kernels/cuda/base/blas.h"

namespace pgwarp::gpu {

Limits measure_limits(const Context& context, const Settings& settings) {
    Limits limits;
    Stream stream;
    const Blas blas(stream);
    {
        const size_t count = size_t{1} << 30;
        Buffer<float> from(context.memory, count), to(context.memory, count);
        fill_uniform(from.data(), count, 1, stream);
        const double time =
            time_on_device(stream, [&] { copy_async(to.data(), from.data(), count, stream); });
        limits.copy_bandwidth = 2 * static_cast<double>(count * sizeof(float)) / time;
        report("limit: copy on the device, 4 GiB", time,
               format("%.2f TB/s", limits.copy_bandwidth * 1e-12), "", "");
    }
    // All products of the exact search, tile by tile.
    const size_t rows = 65536, queries = settings.queries;
    const int dims = 128;
    const double tiles = static_cast<double>(settings.rows) / static_cast<double>(rows);
    Buffer<float> a(context.memory, rows * dims), b(context.memory, queries * dims);
    Buffer<float> c(context.memory, rows * queries);
    fill_uniform(a.data(), a.size(), 2, stream);
    fill_uniform(b.data(), b.size(), 3, stream);
    const float one = 1, zero = 0;
    const auto multiply = [&](cublasComputeType_t type) {
        check(cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(rows),
                           static_cast<int>(queries), dims, &one, a.data(), CUDA_R_32F, dims,
                           b.data(), CUDA_R_32F, dims, &zero, c.data(), CUDA_R_32F,
                           static_cast<int>(rows), type, CUBLAS_GEMM_DEFAULT),
              "cublasGemmEx");
    };
    const double operations = 2.0 * static_cast<double>(rows) * static_cast<double>(queries) * dims;
    const double sgemm = time_on_device(stream, [&] { multiply(CUBLAS_COMPUTE_32F); });
    const double tf32 = time_on_device(stream, [&] { multiply(CUBLAS_COMPUTE_32F_FAST_TF32); });
    limits.sgemm_rate = operations / sgemm;
    limits.sgemm_time = sgemm * tiles;
    limits.tf32_time = tf32 * tiles;
    report("limit: float32 GEMM, batch x rows x 128", limits.sgemm_time,
           format("%.1f Tflop/s", limits.sgemm_rate * 1e-12), "", "");
    report("limit: TF32 GEMM, the same", limits.tf32_time,
           format("%.1f Tflop/s", operations / tf32 * 1e-12), "", "");
    return limits;
}

}  // namespace pgwarp::gpu
