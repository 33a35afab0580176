#include "kernels/cuda/lists/tile_codes.h"

#include "kernels/cuda/base/launch.cuh"

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 256;

struct TileArguments {
    CodeLayout layout;
    const uint8_t* raw;
    const RawPage* pages;
    uint32_t page_count;
    EntryRange entries;
    uint4* tiles;
    uint32_t first_word;  // in units of 16 bytes: the first word of the first tile
    uint32_t words;       // words of the tiles from there on
};

// A thread writes 16 bytes: 16 steps of one lane.
__global__ void __launch_bounds__(threads) tile(TileArguments a) {
    uint32_t word = blockIdx.x * threads + threadIdx.x;
    if (word >= a.words) return;
    word += a.first_word;
    const uint32_t lane = word % tile_entries;
    const uint32_t sixteen = word / tile_entries % (a.layout.width / 16);
    const uint32_t slice = word / (a.layout.width / 16 * tile_entries) % a.layout.slices;
    const uint32_t entry = word / (a.layout.tile_bytes() / 16) * tile_entries + lane;

    if (entry < a.entries.first) return;
    uint8_t bytes[16] = {};
    if (entry < a.entries.count) {
        uint32_t low = 0,
                 high = a.page_count;  // finds the last page that begins at or before the entry
        while (low + 1 < high) {
            const uint32_t middle = (low + high) / 2;
            if (a.pages[middle].first <= entry)
                low = middle;
            else
                high = middle;
        }
        const RawPage page = a.pages[low];
        const uint8_t* codes = a.raw + page.codes + (entry - page.first);
#pragma unroll
        for (uint32_t i = 0; i < 16; ++i) {
            const uint32_t j = slice * a.layout.width + a.layout.column(lane, sixteen * 16 + i);
            if (j < a.layout.m) bytes[i] = codes[size_t{j} * page.stride];
        }
    }
    const auto join = [&](int i) {
        return static_cast<uint32_t>(bytes[i]) | static_cast<uint32_t>(bytes[i + 1]) << 8 |
               static_cast<uint32_t>(bytes[i + 2]) << 16 |
               static_cast<uint32_t>(bytes[i + 3]) << 24;
    };
    a.tiles[word] = {join(0), join(4), join(8), join(12)};
}

}  // namespace

void tile_codes(const CodeLayout& layout, const uint8_t* raw, const RawPage* pages,
                uint32_t page_count, EntryRange entries, uint8_t* tiles, cudaStream_t stream) {
    const uint32_t tile_words = layout.tile_bytes() / 16;
    const uint32_t first_tile = entries.first / tile_entries;
    const uint32_t words = (divide_up(entries.count, tile_entries) - first_tile) * tile_words;
    launch("tile_codes", tile, {divide_up(words, threads), threads, 0, stream},
           TileArguments{layout, raw, pages, page_count, entries, reinterpret_cast<uint4*>(tiles),
                         first_tile * tile_words, words});
}

}  // namespace pgwarp::gpu
