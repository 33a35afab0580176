// Large copies from pageable host memory. DMA needs pinned memory; the driver's own staging runs on
// one thread, far below the bandwidth of the bus. Here several threads copy to pinned staging
// buffers while the bus transfers the buffers filled before.
#pragma once

#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/base/stream.h"
#include "kernels/workers.h"

#include <algorithm>
#include <array>

namespace pgwarp::gpu {

class Uploader {
  public:
    Uploader();

    // The copy is complete in `stream`'s order. Pageable memory at `from` may be reused on return;
    // pinned or device memory is not staged, and must stay valid until the copy is complete.
    void upload(void* to, const void* from, size_t bytes, cudaStream_t stream);

    template <typename T>
    void upload(T* to, const T* from, size_t count, cudaStream_t stream) {
        upload(static_cast<void*>(to), static_cast<const void*>(from), count * sizeof(T), stream);
    }

  private:
    struct Part {
        PinnedBuffer<char> room;
        Event copied;
    };
    Workers workers_;
    std::array<Part, 4> parts_;
    size_t next_ = 0;
};

// Rows of host memory in chunks on the device, double-buffered: the next chunk is uploaded while
// kernels work on the current one.
class ChunkedRows {
  public:
    ChunkedRows(DeviceMemory& memory, Uploader& uploader, const float* rows, size_t count,
                uint32_t dims, size_t chunk_rows);
    ~ChunkedRows();

    size_t chunks() const { return (count_ + chunk_rows_ - 1) / chunk_rows_; }
    size_t first(size_t chunk) const { return chunk * chunk_rows_; }
    size_t rows(size_t chunk) const { return std::min(chunk_rows_, count_ - first(chunk)); }

    // The chunk's rows on the device; `stream` waits for their upload. Call once per chunk, in
    // order.
    float* get(size_t chunk, cudaStream_t stream);
    // Call after enqueuing the work on a chunk to `stream`. Starts the upload of the next chunk.
    void release(size_t chunk, cudaStream_t stream);

  private:
    void fetch(size_t chunk);

    Uploader& uploader_;
    const float* rows_;
    size_t count_;
    uint32_t dims_;
    size_t chunk_rows_;
    Stream copies_;
    struct Slot {
        Buffer<float> rows;
        Event filled, free;
    };
    std::array<Slot, 2> slots_;
};

}  // namespace pgwarp::gpu
