// avg(vector), avg(halfvec). (sum() needs the operator + only.) The state is an array of float8:
// the number of vectors, then the sum of each element.

#include <cmath>
#include <cstring>

#include "kernels/bfloat16.h"
#include "extension/types/halfvec.h"

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

    static float8 number(float8 value) { return value; }
    template <typename Element>
    static float8 number(Element value) {
        return to_float(value);
    }

    template <typename Number>
    void add(const Number* values) {
        for (int i = 0; i < dims; i++) {
            sums[i] += number(values[i]);
            if (std::isinf(sums[i])) float_overflow_error();
        }
    }
};

template <typename Any>
ArrayType* accumulate(FunctionCallInfo fcinfo, const char* caller) {
    State state(PG_GETARG_ARRAYTYPE_P(0), caller);
    const Any* vector = datum_get<Any>(PG_GETARG_DATUM(1));

    if (state.dims == 0) {
        State first = State::make(vector->dims);
        *first.count = *state.count + 1;
        for (int i = 0; i < vector->dims; i++) first.sums[i] = State::number(vector->x[i]);
        return first.array;
    }
    check_expected_dims(state.dims, vector->dims);

    // An aggregate owns its state; a call outside of an aggregate gets a new array.
    if (!AggCheckCallContext(fcinfo, nullptr)) state = state.copy();
    *state.count += 1;
    state.add(vector->x);
    return state.array;
}

template <typename Any>
ArrayType* combine(FunctionCallInfo fcinfo, const char* caller) {
    const State a(PG_GETARG_ARRAYTYPE_P(0), caller);
    const State b(PG_GETARG_ARRAYTYPE_P(1), caller);

    State result = a.dims == 0 ? b.copy() : a.copy();
    if (result.dims != 0) check_dims_of<Any>(result.dims);
    *result.count = *a.count + *b.count;
    if (a.dims != 0 && b.dims != 0) {
        check_expected_dims(a.dims, b.dims);
        result.add(b.sums);
    }
    return result.array;
}

// Null where nothing was added.
template <typename Any>
Any* mean_of(ArrayType* array, const char* caller) {
    const State state(array, caller);
    if (*state.count == 0) return nullptr;

    check_dims_of<Any>(state.dims);
    Any* result = new_value<Any>(state.dims);
    auto* means = static_cast<float*>(palloc(static_cast<Size>(state.dims) * sizeof(float)));
    for (int i = 0; i < state.dims; i++)
        means[i] = static_cast<float>(state.sums[i] / *state.count);
    set_elements(result, means);
    pfree(means);
    return result;
}

}  // namespace

PGWARP_FUNCTION(pgwarp_vector_accum) {
    PG_RETURN_ARRAYTYPE_P(accumulate<Vector>(fcinfo, "vector_accum"));
}

PGWARP_FUNCTION(pgwarp_vector_combine) {
    PG_RETURN_ARRAYTYPE_P(combine<Vector>(fcinfo, "vector_combine"));
}

PGWARP_FUNCTION(pgwarp_vector_avg) {
    Vector* mean = mean_of<Vector>(PG_GETARG_ARRAYTYPE_P(0), "vector_avg");
    if (!mean) PG_RETURN_NULL();
    PG_RETURN_POINTER(mean);
}

PGWARP_FUNCTION(pgwarp_halfvec_accum) {
    PG_RETURN_ARRAYTYPE_P(accumulate<HalfVector>(fcinfo, "halfvec_accum"));
}

PGWARP_FUNCTION(pgwarp_halfvec_combine) {
    PG_RETURN_ARRAYTYPE_P(combine<HalfVector>(fcinfo, "halfvec_combine"));
}

PGWARP_FUNCTION(pgwarp_halfvec_avg) {
    HalfVector* mean = mean_of<HalfVector>(PG_GETARG_ARRAYTYPE_P(0), "halfvec_avg");
    if (!mean) PG_RETURN_NULL();
    PG_RETURN_POINTER(mean);
}
