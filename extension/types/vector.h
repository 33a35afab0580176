// The vector type: its layout, in memory and on disk, and what the functions of all types of
// vectors share. Only files of this folder include it; others ask a VectorType (vector_type.h).
#pragma once

#include "extension/compat.h"
#include "extension/limits.h"
#include "extension/types/checks.h"
#include "extension/types/vector_cache.h"

namespace pgwarp {

// Byte for byte pgvector's vector, so that data, dumps and binary clients can move between the two.
struct Vector {
    using Element = float;
    static constexpr const char* type_name = "vector";

    int32 vl_len_;  // varlena header: SET_VARSIZE only
    int16 dims;
    int16 unused;  // zero
    float x[FLEXIBLE_ARRAY_MEMBER];
};
static_assert(sizeof(Vector) == 8 && offsetof(Vector, dims) == 4 && offsetof(Vector, x) == 8);

// Functions of all types: Any is Vector, or HalfVector (halfvec.h).

template <typename Any>
Any* datum_get(Datum datum) {
    return reinterpret_cast<Any*>(PG_DETOAST_DATUM(datum));
}

// The vector of a datum, read-only: from a scan's cache, or else detoasted.
template <typename Any>
const Any* find(Datum datum) {
    return reinterpret_cast<const Any*>(find_value(datum));
}

// A vector of `dims` uninitialized elements.
template <typename Any>
Any* new_value(int dims) {
    const Size size = offsetof(Any, x) + static_cast<Size>(dims) * sizeof(typename Any::Element);
    auto* vector = static_cast<Any*>(palloc(size));
    SET_VARSIZE(vector, size);
    vector->dims = static_cast<int16>(dims);
    vector->unused = 0;
    return vector;
}

template <typename Any>
void check_dims_of(int dims) {
    check_dims(dims, Any::type_name);
}

template <typename Any>
void check_same_dims(const Any* a, const Any* b) {
    check_same_dims(static_cast<uint32>(a->dims), static_cast<uint32>(b->dims), Any::type_name);
}

// Overloads for each type, so that functions of all types can set and check elements.

// Sets the elements from floats. Reports an error where one is infinite or NaN.
inline void set_elements(Vector* vector, const float* values) {
    memcpy(vector->x, values, static_cast<Size>(vector->dims) * sizeof(float));
    check_elements(vector->x, vector->dims, Vector::type_name);
}

}  // namespace pgwarp
