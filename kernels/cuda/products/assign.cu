#include "kernels/cuda/products/assign.h"

#include "kernels/cuda/products/assign.cuh"
#include "kernels/cuda/base/launch.cuh"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 256;

__global__ void __launch_bounds__(threads)
    nearest_of(ProductRows products, size_t rows, uint32_t* nearest) {
    const size_t row = (size_t{blockIdx.x} * threads + threadIdx.x) / 32;
    if (row >= rows) return;
    const uint64_t key = nearest_key(products, row);
    if (lane_id() == 0) nearest[row] = key_index(key);
}

__global__ void __launch_bounds__(threads)
    codes_of(ProductRows products, size_t rows, uint8_t* codes, size_t code_stride) {
    const size_t row = (size_t{blockIdx.x} * threads + threadIdx.x) / 32;
    if (row >= rows) return;
    const uint64_t key = nearest_key(products, row);
    if (lane_id() == 0) codes[row * code_stride] = static_cast<uint8_t>(key_index(key));
}

unsigned blocks_for(size_t rows) {
    return static_cast<unsigned>(divide_up(rows * 32, size_t{threads}));
}

}  // namespace

CentroidMatrix::CentroidMatrix(const Context& context, cudaStream_t stream, const float* centroids,
                               uint32_t count, uint32_t dims, Origin origin, Wanted wanted)
    : context_(&context), count_(count), dims_(dims) {
    if (origin == Origin::centroids) {
        origin_ = Buffer<float>(context.memory, dims);
        find_origin({centroids, count, dims, dims}, origin_.data(), stream);
    }
    const FloatMatrix matrix{centroids, count, dims, dims, origin_.data()};
    if (wanted == Wanted::nearest && fits_tiles(context, dims)) {
        pairs_.emplace();
        pairs_->grow(context.memory, count, dims);
        pairs_->split(matrix, Scales::common, stream);
        return;
    }
    halves_ = Buffer<__half>(context.memory, stride_of(count) * split_width(dims));
    norms_ = Buffer<float>(context.memory, stride_of(count));
    scale_ = Buffer<uint32_t>(context.memory, 1);
    split_rows(matrix, Side::right, halves_.data(), scale_.data(), norms_.data(), stream);
}

size_t CentroidMatrix::tile_rows(uint32_t count, uint32_t dims, size_t bytes) {
    const size_t row =
        split_width(dims) * sizeof(__half) + sizeof(float) + stride_of(count) * sizeof(float);
    const size_t most = (size_t{1} << 31) / stride_of(count);  // cuBLAS sizes are int
    return std::clamp<size_t>(bytes / row, 1, most);
}

void CentroidMatrix::multiply(const Blas& blas, cudaStream_t stream, const FloatMatrix& rows,
                              ProductTile& tile, float factor) const {
    DeviceMemory& memory = context_->memory;
    tile.halves.grow(memory, rows.count * split_width(dims_));
    tile.row_norms.grow(memory, rows.count);
    tile.products.grow(memory, rows.count * stride());
    tile.scale.grow(memory, 1);
    tile.factors.grow(memory, 2);
    FloatMatrix moved = rows;
    moved.origin = origin_.data();
    split_rows(moved, Side::left, tile.halves.data(), tile.scale.data(), tile.row_norms.data(),
               stream);
    gpu::multiply(blas, stream, {tile.halves.data(), tile.scale.data(), rows.count},
                  {halves_.data(), scale_.data(), count_}, dims_, factor, tile.products.data(),
                  stride(), tile.factors.data());
}

void CentroidMatrix::find_nearest(const Blas& blas, cudaStream_t stream, const FloatMatrix& rows,
                                  ProductTile& tile, uint32_t* nearest) const {
    if (pairs_) {
        tile.keys.grow(context_->memory, rows.count);
        tile.pairs.grow(context_->memory, rows.count, dims_);
        FloatMatrix moved = rows;
        moved.origin = origin_.data();
        tile.pairs.split(moved, Scales::own, stream);
        nearest_by_tiles(*context_, tile.pairs.view(), pairs_->view(), tile.keys.data(), nearest,
                         stream);
        return;
    }
    multiply(blas, stream, rows, tile);
    launch("nearest_of", nearest_of, {blocks_for(rows.count), threads, 0, stream},
           ProductRows{tile.products.data(), stride(), norms(), count_}, rows.count, nearest);
}

void find_codes(const CentroidMatrix& codewords, const ProductTile& tile, size_t rows,
                uint8_t* codes, size_t code_stride, cudaStream_t stream) {
    launch(
        "codes_of", codes_of, {blocks_for(rows), threads, 0, stream},
        ProductRows{tile.products.data(), codewords.stride(), codewords.norms(), codewords.count()},
        rows, codes, code_stride);
}

}  // namespace pgwarp::gpu
