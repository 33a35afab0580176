// Encodes rows of host memory chunk by chunk: finds the lists of a chunk's rows, has its caller
// find their codes, and copies the results back while the next chunk is uploaded.
#pragma once

#include "kernels/cuda/base/upload.h"
#include "kernels/cuda/products/assign.h"
#include "kernels/product_quantizer.h"

namespace pgwarp::gpu {

struct ChunkedEncoding {
    const Context& context;
    Uploader& uploader;
    cudaStream_t stream;
    const Blas& blas;
    const QuantizerShape& shape;
    const CentroidMatrix& centroids;
    size_t chunk_rows;  // at most, of one chunk
};

// On the device.
struct EncodedChunk {
    float* rows;  // (count)(dims); may be overwritten
    size_t count;
    const uint32_t* lists;  // (count)
    uint8_t* codes;         // (count)(m), to be written
    float* offsets;         // (count), to be written
};

// encode_chunk(const EncodedChunk&) enqueues its work to the stream.
template <typename EncodeChunk>
void encode_chunks(const ChunkedEncoding& by, const Encoding& e, EncodeChunk&& encode_chunk) {
    const uint32_t dims = by.shape.dims, m = by.shape.m;
    const cudaStream_t stream = by.stream;
    DeviceMemory& memory = by.context.memory;
    ProductTile tile;
    Buffer<uint32_t> lists(memory, by.chunk_rows);
    Buffer<uint8_t> codes(memory, by.chunk_rows * m);
    Buffer<float> offsets(memory, by.chunk_rows);
    ChunkedRows chunks(memory, by.uploader, e.rows, e.count, dims, by.chunk_rows);
    const FinishStream finish(stream);
    for (size_t i = 0; i < chunks.chunks(); ++i) {
        by.context.check_interrupt();
        const size_t first = chunks.first(i), count = chunks.rows(i);
        float* rows = chunks.get(i, stream);
        by.centroids.find_nearest(by.blas, stream, {rows, count, dims, dims}, tile, lists.data());
        encode_chunk(EncodedChunk{rows, count, lists.data(), codes.data(), offsets.data()});
        // The upload of the next chunk overlaps with this one's kernels; the copies below wait for
        // them.
        chunks.release(i, stream);
        copy_async(e.lists + first, lists.data(), count, stream);
        copy_async(e.codes + first * m, codes.data(), count * m, stream);
        copy_async(e.offsets + first, offsets.data(), count, stream);
    }
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

}  // namespace pgwarp::gpu
