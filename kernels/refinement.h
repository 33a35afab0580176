// Refinement codes: eight bits for each dimension of a residual, to order candidates that shorter
// codes found, without their vectors.
//
// A residual r = x - c is taken as r' = scale * code, with codes from -127 to 127, and e = r - r'.
// With x' = c + r',
//     |q - x|^2 = |q - x'|^2 + |e|^2 - 2 <q - x', e>
//     -<q, x>   = -<q, c + r'> - <q, e>
// The last term is unknown, and at most 2 |q - x'| |e|, or |q| |e|. The rest is
//     list term  +  factor * <q, r'>  +  offset,   offset = |r'|^2 + 2 <c, r'> + |e|^2
// without the offset for inner products. Sums of floats err, too: those of list terms and offsets,
// and those of the exact distances that a row is compared by later. Their errors are relative to
// what is added up, which can be far more than the sum, so an inner product knows |c|.
//
// with the list terms that all codes have (quantizer.h). The product is one of integers: the query
// is rounded to at most sixteen bits, so that no sum overflows 32.
#pragma once

#include "kernels/common.h"
#include "kernels/host_device.h"
#include "kernels/metric.h"

namespace pgwarp {

// Stored on disk, in front of the codes.
struct RefinementHead {
    float scale;
    float offset;  // inner products: |c|
    float error;   // |e|
    float norm;    // |r'|
};
static_assert(sizeof(RefinementHead) == 16);

inline constexpr uint32_t max_refined_dims = 8000;

// Bytes of a head and its codes, with zeros after them, where lists are sent to devices and kept
// there: a multiple of 16, as wide as a thread loads.
PGWARP_HOST_DEVICE constexpr uint32_t refinement_stride(uint32_t dims) {
    return static_cast<uint32_t>(sizeof(RefinementHead)) + (dims + 15) / 16 * 16;
}

// Encodes a row whose list has this centroid. `codes` is (dims).
RefinementHead encode_refinement(Metric metric, const float* row, const float* centroid,
                                 uint32_t dims, int8_t* codes) noexcept;

// A query, rounded. The caller owns the memory.
struct RefinementQuery {
    Metric metric;
    uint32_t dims;
    const int16_t* values;  // (dims)
    float scale;
    float norm;      // |q|
    float rounding;  // |q - q'|
};
RefinementQuery make_refinement_query(Metric metric, const float* query, uint32_t dims,
                                      int16_t* values) noexcept;

// In the units of distances by code: squared L2, or the negative inner product.
struct RefinedDistance {
    float distance;
    // The distance of the row differs by at most this, also the one that kernels/distance.h
    // computes, unless a float cannot hold the squared norm of a vector under cosine. It is
    // infinite where something overflowed.
    float error;
};
RefinedDistance refined_distance(const RefinementQuery& query, float list_term,
                                 const RefinementHead& head, const int8_t* codes) noexcept;

// No distance of the row is less, and none is more.
struct RefinedRange {
    float least;
    float most;
};
RefinedRange refined_range(const RefinedDistance& refined) noexcept;

// Selects the instruction set again; for tests only.
void choose_refinement_target() noexcept;

}  // namespace pgwarp
