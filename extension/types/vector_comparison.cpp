// The order of vectors, for btree, ORDER BY and DISTINCT: lexicographic like that of arrays; a
// prefix comes before the longer vector.

#include "extension/types/vector.h"

using namespace pgwarp;

namespace {

int compare_vectors(const Vector* a, const Vector* b) {
    const int common = Min(a->dims, b->dims);
    for (int i = 0; i < common; i++) {
        if (a->x[i] < b->x[i]) return -1;
        if (a->x[i] > b->x[i]) return 1;
    }
    return (a->dims > b->dims) - (a->dims < b->dims);
}

// Frees detoasted copies: sorts and index builds call this many times in one memory context.
int compare_arguments(FunctionCallInfo fcinfo) {
    Vector* a = datum_get_vector(PG_GETARG_DATUM(0));
    Vector* b = datum_get_vector(PG_GETARG_DATUM(1));
    const int order = compare_vectors(a, b);
    PG_FREE_IF_COPY(a, 0);
    PG_FREE_IF_COPY(b, 1);
    return order;
}

}  // namespace

PGWARP_FUNCTION(pgwarp_vector_cmp) {
    PG_RETURN_INT32(compare_arguments(fcinfo));
}

PGWARP_FUNCTION(pgwarp_vector_lt) {
    PG_RETURN_BOOL(compare_arguments(fcinfo) < 0);
}

PGWARP_FUNCTION(pgwarp_vector_le) {
    PG_RETURN_BOOL(compare_arguments(fcinfo) <= 0);
}

PGWARP_FUNCTION(pgwarp_vector_eq) {
    PG_RETURN_BOOL(compare_arguments(fcinfo) == 0);
}

PGWARP_FUNCTION(pgwarp_vector_ne) {
    PG_RETURN_BOOL(compare_arguments(fcinfo) != 0);
}

PGWARP_FUNCTION(pgwarp_vector_ge) {
    PG_RETURN_BOOL(compare_arguments(fcinfo) >= 0);
}

PGWARP_FUNCTION(pgwarp_vector_gt) {
    PG_RETURN_BOOL(compare_arguments(fcinfo) > 0);
}
