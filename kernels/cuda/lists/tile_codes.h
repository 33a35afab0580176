// A list's pages to its place on the device.
#pragma once

#include "kernels/cuda/lists/code_tiles.h"

#include <cuda_runtime_api.h>

namespace pgwarp::gpu {

// A page's codes in a buffer on the device.
struct RawPage {
    uint32_t first;   // entries of the list before
    uint32_t stride;  // bytes from one sub-quantizer's row to the next
    uint64_t codes;   // where they begin, in bytes
};

// Entries of a list, [first, count): the last of it.
struct EntryRange {
    uint32_t first;
    uint32_t count;
};

// Writes these entries into the list's tiles, and zeros behind the last; entries before them in the
// first tile stay as they are. Pages, (page_count), in order, none empty.
void tile_codes(const CodeLayout& layout, const uint8_t* raw, const RawPage* pages,
                uint32_t page_count, EntryRange entries, uint8_t* tiles, cudaStream_t stream);

}  // namespace pgwarp::gpu
