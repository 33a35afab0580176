// A list's pages to its place on the device.
#pragma once

#include "kernels/cuda/code_tiles.h"

#include <cuda_runtime_api.h>

namespace pgwarp::gpu {

// A page's codes in a buffer on the device.
struct RawPage {
    uint32_t first;   // entries in the pages before
    uint32_t stride;  // bytes from one sub-quantizer's row to the next
    uint64_t codes;   // where they begin, in bytes
};

// Writes the tiles of `count` entries. Pages, (page_count), in order, none empty.
void tile_codes(const CodeLayout& layout, const uint8_t* raw, const RawPage* pages,
                uint32_t page_count, uint32_t count, uint8_t* tiles, cudaStream_t stream);

}  // namespace pgwarp::gpu
