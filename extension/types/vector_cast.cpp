// Casts: to vector(n) and halfvec(n), between vector and halfvec, from arrays of numbers, to
// float4[].

#include <cmath>
#include <cstring>

#include "extension/types/halfvec.h"

extern "C" {
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/fmgrprotos.h"
}

using namespace pgwarp;

namespace {

// Elements of fixed size without nulls are contiguous and aligned in an array.
template <typename Number>
void copy_numbers(const ArrayType* array, int dims, float* to) {
    const auto* numbers = reinterpret_cast<const Number*>(ARR_DATA_PTR(array));
    for (int i = 0; i < dims; i++) to[i] = static_cast<float>(numbers[i]);
}

void copy_numerics(ArrayType* array, float* to) {
    Datum* numerics;
    int count;
    deconstruct_array(array, NUMERICOID, -1, false, TYPALIGN_INT, &numerics, nullptr, &count);
    for (int i = 0; i < count; i++) {
        to[i] = DatumGetFloat4(DirectFunctionCall1(numeric_float4, numerics[i]));
    }
    pfree(numerics);
}

template <typename Any>
Any* with_expected_dims(FunctionCallInfo fcinfo) {
    Any* vector = datum_get<Any>(PG_GETARG_DATUM(0));
    check_expected_dims(PG_GETARG_INT32(1), vector->dims);
    return vector;
}

template <typename Any>
Any* from_array(FunctionCallInfo fcinfo) {
    ArrayType* array = PG_GETARG_ARRAYTYPE_P(0);
    const int32 typmod = PG_GETARG_INT32(1);

    if (ARR_NDIM(array) > 1)
        ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION), errmsg("array must be 1-D")));
    if (ARR_HASNULL(array) && array_contains_nulls(array))
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("array must not contain nulls")));
    const int dims = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
    check_dims_of<Any>(dims);
    check_expected_dims(typmod, dims);

    auto* numbers = static_cast<float*>(palloc(static_cast<Size>(dims) * sizeof(float)));
    switch (ARR_ELEMTYPE(array)) {
        case INT4OID:
            copy_numbers<int32>(array, dims, numbers);
            break;
        case FLOAT4OID:
            copy_numbers<float4>(array, dims, numbers);
            break;
        case FLOAT8OID:
            copy_numbers<float8>(array, dims, numbers);
            break;
        case NUMERICOID:
            copy_numerics(array, numbers);
            break;
        default:
            ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION), errmsg("unsupported array type")));
    }
    Any* result = new_value<Any>(dims);
    set_elements(result, numbers);
    pfree(numbers);
    return result;
}

// An array of `count` float4, uninitialized.
ArrayType* new_array(int count) {
    const Size size = ARR_OVERHEAD_NONULLS(1) + static_cast<Size>(count) * sizeof(float4);
    auto* array = static_cast<ArrayType*>(palloc0(size));
    SET_VARSIZE(array, size);
    array->ndim = 1;
    array->elemtype = FLOAT4OID;
    ARR_DIMS(array)[0] = count;
    ARR_LBOUND(array)[0] = 1;
    return array;
}

void read_elements(const Vector* vector, float* to) {
    std::memcpy(to, vector->x, static_cast<Size>(vector->dims) * sizeof(float));
}

void read_elements(const HalfVector* vector, float* to) {
    to_floats(vector->x, static_cast<size_t>(vector->dims), to);
}

template <typename Any>
ArrayType* to_array(FunctionCallInfo fcinfo) {
    const Any* vector = datum_get<Any>(PG_GETARG_DATUM(0));
    ArrayType* array = new_array(vector->dims);
    read_elements(vector, reinterpret_cast<float*>(ARR_DATA_PTR(array)));
    return array;
}

}  // namespace

PGWARP_FUNCTION(pgwarp_vector) {
    PG_RETURN_POINTER(with_expected_dims<Vector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_array_to_vector) {
    PG_RETURN_POINTER(from_array<Vector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_vector_to_float4) {
    PG_RETURN_ARRAYTYPE_P(to_array<Vector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_halfvec) {
    PG_RETURN_POINTER(with_expected_dims<HalfVector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_array_to_halfvec) {
    PG_RETURN_POINTER(from_array<HalfVector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_halfvec_to_float4) {
    PG_RETURN_ARRAYTYPE_P(to_array<HalfVector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_vector_to_halfvec) {
    const Vector* vector = with_expected_dims<Vector>(fcinfo);
    HalfVector* result = new_value<HalfVector>(vector->dims);
    set_elements(result, vector->x);
    PG_RETURN_POINTER(result);
}

PGWARP_FUNCTION(pgwarp_halfvec_to_vector) {
    const HalfVector* vector = with_expected_dims<HalfVector>(fcinfo);
    Vector* result = new_value<Vector>(vector->dims);
    read_elements(vector, result->x);
    PG_RETURN_POINTER(result);
}
