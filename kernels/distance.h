// Distances between float32 vectors, by the best instruction set this machine has.
//
// Sums are kept in float32 lanes, as pgvector keeps them: a result can differ from it in the last
// digits, since lanes are added up in another order. None of these functions throws or allocates.
#pragma once

#include "kernels/bfloat16.h"
#include "kernels/common.h"

namespace pgwarp {

float squared_l2_distance(const float* a, const float* b, size_t dims) noexcept;
float dot_product(const float* a, const float* b, size_t dims) noexcept;
float l1_distance(const float* a, const float* b, size_t dims) noexcept;

struct CosineParts {
    float product;         // ⟨a, b⟩
    float squared_norm_a;  // |a|²
    float squared_norm_b;  // |b|²
};
CosineParts cosine_parts(const float* a, const float* b, size_t dims) noexcept;

// |a|², summed in float64: a norm must not overflow where its vector's elements are finite.
double squared_norm(const float* a, size_t dims) noexcept;

// Many vectors at a fixed distance in memory: centroids, a block of the heap, a training sample.
// Elements are float or bfloat16.
template <typename Element>
struct RowsOf {
    const Element* data;
    size_t stride;  // elements from one row to the next, at least the dimensions
    size_t count;
};
using Rows = RowsOf<float>;
using HalfRows = RowsOf<bfloat16>;

// (row): the query against every row. The query is loaded once for several rows; what comes out
// for a row does not depend on the rows around it, so equal rows tie exactly.
void squared_l2_distances(const float* query, Rows rows, size_t dims, float* distances) noexcept;
void squared_l2_distances(const float* query, HalfRows rows, size_t dims,
                          float* distances) noexcept;
void dot_products(const float* query, Rows rows, size_t dims, float* products) noexcept;
void dot_products(const float* query, HalfRows rows, size_t dims, float* products) noexcept;

// The instruction set in use, by Highway's name for it: "AVX2", "NEON".
const char* distance_target() noexcept;

// Chooses again. Only a test has reason to, after narrowing what Highway may use.
void choose_distance_target() noexcept;

}  // namespace pgwarp
