// The order of vectors, for btree, ORDER BY and DISTINCT: lexicographic like that of arrays; a
// prefix comes before the longer vector.

#include "kernels/bfloat16.h"
#include "extension/types/halfvec.h"

using namespace pgwarp;

namespace {

template <typename Any>
int compare_vectors(const Any* a, const Any* b) {
    const int common = Min(a->dims, b->dims);
    for (int i = 0; i < common; i++) {
        const float x = to_float(a->x[i]);
        const float y = to_float(b->x[i]);
        if (x < y) return -1;
        if (x > y) return 1;
    }
    return (a->dims > b->dims) - (a->dims < b->dims);
}

// Frees detoasted copies: sorts and index builds call this many times in one memory context.
template <typename Any>
int compare_arguments(FunctionCallInfo fcinfo) {
    Any* a = datum_get<Any>(PG_GETARG_DATUM(0));
    Any* b = datum_get<Any>(PG_GETARG_DATUM(1));
    const int order = compare_vectors(a, b);
    PG_FREE_IF_COPY(a, 0);
    PG_FREE_IF_COPY(b, 1);
    return order;
}

}  // namespace

PGWARP_FUNCTION(pgwarp_vector_cmp) {
    PG_RETURN_INT32(compare_arguments<Vector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_vector_lt) {
    PG_RETURN_BOOL(compare_arguments<Vector>(fcinfo) < 0);
}

PGWARP_FUNCTION(pgwarp_vector_le) {
    PG_RETURN_BOOL(compare_arguments<Vector>(fcinfo) <= 0);
}

PGWARP_FUNCTION(pgwarp_vector_eq) {
    PG_RETURN_BOOL(compare_arguments<Vector>(fcinfo) == 0);
}

PGWARP_FUNCTION(pgwarp_vector_ne) {
    PG_RETURN_BOOL(compare_arguments<Vector>(fcinfo) != 0);
}

PGWARP_FUNCTION(pgwarp_vector_ge) {
    PG_RETURN_BOOL(compare_arguments<Vector>(fcinfo) >= 0);
}

PGWARP_FUNCTION(pgwarp_vector_gt) {
    PG_RETURN_BOOL(compare_arguments<Vector>(fcinfo) > 0);
}

PGWARP_FUNCTION(pgwarp_halfvec_cmp) {
    PG_RETURN_INT32(compare_arguments<HalfVector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_halfvec_lt) {
    PG_RETURN_BOOL(compare_arguments<HalfVector>(fcinfo) < 0);
}

PGWARP_FUNCTION(pgwarp_halfvec_le) {
    PG_RETURN_BOOL(compare_arguments<HalfVector>(fcinfo) <= 0);
}

PGWARP_FUNCTION(pgwarp_halfvec_eq) {
    PG_RETURN_BOOL(compare_arguments<HalfVector>(fcinfo) == 0);
}

PGWARP_FUNCTION(pgwarp_halfvec_ne) {
    PG_RETURN_BOOL(compare_arguments<HalfVector>(fcinfo) != 0);
}

PGWARP_FUNCTION(pgwarp_halfvec_ge) {
    PG_RETURN_BOOL(compare_arguments<HalfVector>(fcinfo) >= 0);
}

PGWARP_FUNCTION(pgwarp_halfvec_gt) {
    PG_RETURN_BOOL(compare_arguments<HalfVector>(fcinfo) > 0);
}
