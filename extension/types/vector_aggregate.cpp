// avg(vector). (sum(vector) needs the operator + only.) The state is an array of float8: the number
// of vectors, then the sum of each element.

#include <cmath>
#include <cstring>

#include "extension/types/vector.h"

extern "C" {
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/float.h"
}

using namespace pgwarp;

namespace {

// A state array, checked: SQL can call these functions with any array.
struct State {
    ArrayType* array;
    float8* count;
    float8* sums;
    int dims;  // 0 before the first vector

    State(ArrayType* state_array, const char* caller) : array(state_array) {
        if (ARR_NDIM(array) != 1 || ARR_DIMS(array)[0] < 1 || ARR_HASNULL(array) ||
            ARR_ELEMTYPE(array) != FLOAT8OID)
            elog(ERROR, "%s: expected state array", caller);
        count = reinterpret_cast<float8*>(ARR_DATA_PTR(array));
        sums = count + 1;
        dims = ARR_DIMS(array)[0] - 1;
    }

    static State make(int dims) {
        const Size size = ARR_OVERHEAD_NONULLS(1) + (static_cast<Size>(dims) + 1) * sizeof(float8);
        auto* array = static_cast<ArrayType*>(palloc0(size));
        SET_VARSIZE(array, size);
        array->ndim = 1;
        array->elemtype = FLOAT8OID;
        ARR_DIMS(array)[0] = dims + 1;
        ARR_LBOUND(array)[0] = 1;
        return State(array, "");
    }

    State copy() const {
        State result = make(dims);
        std::memcpy(result.count, count, (static_cast<Size>(dims) + 1) * sizeof(float8));
        return result;
    }

    template <typename Number>
    void add(const Number* values) {
        for (int i = 0; i < dims; i++) {
            sums[i] += values[i];
            if (std::isinf(sums[i])) float_overflow_error();
        }
    }
};

}  // namespace

PGWARP_FUNCTION(pgwarp_vector_accum) {
    State state(PG_GETARG_ARRAYTYPE_P(0), "vector_accum");
    const Vector* vector = datum_get_vector(PG_GETARG_DATUM(1));

    if (state.dims == 0) {
        State first = State::make(vector->dims);
        *first.count = *state.count + 1;
        for (int i = 0; i < vector->dims; i++) first.sums[i] = vector->x[i];
        PG_RETURN_ARRAYTYPE_P(first.array);
    }
    check_expected_dims(state.dims, vector->dims);

    // An aggregate owns its state; a call outside of an aggregate gets a new array.
    if (!AggCheckCallContext(fcinfo, nullptr)) state = state.copy();
    *state.count += 1;
    state.add(vector->x);
    PG_RETURN_ARRAYTYPE_P(state.array);
}

PGWARP_FUNCTION(pgwarp_vector_combine) {
    const State a(PG_GETARG_ARRAYTYPE_P(0), "vector_combine");
    const State b(PG_GETARG_ARRAYTYPE_P(1), "vector_combine");

    State result = a.dims == 0 ? b.copy() : a.copy();
    if (result.dims != 0) check_dims(result.dims);
    *result.count = *a.count + *b.count;
    if (a.dims != 0 && b.dims != 0) {
        check_expected_dims(a.dims, b.dims);
        result.add(b.sums);
    }
    PG_RETURN_ARRAYTYPE_P(result.array);
}

PGWARP_FUNCTION(pgwarp_vector_avg) {
    const State state(PG_GETARG_ARRAYTYPE_P(0), "vector_avg");
    if (*state.count == 0) PG_RETURN_NULL();

    check_dims(state.dims);
    Vector* result = new_vector(state.dims);
    for (int i = 0; i < state.dims; i++) {
        result->x[i] = static_cast<float>(state.sums[i] / *state.count);
    }
    check_elements(result);
    PG_RETURN_POINTER(result);
}
