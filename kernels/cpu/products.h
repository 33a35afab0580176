// Inner products of many rows with many others: a matrix product that threads may call side by side
// (Debian's serial OpenBLAS hands out its working memory without a lock), sized for tiles of
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

// Floats of working memory that inner_products() needs.
size_t products_scratch(size_t a_rows);

// What comes out for a pair of rows does not depend on the rows around them.
void inner_products(const Products& products, float* scratch);

// Chooses the instruction set again. Only a test has reason to.
void choose_products_target();

}  // namespace pgwarp
