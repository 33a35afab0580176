#include "kernels/cuda/base/upload.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace pgwarp::gpu {

namespace {

// Bytes of a staging buffer. Kept small, as pinning 1 MB takes 0.5 ms, in which 20 MB are copied.
constexpr size_t part_bytes = size_t{4} << 20;
constexpr size_t task_bytes = size_t{512} << 10;
// Below this size waking the threads costs more than it gains.
constexpr size_t min_staged = size_t{1} << 20;

int staging_threads() {
    return static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 2, 1u, 8u));
}

bool is_pageable(const void* memory) {
    cudaPointerAttributes attributes;
    check(cudaPointerGetAttributes(&attributes, memory), "cudaPointerGetAttributes");
    return attributes.type == cudaMemoryTypeUnregistered;
}

}  // namespace

Uploader::Uploader() : workers_(staging_threads()) {}

void Uploader::upload(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    if (bytes < min_staged || !is_pageable(from)) {
        copy_async(static_cast<char*>(to), static_cast<const char*>(from), bytes, stream);
        return;
    }
    for (size_t at = 0; at < bytes; at += part_bytes) {
        const size_t size = std::min(part_bytes, bytes - at);
        const char* source = static_cast<const char*>(from) + at;
        Part& part = parts_[next_++ % parts_.size()];
        part.room.grow(part_bytes);
        part.copied.synchronize();
        workers_.run((size + task_bytes - 1) / task_bytes, [&](size_t task, int) {
            const size_t begin = task * task_bytes;
            std::memcpy(part.room.data() + begin, source + begin,
                        std::min(task_bytes, size - begin));
        });
        copy_async(static_cast<char*>(to) + at, part.room.data(), size, stream);
        part.copied.record(stream);
    }
}

ChunkedRows::ChunkedRows(DeviceMemory& memory, Uploader& uploader, const float* rows, size_t count,
                         uint32_t dims, size_t chunk_rows)
    : uploader_(uploader),
      rows_(rows),
      count_(count),
      dims_(dims),
      chunk_rows_(std::min(chunk_rows, std::max<size_t>(count, 1))) {
    for (Slot& slot : slots_) slot.rows = Buffer<float>(memory, chunk_rows_ * dims);
    if (count_ > 0) fetch(0);
}

ChunkedRows::~ChunkedRows() {
    cudaStreamSynchronize(copies_);
}

void ChunkedRows::fetch(size_t chunk) {
    Slot& slot = slots_[chunk % slots_.size()];
    copies_.wait(slot.free);
    uploader_.upload(slot.rows.data(), rows_ + first(chunk) * dims_, rows(chunk) * dims_, copies_);
    slot.filled.record(copies_);
}

float* ChunkedRows::get(size_t chunk, cudaStream_t stream) {
    Slot& slot = slots_[chunk % slots_.size()];
    check(cudaStreamWaitEvent(stream, slot.filled), "cudaStreamWaitEvent");
    return slot.rows.data();
}

void ChunkedRows::release(size_t chunk, cudaStream_t stream) {
    slots_[chunk % slots_.size()].free.record(stream);
    if (chunk + 1 < chunks()) fetch(chunk + 1);
}

}  // namespace pgwarp::gpu
