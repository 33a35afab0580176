// Casts: vector to vector(n), arrays of numbers to vector, vector to float4[].

#include <cmath>
#include <cstring>

#include "extension/types/vector.h"

extern "C" {
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/fmgrprotos.h"
}

using namespace pgwarp;

namespace {

// Elements of fixed size without nulls are contiguous and aligned in an array.
template <typename Number>
void copy_numbers(const ArrayType* array, Vector* vector) {
    const auto* numbers = reinterpret_cast<const Number*>(ARR_DATA_PTR(array));
    for (int i = 0; i < vector->dims; i++) vector->x[i] = static_cast<float>(numbers[i]);
}

void copy_numerics(ArrayType* array, Vector* vector) {
    Datum* numerics;
    int count;
    deconstruct_array(array, NUMERICOID, -1, false, TYPALIGN_INT, &numerics, nullptr, &count);
    for (int i = 0; i < count; i++) {
        vector->x[i] = DatumGetFloat4(DirectFunctionCall1(numeric_float4, numerics[i]));
    }
    pfree(numerics);
}

}  // namespace

PGWARP_FUNCTION(pgwarp_vector) {
    Vector* vector = datum_get_vector(PG_GETARG_DATUM(0));
    check_expected_dims(PG_GETARG_INT32(1), vector->dims);
    PG_RETURN_POINTER(vector);
}

PGWARP_FUNCTION(pgwarp_array_to_vector) {
    ArrayType* array = PG_GETARG_ARRAYTYPE_P(0);
    const int32 typmod = PG_GETARG_INT32(1);

    if (ARR_NDIM(array) > 1)
        ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION), errmsg("array must be 1-D")));
    if (ARR_HASNULL(array) && array_contains_nulls(array))
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("array must not contain nulls")));
    const int dims = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
    check_dims(dims);
    check_expected_dims(typmod, dims);

    Vector* result = new_vector(dims);
    switch (ARR_ELEMTYPE(array)) {
        case INT4OID:
            copy_numbers<int32>(array, result);
            break;
        case FLOAT4OID:
            copy_numbers<float4>(array, result);
            break;
        case FLOAT8OID:
            copy_numbers<float8>(array, result);
            break;
        case NUMERICOID:
            copy_numerics(array, result);
            break;
        default:
            ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION), errmsg("unsupported array type")));
    }
    check_elements(result);
    PG_RETURN_POINTER(result);
}

PGWARP_FUNCTION(pgwarp_vector_to_float4) {
    const Vector* vector = datum_get_vector(PG_GETARG_DATUM(0));
    const Size data_size = static_cast<Size>(vector->dims) * sizeof(float4);
    const Size size = ARR_OVERHEAD_NONULLS(1) + data_size;

    auto* array = static_cast<ArrayType*>(palloc0(size));
    SET_VARSIZE(array, size);
    array->ndim = 1;
    array->elemtype = FLOAT4OID;
    ARR_DIMS(array)[0] = vector->dims;
    ARR_LBOUND(array)[0] = 1;
    std::memcpy(ARR_DATA_PTR(array), vector->x, data_size);
    PG_RETURN_ARRAYTYPE_P(array);
}
