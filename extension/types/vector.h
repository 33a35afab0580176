// The vector type: its layout, in memory and on disk, and what all its functions share.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

constexpr int max_dims = 16000;

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

// A vector of `dims` uninitialized elements.
Vector* new_vector(int dims);

// Each returns true or reports an error. With the context of an input function it may instead save
// the error there and return false (see PGWARP_REJECT).
bool check_dims(int dims, fmNodePtr context = nullptr);
bool check_expected_dims(int32 typmod, int dims, fmNodePtr context = nullptr);
bool check_element(float value, fmNodePtr context = nullptr);

void check_elements(const Vector* vector);
void check_same_dims(const Vector* a, const Vector* b);

}  // namespace pgwarp
