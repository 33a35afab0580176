// Rearranges the codes of a list's pages into tiles (code_tiles.h) on the device.
#pragma once

#include "kernels/cuda/lists/code_tiles.h"

#include <cuda_runtime_api.h>

namespace pgwarp::gpu {

// The codes of an index page, in a device buffer.
struct RawPage {
    uint32_t first;   // entries of the list on earlier pages
    uint32_t stride;  // bytes from one sub-quantizer's row to the next
    uint64_t codes;   // byte offset of the codes in the buffer
};

// The entries [first, count) of a list: its last ones.
struct EntryRange {
    uint32_t first;
    uint32_t count;
};

// Writes these entries into the list's tiles, and zeros past the last; earlier entries of the first
// tile stay unchanged. `pages`: (page_count), in order, none empty.
void tile_codes(const CodeLayout& layout, const uint8_t* raw, const RawPage* pages,
                uint32_t page_count, EntryRange entries, uint8_t* tiles, cudaStream_t stream);

}  // namespace pgwarp::gpu
