// Vectors made from vectors: + - * || and the functions that cut, scale and quantize.

#include <cmath>
#include <cstring>

#include "kernels/bfloat16.h"
#include "kernels/distance.h"
#include "extension/types/halfvec.h"

extern "C" {
#include "utils/float.h"
#include "utils/varbit.h"
}

using namespace pgwarp;

namespace {

// Rounds to the type's element. The product and the sum of two halves in float32, rounded to a
// half, are what one rounding of the exact result would be.
template <typename Element>
Element rounded(float value) {
    if constexpr (std::is_same_v<Element, float>)
        return value;
    else
        return to_float16(value);
}

template <typename Any>
void check_overflow(const Any* vector) {
    for (int i = 0; i < vector->dims; i++)
        if (std::isinf(to_float(vector->x[i]))) float_overflow_error();
}

// As transition function of sum(), + may overwrite the sum so far, which the aggregate owns. A
// window aggregate must not: a result that it has returned may be that sum.
bool may_overwrite_first_argument(FunctionCallInfo fcinfo) {
    return AggCheckCallContext(fcinfo, nullptr) == AGG_CONTEXT_AGGREGATE;
}

template <typename Any, typename Operation>
void combine(const Any* a, const Any* b, Any* result, Operation operation) {
    for (int i = 0; i < a->dims; i++)
        result->x[i] =
            rounded<typename Any::Element>(operation(to_float(a->x[i]), to_float(b->x[i])));
}

template <typename Any>
Any* add(FunctionCallInfo fcinfo) {
    Any* a = datum_get<Any>(PG_GETARG_DATUM(0));
    const Any* b = datum_get<Any>(PG_GETARG_DATUM(1));
    check_same_dims<Any>(a, b);
    Any* result = may_overwrite_first_argument(fcinfo) ? a : new_value<Any>(a->dims);
    combine<Any>(a, b, result, [](float x, float y) { return x + y; });
    check_overflow(result);
    return result;
}

template <typename Any>
Any* subtract(FunctionCallInfo fcinfo) {
    const Any* a = datum_get<Any>(PG_GETARG_DATUM(0));
    const Any* b = datum_get<Any>(PG_GETARG_DATUM(1));
    check_same_dims(a, b);
    Any* result = new_value<Any>(a->dims);
    combine(a, b, result, [](float x, float y) { return x - y; });
    check_overflow(result);
    return result;
}

template <typename Any>
Any* multiply(FunctionCallInfo fcinfo) {
    const Any* a = datum_get<Any>(PG_GETARG_DATUM(0));
    const Any* b = datum_get<Any>(PG_GETARG_DATUM(1));
    check_same_dims(a, b);
    Any* result = new_value<Any>(a->dims);
    combine(a, b, result, [](float x, float y) { return x * y; });
    for (int i = 0; i < a->dims; i++) {
        const float product = to_float(result->x[i]);
        if (std::isinf(product)) float_overflow_error();
        if (product == 0 && to_float(a->x[i]) != 0 && to_float(b->x[i]) != 0)
            float_underflow_error();
    }
    return result;
}

template <typename Any>
Any* concatenate(FunctionCallInfo fcinfo) {
    const Any* a = datum_get<Any>(PG_GETARG_DATUM(0));
    const Any* b = datum_get<Any>(PG_GETARG_DATUM(1));
    check_dims_of<Any>(a->dims + b->dims);
    Any* result = new_value<Any>(a->dims + b->dims);
    std::memcpy(result->x, a->x, static_cast<size_t>(a->dims) * sizeof(a->x[0]));
    std::memcpy(result->x + a->dims, b->x, static_cast<size_t>(b->dims) * sizeof(b->x[0]));
    return result;
}

// Elements start .. start + count - 1, counted from 1. Like substring, it clips a range that
// extends beyond the vector at either end.
template <typename Any>
Any* cut(FunctionCallInfo fcinfo) {
    const Any* vector = datum_get<Any>(PG_GETARG_DATUM(0));
    const int64 start = PG_GETARG_INT32(1);
    const int64 count = PG_GETARG_INT32(2);
    if (count < 1) check_dims_of<Any>(0);

    const int64 first = Max(start, INT64CONST(1));
    const int64 last = Min(start + count - 1, static_cast<int64>(vector->dims));
    if (first > last) check_dims_of<Any>(0);

    const int dims = static_cast<int>(last - first + 1);
    Any* result = new_value<Any>(dims);
    std::memcpy(result->x, vector->x + first - 1, static_cast<size_t>(dims) * sizeof(result->x[0]));
    return result;
}

// The zero vector has no direction and stays as it is.
template <typename Any>
Any* normalize(FunctionCallInfo fcinfo) {
    const Any* vector = datum_get<Any>(PG_GETARG_DATUM(0));
    const double norm = std::sqrt(squared_norm(vector->x, static_cast<size_t>(vector->dims)));

    Any* result = new_value<Any>(vector->dims);
    for (int i = 0; i < vector->dims; i++)
        result->x[i] = rounded<typename Any::Element>(
            norm > 0 ? static_cast<float>(to_float(vector->x[i]) / norm) : 0);
    check_overflow(result);
    return result;
}

// One bit per element: whether it is positive.
template <typename Any>
VarBit* quantize(FunctionCallInfo fcinfo) {
    const Any* vector = datum_get<Any>(PG_GETARG_DATUM(0));
    const Size size = VARBITTOTALLEN(vector->dims);
    auto* result = static_cast<VarBit*>(palloc0(size));
    SET_VARSIZE(result, size);
    VARBITLEN(result) = vector->dims;

    uint8* bytes = VARBITS(result);
    for (int i = 0; i < vector->dims; i++)
        if (to_float(vector->x[i]) > 0) bytes[i / 8] |= static_cast<uint8>(0x80 >> i % 8);
    return result;
}

}  // namespace

PGWARP_FUNCTION(pgwarp_vector_add) {
    PG_RETURN_POINTER(add<Vector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_vector_sub) {
    PG_RETURN_POINTER(subtract<Vector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_vector_mul) {
    PG_RETURN_POINTER(multiply<Vector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_vector_concat) {
    PG_RETURN_POINTER(concatenate<Vector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_subvector) {
    PG_RETURN_POINTER(cut<Vector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_l2_normalize) {
    PG_RETURN_POINTER(normalize<Vector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_binary_quantize) {
    PG_RETURN_VARBIT_P(quantize<Vector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_halfvec_add) {
    PG_RETURN_POINTER(add<HalfVector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_halfvec_sub) {
    PG_RETURN_POINTER(subtract<HalfVector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_halfvec_mul) {
    PG_RETURN_POINTER(multiply<HalfVector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_halfvec_concat) {
    PG_RETURN_POINTER(concatenate<HalfVector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_halfvec_subvector) {
    PG_RETURN_POINTER(cut<HalfVector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_halfvec_l2_normalize) {
    PG_RETURN_POINTER(normalize<HalfVector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_halfvec_binary_quantize) {
    PG_RETURN_VARBIT_P(quantize<HalfVector>(fcinfo));
}
