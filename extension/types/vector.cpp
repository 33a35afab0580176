// What all functions of the vector type share: allocation and validation.

#include <cmath>

#include "extension/types/vector.h"

namespace pgwarp {

Vector* new_vector(int dims) {
    const Size size = offsetof(Vector, x) + static_cast<Size>(dims) * sizeof(float);
    auto* vector = static_cast<Vector*>(palloc(size));
    SET_VARSIZE(vector, size);
    vector->dims = static_cast<int16>(dims);
    vector->unused = 0;
    return vector;
}

bool check_dims(int dims, fmNodePtr context) {
    if (dims < 1)
        PGWARP_REJECT(
            context, false,
            (errcode(ERRCODE_DATA_EXCEPTION), errmsg("vector must have at least 1 dimension")));
    if (dims > max_dims)
        PGWARP_REJECT(context, false,
                      (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                       errmsg("vector cannot have more than %d dimensions", max_dims)));
    return true;
}

bool check_expected_dims(int32 typmod, int dims, fmNodePtr context) {
    if (typmod != -1 && typmod != dims)
        PGWARP_REJECT(context, false,
                      (errcode(ERRCODE_DATA_EXCEPTION),
                       errmsg("expected %d dimensions, not %d", typmod, dims)));
    return true;
}

bool check_element(float value, fmNodePtr context) {
    if (std::isnan(value))
        PGWARP_REJECT(context, false,
                      (errcode(ERRCODE_DATA_EXCEPTION), errmsg("NaN not allowed in vector")));
    if (std::isinf(value))
        PGWARP_REJECT(
            context, false,
            (errcode(ERRCODE_DATA_EXCEPTION), errmsg("infinite value not allowed in vector")));
    return true;
}

void check_elements(const Vector* vector) {
    // x - x is NaN for infinity and NaN: the sum stays 0 while all elements are finite.
    float odd = 0;
    for (int i = 0; i < vector->dims; i++) odd += vector->x[i] - vector->x[i];
    if (odd == 0) return;
    for (int i = 0; i < vector->dims; i++) check_element(vector->x[i]);
}

void check_same_dims(const Vector* a, const Vector* b) {
    if (a->dims != b->dims)
        ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION),
                        errmsg("different vector dimensions %d and %d", a->dims, b->dims)));
}

}  // namespace pgwarp
