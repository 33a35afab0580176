// Inner products of many rows with many others: a matrix product that several threads may call at
// once (Debian's serial OpenBLAS hands out its workspace without a lock), sized for tiles of
// k-means and exact search.
#pragma once

#include "kernels/common.h"

namespace pgwarp {

struct Products {
    const float* a;  // (a_rows)(dims)
    size_t a_rows;
    const float* b;  // (b_rows)(dims)
    size_t b_rows;
    size_t dims;
    float scale;
    float* out;  // (a_rows)(b_rows): scale * <a, b>
};

// Floats of scratch that inner_products() needs.
size_t products_scratch(size_t a_rows);

// The result for a pair of rows does not depend on the rows around them.
void inner_products(const Products& products, float* scratch);

// Selects the instruction set again; for tests only.
void choose_products_target();

}  // namespace pgwarp
