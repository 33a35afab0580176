#include "kernels/cuda/lists/far_lists.h"

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/base/stream.h"

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 256;

// Centroids are far if their mean's squared norm exceeds this multiple of their variance. Below it
// the shift would hardly reduce the error of the products.
constexpr double far = 4;

// The centroids' mean, or an empty vector if they are not far from zero.
std::vector<double> origin_of(const Quantizer& quantizer) {
    const QuantizerShape& shape = quantizer.shape;
    if (!has_norms(shape.metric)) return {};
    std::vector<double> mean(shape.dims);
    double squares = 0;
    for (uint32_t l = 0; l < shape.lists; ++l)
        for (uint32_t d = 0; d < shape.dims; ++d) {
            const double c = quantizer.centroids[size_t{l} * shape.dims + d];
            mean[d] += c / shape.lists;
            squares += c * c / shape.lists;
        }
    double mean_square = 0;
    for (const double x : mean) mean_square += x * x;
    if (!(mean_square > far * (squares - mean_square))) return {};
    return mean;
}

__global__ void __launch_bounds__(threads)
    subtract_origin(float* vectors, size_t total, uint32_t dims, const float* origin) {
    const size_t i = size_t{blockIdx.x} * threads + threadIdx.x;
    if (i < total) vectors[i] -= __ldg(origin + i % dims);
}

__global__ void __launch_bounds__(threads)
    subtract_origins(float* vectors, size_t total, uint32_t dims, const StoreView* stores) {
    const size_t i = size_t{blockIdx.x} * threads + threadIdx.x;
    if (i >= total) return;
    const float* origin = stores[i / dims].origin;
    if (origin) vectors[i] -= __ldg(origin + i % dims);
}

__global__ void __launch_bounds__(threads)
    subtract_products(CodeLayout layout, const uint8_t* tiles, EntryRange entries,
                      const float* products, float* offsets) {
    const uint32_t entry = entries.first + blockIdx.x * threads + threadIdx.x;
    if (entry >= entries.count) return;
    const uint8_t* tile = tiles + size_t{entry / tile_entries} * layout.tile_bytes();
    double sum = offsets[entry];
    for (uint32_t j = 0; j < layout.m; ++j)
        sum -= __ldg(products + j * codewords + tile[layout.place(entry % tile_entries, j)]);
    offsets[entry] = static_cast<float>(sum);
}

}  // namespace

FarLists::FarLists(const Context& context, cudaStream_t stream, const Quantizer& quantizer)
    : moved_(quantizer) {
    const std::vector<double> mean = origin_of(quantizer);
    if (mean.empty()) return;
    const QuantizerShape& shape = quantizer.shape;
    const std::vector<float> origin(mean.begin(), mean.end());
    centroids_.assign(quantizer.centroids, quantizer.centroids + size_t{shape.lists} * shape.dims);
    for (size_t i = 0; i < centroids_.size(); ++i) centroids_[i] -= origin[i % shape.dims];
    moved_.centroids = centroids_.data();

    std::vector<float> products(size_t{shape.m} * codewords);
    for (uint32_t j = 0; j < shape.m; ++j)
        for (uint32_t c = 0; c < codewords; ++c) {
            double sum = 0;
            for (uint32_t d = shape.piece_begin(j); d < shape.piece_begin(j + 1); ++d)
                sum += 2.0 * origin[shape.dim_of_row(d)] *
                       quantizer.codebook[size_t{d} * codewords + c];
            products[size_t{j} * codewords + c] = static_cast<float>(sum);
        }
    origin_ = Buffer<float>(context.memory, origin.size());
    products_ = Buffer<float>(context.memory, products.size());
    copy_async(origin_.data(), origin.data(), origin.size(), stream);
    copy_async(products_.data(), products.data(), products.size(), stream);
    // The copies must have read the host vectors above before these are destroyed.
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void FarLists::move_queries(float* vectors, size_t count, cudaStream_t stream) const {
    if (!any()) return;
    const size_t total = count * moved_.shape.dims;
    launch("subtract_origin", subtract_origin,
           {static_cast<unsigned>(divide_up(total, size_t{threads})), threads, 0, stream}, vectors,
           total, moved_.shape.dims, origin_.data());
}

void move_mixed_queries(float* vectors, size_t count, uint32_t dims, const StoreView* stores,
                        cudaStream_t stream) {
    const size_t total = count * dims;
    launch("subtract_origins", subtract_origins,
           {static_cast<unsigned>(divide_up(total, size_t{threads})), threads, 0, stream}, vectors,
           total, dims, stores);
}

void FarLists::move_offsets(const CodeLayout& layout, const uint8_t* tiles, EntryRange entries,
                            float* offsets, cudaStream_t stream) const {
    if (!any()) return;
    const uint32_t count = entries.count - entries.first;
    launch("subtract_products", subtract_products, {divide_up(count, threads), threads, 0, stream},
           layout, tiles, entries, products_.data(), offsets);
}

}  // namespace pgwarp::gpu
