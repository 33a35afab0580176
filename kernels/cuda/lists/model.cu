#include "kernels/cuda/lists/model.h"

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/base/stream.h"

#include <algorithm>
#include <vector>

namespace pgwarp::gpu {

namespace {

// One block per piece, one thread per codeword.
__global__ void half_norms_of(DeviceModel model, float* half_norms) {
    const uint32_t piece = blockIdx.x;
    float sum = 0;
    for (uint32_t d = model.piece_begins[piece]; d < model.piece_begins[piece + 1]; ++d) {
        const float w = model.codebook[size_t{d} * codewords + threadIdx.x];
        sum += 0.5f * w * w;
    }
    half_norms[size_t{piece} * codewords + threadIdx.x] = sum;
}

__global__ void transpose(DeviceModel model, float* transposed) {
    const uint32_t d = blockIdx.x;
    const uint32_t piece = model.piece_of[d], begin = model.piece_begins[piece];
    const uint32_t dims = model.piece_begins[piece + 1] - begin;
    transposed[size_t{begin} * codewords + threadIdx.x * dims + (d - begin)] =
        model.codebook[size_t{d} * codewords + threadIdx.x];
}

}  // namespace

void transpose_codebook(const DeviceModel& model, float* transposed, cudaStream_t stream) {
    launch("transpose_codebook", transpose, {model.shape.codebook_rows(), codewords, 0, stream},
           model, transposed);
}

Model::Model(const Context& context, cudaStream_t stream, const Quantizer& quantizer)
    : codebook_(context.memory, size_t{quantizer.shape.codebook_rows()} * codewords),
      half_norms_(context.memory, size_t{quantizer.shape.m} * codewords),
      piece_begins_(context.memory, quantizer.shape.m + 1),
      piece_of_(context.memory, quantizer.shape.codebook_rows()) {
    const QuantizerShape& shape = quantizer.shape;
    std::vector<uint32_t> begins(shape.m + 1), pieces(shape.codebook_rows());
    for (uint32_t j = 0; j <= shape.m; ++j) begins[j] = shape.piece_begin(j);
    for (uint32_t j = 0; j < shape.m; ++j) {
        longest_piece_ = std::max(longest_piece_, begins[j + 1] - begins[j]);
        std::fill(pieces.begin() + begins[j], pieces.begin() + begins[j + 1], j);
    }
    if (quantizer.centroids) {
        centroids_ = Buffer<float>(context.memory, size_t{shape.lists} * shape.dims);
        copy_async(centroids_.data(), quantizer.centroids, centroids_.size(), stream);
    }
    copy_async(piece_begins_.data(), begins.data(), begins.size(), stream);
    copy_async(piece_of_.data(), pieces.data(), pieces.size(), stream);
    view_ = {shape,
             centroids_.data(),
             codebook_.data(),
             half_norms_.data(),
             piece_begins_.data(),
             piece_of_.data()};
    if (quantizer.codebook) set_codebook(quantizer.codebook, stream);
    // The copies must have read the host vectors above before these are destroyed.
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void Model::set_codebook(const float* codebook, cudaStream_t stream) {
    copy_async(codebook_.data(), codebook, codebook_.size(), stream);
    launch("half_norms_of", half_norms_of, {view_.shape.m, codewords, 0, stream}, view_,
           half_norms_.data());
}

}  // namespace pgwarp::gpu
