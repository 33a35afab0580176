#pragma once

#include "kernels/common.h"

namespace pgwarp::gpu {

// Halves of a split row (see products.h): three parts, each padded for 16-byte loads.
inline uint32_t split_width(uint32_t dims) {
    return 3 * ((dims + 7) / 8 * 8);
}

// Rows of the right side of a product, and so columns of the result, padded: cuBLAS is twice as
// slow if their number is not a multiple of eight.
inline size_t padded_rows(size_t rows) {
    return (rows + 7) / 8 * 8;
}

}  // namespace pgwarp::gpu
