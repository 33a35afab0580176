// Large copies from ordinary host memory. The device reads pinned memory only: the driver's own
// staging runs on one thread, far below what the bus can do, so several threads stage here, one
// part ahead of the bus.
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

    // When it returns, `from` has been read; the copy is complete in `stream`'s order. Memory
    // that is pinned, or on the device, is copied as it is, and must live until then.
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

// Rows of host memory, in chunks on the device: while one chunk is worked on, the next comes.
class ChunkedRows {
  public:
    ChunkedRows(DeviceMemory& memory, Uploader& uploader, const float* rows, size_t count,
                uint32_t dims, size_t chunk_rows);
    ~ChunkedRows();

    size_t chunks() const { return (count_ + chunk_rows_ - 1) / chunk_rows_; }
    size_t first(size_t chunk) const { return chunk * chunk_rows_; }
    size_t rows(size_t chunk) const { return std::min(chunk_rows_, count_ - first(chunk)); }

    // The chunk's rows, for `stream`. In order, each chunk once.
    float* get(size_t chunk, cudaStream_t stream);
    // After the work on a chunk has been given to `stream`: fetches the next one.
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
