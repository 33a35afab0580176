// Memory layout of a list's codes on the device. Plain C++: tests check it without a device.
//
// A tile has 32 entries, one per lane. A code is cut into slices of `width` bytes, so that the
// tables of a slice fit shared memory; padding in the last slice is code 0 of a column of zeros. In
// a slice, lane l takes the columns (sub-quantizers) in the order l, l + 1, ..., modulo width: at
// each step the lanes of a warp read different columns, and as tables are laid out by column, they
// read different banks. The bytes are stored in that order, so that a step's byte has the same
// position in every lane:
//     (tile)(slice)(step / 16)(lane)(step % 16)
// and the 16-byte loads of adjacent lanes are coalesced.
#pragma once

#include "kernels/common.h"
#include "kernels/host_device.h"

namespace pgwarp::gpu {

inline constexpr uint32_t tile_entries = 32;

struct CodeLayout {
    uint32_t m;
    uint32_t width;  // 16 or 32
    uint32_t slices;

    // Slices of 32 bytes if they need no more padding than slices of 16.
    static CodeLayout of(uint32_t m) {
        const uint32_t sixteens = (m + 15) / 16;
        return sixteens % 2 == 0 ? CodeLayout{m, 32, sixteens / 2} : CodeLayout{m, 16, sixteens};
    }

    PGWARP_HOST_DEVICE uint32_t slice_bytes() const { return tile_entries * width; }
    PGWARP_HOST_DEVICE uint32_t tile_bytes() const { return slices * slice_bytes(); }

    // The column that a lane takes at a step.
    PGWARP_HOST_DEVICE uint32_t column(uint32_t lane, uint32_t step) const {
        return (lane + step) % width;
    }
    // The position in a tile of the byte for sub-quantizer j of a lane's entry.
    PGWARP_HOST_DEVICE uint32_t place(uint32_t lane, uint32_t j) const {
        const uint32_t step = (j % width + tile_entries - lane) % width;
        return j / width * slice_bytes() + step / 16 * (tile_entries * 16) + lane * 16 + step % 16;
    }
};

// Tables of the list scan interleave four queries, as halves: the eight bytes at
// (c * width + j) * 8 are column j of code c for four queries. In global memory each query has its
// own table, which blocks interleave with three others while they copy it to shared memory. It has
// units of 16 bytes, four codes by two columns:
//     (slice)(code / 4)(column / 2)(code % 4)(column % 2)
// so that lanes load adjacent units and store to adjacent addresses.
PGWARP_HOST_DEVICE uint32_t table_units(uint32_t width) {
    return 256 / 4 * width / 2;
}

}  // namespace pgwarp::gpu
