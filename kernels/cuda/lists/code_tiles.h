// How a list's codes lie on the device. Plain C++: the tests check it where there is no device.
//
// Entries are cut into tiles of 32, one a lane. A code is cut into slices of `width` bytes, so
// that the tables of a slice fit shared memory; what is missing in the last one is code 0 of a
// column of zeros. In a slice, lane l takes the columns (sub-quantizers) in the order l, l + 1,
// ..., modulo width: at each step the lanes of a warp look into different columns, and with tables
// laid out by column into different banks. The bytes are stored in that order, so that a step's
// byte has the same place in every lane:
//     (tile)(slice)(step / 16)(lane)(step % 16)
// and a lane loads 16 bytes beside its neighbour's 16.
#pragma once

#include "kernels/common.h"
#include "kernels/common/both_sides.h"

namespace pgwarp::gpu {

inline constexpr uint32_t tile_entries = 32;

struct CodeLayout {
    uint32_t m;
    uint32_t width;  // 16 or 32
    uint32_t slices;

    // Slices of 32 where they waste no more than those of 16.
    static CodeLayout of(uint32_t m) {
        const uint32_t sixteens = (m + 15) / 16;
        return sixteens % 2 == 0 ? CodeLayout{m, 32, sixteens / 2} : CodeLayout{m, 16, sixteens};
    }

    PGWARP_BOTH uint32_t slice_bytes() const { return tile_entries * width; }
    PGWARP_BOTH uint32_t tile_bytes() const { return slices * slice_bytes(); }

    // The column that a lane takes at a step.
    PGWARP_BOTH uint32_t column(uint32_t lane, uint32_t step) const {
        return (lane + step) % width;
    }
    // Where in a tile sub-quantizer j of a lane's entry lies.
    PGWARP_BOTH uint32_t place(uint32_t lane, uint32_t j) const {
        const uint32_t step = (j % width + tile_entries - lane) % width;
        return j / width * slice_bytes() + step / 16 * (tile_entries * 16) + lane * 16 + step % 16;
    }
};

// Tables for the list scan hold four queries side by side, as halves: eight bytes are column j of
// code c for four queries, at (c * width + j) * 8. A query's own table, which is interleaved with
// three others on the way to shared memory, has units of 16 bytes, four codes by two columns:
//     (slice)(code / 4)(column / 2)(code % 4)(column % 2)
// so that the lanes of a warp store what they loaded side by side.
PGWARP_BOTH uint32_t table_units(uint32_t width) {
    return 256 / 4 * width / 2;
}

}  // namespace pgwarp::gpu
