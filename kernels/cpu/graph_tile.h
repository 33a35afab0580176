// Small dense tiles of distances: a few dozen rows from all over memory, all pairs.
#pragma once

#include "kernels/knn_graph.h"

#include <vector>

namespace pgwarp {

// Rows gathered from memory. A distance between two of them is
//   value + terms[a] + terms[b]
// with the value from tile_values().
//
// For L2 the value is -2 <a - c, b - c> and the terms are squared norms. The centre c is one of the
// rows or near them, so that rounding errors are relative to the neighborhood's size. Relative to
// the distance from the origin they could exceed the distances themselves.
struct Tile {
    const float* data;  // (rows)(stride), zero-padded to whole vectors and groups of four rows
    size_t stride;
    float* terms;  // (rows)
};

size_t tile_stride(uint32_t dims);

// Copies rows[numbers[i]] less the centre into data, and sets terms. Zeroes up to three rows of
// padding.
void gather_tile(const GraphRows& rows, const uint32_t* numbers, size_t count, const float* centre,
                 float* data, float* terms);

struct TileRectangle {
    const float* a;  // (a_rows)(stride)
    size_t a_rows;
    const float* b;  // (b_rows)(stride)
    size_t b_rows;
    size_t stride;
    Metric metric;
    bool triangle;      // a is b: only pairs a < b are computed, others are unspecified
    float* out;         // (a_rows)(out_stride)
    size_t out_stride;  // at least b_rows, rounded up to four
};

// Both inputs are readable, and `out` writable, up to the next multiple of four rows.
void tile_values(const TileRectangle& rectangle);

// Selects the instruction set again; for tests only.
void choose_tile_target();

}  // namespace pgwarp
