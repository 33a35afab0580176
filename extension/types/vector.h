// The vector type: its layout, in memory and on disk, and what all its functions share. Only files
// of this folder include it; others ask a VectorType (vector_type.h).
#pragma once

#include "extension/compat.h"
#include "extension/limits.h"
#include "extension/types/checks.h"
#include "extension/types/vector_cache.h"

namespace pgwarp {

// Byte for byte pgvector's vector, so that data, dumps and binary clients can move between the two.
struct Vector {
    int32 vl_len_;  // varlena header: SET_VARSIZE only
    int16 dims;
    int16 unused;  // zero
    float x[FLEXIBLE_ARRAY_MEMBER];
};
static_assert(sizeof(Vector) == 8 && offsetof(Vector, dims) == 4 && offsetof(Vector, x) == 8);

inline Vector* datum_get_vector(Datum datum) {
    return reinterpret_cast<Vector*>(PG_DETOAST_DATUM(datum));
}

// The vector of a datum, read-only: from a scan's cache, or else detoasted.
inline const Vector* find_vector(Datum datum) {
    return reinterpret_cast<const Vector*>(find_value(datum));
}

// A vector of `dims` uninitialized elements.
Vector* new_vector(int dims);

inline void check_elements(const Vector* vector) {
    check_elements(vector->x, vector->dims);
}
inline void check_same_dims(const Vector* a, const Vector* b) {
    check_same_dims(static_cast<uint32>(a->dims), static_cast<uint32>(b->dims));
}

}  // namespace pgwarp
