// Small dense tiles of distances: some dozens of rows from all over memory, each with each.
#pragma once

#include "kernels/knn_graph.h"

#include <vector>

namespace pgwarp {

// Rows that were brought together. A distance between two of them is
//   value + terms[a] + terms[b]
// with the value that tile_values() gives.
//
// For L2 the value is -2 <a - c, b - c> and the terms are squared norms. The centre c is a row
// amidst them, so that rounding errors are relative to the neighborhood, not to the origin's
// distance, of which little may be left over.
struct Tile {
    const float* data;  // (rows)(stride), padded with zeros to whole vectors; rows to fours
    size_t stride;
    float* terms;  // (rows)
};

size_t tile_stride(uint32_t dims);

// Copies rows[numbers[i]] less the centre into data, and sets terms. Zeroes up to three rows
// behind.
void gather_tile(const GraphRows& rows, const uint32_t* numbers, size_t count, const float* centre,
                 float* data, float* terms);

struct TileRectangle {
    const float* a;  // (a_rows)(stride)
    size_t a_rows;
    const float* b;  // (b_rows)(stride)
    size_t b_rows;
    size_t stride;
    GraphMetric metric;
    bool triangle;      // a is b: only pairs a < b are wanted, others are unspecified
    float* out;         // (a_rows)(out_stride)
    size_t out_stride;  // at least b_rows, rounded up to four
};

// Both sides are readable up to the next multiple of four rows, and `out` writable.
void tile_values(const TileRectangle& rectangle);

// Chooses the instruction set again. Only a test has reason to.
void choose_tile_target();

}  // namespace pgwarp
