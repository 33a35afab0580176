// Vectors made from vectors: + - * || and the functions that cut, scale and quantize.

#include <cmath>
#include <cstring>

#include "kernels/distance.h"
#include "extension/types/vector.h"

extern "C" {
#include "utils/float.h"
#include "utils/varbit.h"
}

using namespace pgwarp;

namespace {

void check_overflow(const Vector* vector) {
    for (int i = 0; i < vector->dims; i++) {
        if (std::isinf(vector->x[i])) float_overflow_error();
    }
}

// As transition function of sum(), + may overwrite the sum so far, which the aggregate owns. A
// window aggregate must not: a result that it has returned may be that sum.
bool may_overwrite_first_argument(FunctionCallInfo fcinfo) {
    return AggCheckCallContext(fcinfo, nullptr) == AGG_CONTEXT_AGGREGATE;
}

}  // namespace

PGWARP_FUNCTION(pgwarp_vector_add) {
    Vector* a = datum_get_vector(PG_GETARG_DATUM(0));
    const Vector* b = datum_get_vector(PG_GETARG_DATUM(1));
    check_same_dims(a, b);

    Vector* result = may_overwrite_first_argument(fcinfo) ? a : new_vector(a->dims);
    for (int i = 0; i < a->dims; i++) result->x[i] = a->x[i] + b->x[i];
    check_overflow(result);
    PG_RETURN_POINTER(result);
}

PGWARP_FUNCTION(pgwarp_vector_sub) {
    const Vector* a = datum_get_vector(PG_GETARG_DATUM(0));
    const Vector* b = datum_get_vector(PG_GETARG_DATUM(1));
    check_same_dims(a, b);

    Vector* result = new_vector(a->dims);
    for (int i = 0; i < a->dims; i++) result->x[i] = a->x[i] - b->x[i];
    check_overflow(result);
    PG_RETURN_POINTER(result);
}

PGWARP_FUNCTION(pgwarp_vector_mul) {
    const Vector* a = datum_get_vector(PG_GETARG_DATUM(0));
    const Vector* b = datum_get_vector(PG_GETARG_DATUM(1));
    check_same_dims(a, b);

    Vector* result = new_vector(a->dims);
    for (int i = 0; i < a->dims; i++) result->x[i] = a->x[i] * b->x[i];
    for (int i = 0; i < a->dims; i++) {
        if (std::isinf(result->x[i])) float_overflow_error();
        if (result->x[i] == 0 && a->x[i] != 0 && b->x[i] != 0) float_underflow_error();
    }
    PG_RETURN_POINTER(result);
}

PGWARP_FUNCTION(pgwarp_vector_concat) {
    const Vector* a = datum_get_vector(PG_GETARG_DATUM(0));
    const Vector* b = datum_get_vector(PG_GETARG_DATUM(1));
    check_dims(a->dims + b->dims);

    Vector* result = new_vector(a->dims + b->dims);
    std::memcpy(result->x, a->x, static_cast<size_t>(a->dims) * sizeof(float));
    std::memcpy(result->x + a->dims, b->x, static_cast<size_t>(b->dims) * sizeof(float));
    PG_RETURN_POINTER(result);
}

// Elements start .. start + count - 1, counted from 1. Like substring, it clips a range that
// extends beyond the vector at either end.
PGWARP_FUNCTION(pgwarp_subvector) {
    const Vector* vector = datum_get_vector(PG_GETARG_DATUM(0));
    const int64 start = PG_GETARG_INT32(1);
    const int64 count = PG_GETARG_INT32(2);
    if (count < 1) check_dims(0);

    const int64 first = Max(start, INT64CONST(1));
    const int64 last = Min(start + count - 1, static_cast<int64>(vector->dims));
    if (first > last) check_dims(0);

    const int dims = static_cast<int>(last - first + 1);
    Vector* result = new_vector(dims);
    std::memcpy(result->x, vector->x + first - 1, static_cast<size_t>(dims) * sizeof(float));
    PG_RETURN_POINTER(result);
}

// The zero vector has no direction and stays as it is.
PGWARP_FUNCTION(pgwarp_l2_normalize) {
    const Vector* vector = datum_get_vector(PG_GETARG_DATUM(0));
    const double norm = std::sqrt(squared_norm(vector->x, static_cast<size_t>(vector->dims)));

    Vector* result = new_vector(vector->dims);
    for (int i = 0; i < vector->dims; i++) {
        result->x[i] = norm > 0 ? static_cast<float>(vector->x[i] / norm) : 0;
    }
    check_overflow(result);
    PG_RETURN_POINTER(result);
}

// One bit per element: whether it is positive.
PGWARP_FUNCTION(pgwarp_binary_quantize) {
    const Vector* vector = datum_get_vector(PG_GETARG_DATUM(0));
    const Size size = VARBITTOTALLEN(vector->dims);
    auto* result = static_cast<VarBit*>(palloc0(size));
    SET_VARSIZE(result, size);
    VARBITLEN(result) = vector->dims;

    bits8* bytes = VARBITS(result);
    for (int i = 0; i < vector->dims; i++) {
        if (vector->x[i] > 0) bytes[i / 8] |= static_cast<bits8>(0x80 >> i % 8);
    }
    PG_RETURN_VARBIT_P(result);
}
