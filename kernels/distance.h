// Distances between vectors of float32 or of halves, with the best instruction set of this machine.
//
// Sums are kept in float32 lanes, as in pgvector: results can differ from pgvector's in the last
// digits, since lanes are added up in another order. None of these functions throws or allocates.
#pragma once

#include "kernels/bfloat16.h"
#include "kernels/common.h"
#include "kernels/float16.h"

namespace pgwarp {

float squared_l2_distance(const float* a, const float* b, size_t dims) noexcept;
float dot_product(const float* a, const float* b, size_t dims) noexcept;
float l1_distance(const float* a, const float* b, size_t dims) noexcept;

// Halves must be finite. The result is that of the same values as floats, to the last bit.
float squared_l2_distance(const float* a, const float16* b, size_t dims) noexcept;
float squared_l2_distance(const float16* a, const float16* b, size_t dims) noexcept;
float dot_product(const float* a, const float16* b, size_t dims) noexcept;
float dot_product(const float16* a, const float16* b, size_t dims) noexcept;
float l1_distance(const float* a, const float16* b, size_t dims) noexcept;
float l1_distance(const float16* a, const float16* b, size_t dims) noexcept;

struct CosineParts {
    float product;         // ⟨a, b⟩
    float squared_norm_a;  // |a|²
    float squared_norm_b;  // |b|²
};
CosineParts cosine_parts(const float* a, const float* b, size_t dims) noexcept;
CosineParts cosine_parts(const float* a, const float16* b, size_t dims) noexcept;
CosineParts cosine_parts(const float16* a, const float16* b, size_t dims) noexcept;

// |a|², summed in float64: it must not overflow where the elements are finite.
double squared_norm(const float* a, size_t dims) noexcept;
double squared_norm(const float16* a, size_t dims) noexcept;

// Many vectors at a constant stride: centroids, a block of the heap, a training sample. Elements
// are float or bfloat16.
template <typename Element>
struct RowsOf {
    const Element* data;
    size_t stride;  // elements from one row to the next, at least the dimensions
    size_t count;
};
using Rows = RowsOf<float>;
using HalfRows = RowsOf<bfloat16>;

// distances is (row): the query against every row. The query is loaded once for several rows. A
// row's result does not depend on the rows around it, so equal rows tie exactly.
void squared_l2_distances(const float* query, Rows rows, size_t dims, float* distances) noexcept;
void squared_l2_distances(const float* query, HalfRows rows, size_t dims,
                          float* distances) noexcept;
void dot_products(const float* query, Rows rows, size_t dims, float* products) noexcept;
void dot_products(const float* query, HalfRows rows, size_t dims, float* products) noexcept;

// The instruction set in use, by Highway's name for it: "AVX2", "NEON".
const char* distance_target() noexcept;

// Selects the instruction set again; for tests only, after restricting Highway's targets.
void choose_distance_target() noexcept;

}  // namespace pgwarp
