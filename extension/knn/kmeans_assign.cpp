// kmeans_assign: the nearest of an array of centroids, for one vector.
//
// A query calls this for every row of a table with the same array. Deconstructing the array costs
// as much as the search, and detoasting it costs more. So the centroids are cached as a matrix
// while they are certain to be the same: the argument is a constant, or its TOAST pointer is the
// one of the call before. Any other array is searched in place.

#include <cstring>
#include <limits>

#include "kernels/distance.h"
#include "extension/types/vector_cache.h"
#include "extension/types/vector_type.h"

extern "C" {
#include "access/detoast.h"
#include "access/tupmacs.h"
#include "catalog/pg_type.h"
#include "nodes/primnodes.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

struct Centroids {
    bool constant;
    varatt_external pointer;  // TOAST pointer of the array; unused if constant
    VectorType type;          // of the centroids
    uint32 count;
    uint32 dims;
    float* matrix;     // (count)(dims); null: nothing cached
    float* distances;  // (count)
};

// Calls visit(number, vector) for each element. Elements that the type does not store as floats are
// in the current memory context meanwhile.
template <typename Visit>
void visit_centroids(ArrayType* array, const VectorType& type, Visit visit) {
    const int count = ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
    if (ARR_NDIM(array) > 1)
        ereport(ERROR, (errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
                        errmsg("centroids must be an array of one dimension")));
    if (count == 0)
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("centroids must not be empty")));
    if (array_contains_nulls(array))
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                        errmsg("centroids must not contain nulls")));
    // The elements of an array are neither toasted nor packed.
    const char* at = ARR_DATA_PTR(array);
    for (int i = 0; i < count; ++i) {
        at = reinterpret_cast<char*>(att_align_nominal(at, TYPALIGN_INT));
        const auto* value = reinterpret_cast<const varlena*>(at);
        const VectorView centroid = type.view(value);
        visit(static_cast<uint32>(i), centroid);
        type.end_view(centroid, value);
        at += VARSIZE(at);
    }
}

// A parameter (Param) does not count: PL/pgSQL evaluates one expression with many values of it.
bool is_constant(const FmgrInfo* function, int argument) {
    const Node* call = function->fn_expr;
    if (!call || !IsA(call, FuncExpr)) return false;
    const List* arguments = reinterpret_cast<const FuncExpr*>(call)->args;
    return argument < list_length(arguments) && IsA(list_nth(arguments, argument), Const);
}

bool is_stored(Datum datum, varatt_external* pointer) {
    varlena* value = reinterpret_cast<varlena*>(DatumGetPointer(datum));
    if (!VARATT_IS_EXTERNAL_ONDISK(value)) return false;
    VARATT_EXTERNAL_GET_POINTER(*pointer, value);
    return true;
}

bool is_same(const Centroids* kept, Datum datum) {
    if (!kept || !kept->matrix) return false;
    varatt_external pointer;
    return kept->constant ||
           (is_stored(datum, &pointer) && memcmp(&pointer, &kept->pointer, sizeof(pointer)) == 0);
}

// Caches the centroids in fn_extra for later calls.
Centroids* keep(FmgrInfo* function, Datum datum, ArrayType* array, bool constant) {
    auto* kept = static_cast<Centroids*>(function->fn_extra);
    if (kept && kept->matrix) {
        pfree(kept->matrix);
        pfree(kept->distances);
    }
    if (!kept) kept = static_cast<Centroids*>(MemoryContextAlloc(function->fn_mcxt, sizeof(*kept)));
    memset(kept, 0, sizeof(*kept));
    function->fn_extra = kept;
    kept->constant = constant;
    if (!constant) is_stored(datum, &kept->pointer);
    kept->type = VectorType::of(ARR_ELEMTYPE(array));
    kept->count = static_cast<uint32>(ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)));
    float* matrix = nullptr;
    visit_centroids(array, kept->type, [&](uint32 i, const VectorView& centroid) {
        if (i == 0) {
            kept->dims = centroid.dims;
            matrix = static_cast<float*>(MemoryContextAllocHuge(
                function->fn_mcxt, Size{kept->count} * kept->dims * sizeof(float)));
        }
        check_same_dims(kept->dims, centroid.dims, kept->type.name());
        memcpy(matrix + Size{i} * kept->dims, centroid.values, kept->dims * sizeof(float));
    });
    kept->distances =
        static_cast<float*>(MemoryContextAllocHuge(function->fn_mcxt, kept->count * sizeof(float)));
    kept->matrix = matrix;
    return kept;
}

uint32 nearest_of(const Centroids* kept, const VectorView& vector) {
    check_same_dims(vector.dims, kept->dims, kept->type.name());
    squared_l2_distances(vector.values, {kept->matrix, kept->dims, kept->count}, kept->dims,
                         kept->distances);
    uint32 nearest = 0;
    for (uint32 i = 1; i < kept->count; ++i)
        if (kept->distances[i] < kept->distances[nearest]) nearest = i;
    return nearest;
}

uint32 nearest_in(ArrayType* array, const VectorView& vector) {
    uint32 nearest = 0;
    float least = std::numeric_limits<float>::infinity();
    const VectorType type = VectorType::of(ARR_ELEMTYPE(array));
    visit_centroids(array, type, [&](uint32 i, const VectorView& centroid) {
        check_same_dims(vector.dims, centroid.dims, type.name());
        const float distance = squared_l2_distance(vector.values, centroid.values, vector.dims);
        if (distance < least) {
            least = distance;
            nearest = i;
        }
    });
    return nearest;
}

int32 assign(FunctionCallInfo fcinfo, const VectorView& vector) {
    const Datum given = PG_GETARG_DATUM(1);
    FmgrInfo* function = fcinfo->flinfo;
    const auto* kept = static_cast<Centroids*>(function->fn_extra);
    if (!is_same(kept, given)) {
        ArrayType* array = DatumGetArrayTypeP(given);
        const bool constant = is_constant(function, 1);
        varatt_external pointer;
        if (!constant && !is_stored(given, &pointer))
            return static_cast<int32>(nearest_in(array, vector)) + 1;
        kept = keep(function, given, array, constant);
        if (reinterpret_cast<void*>(array) != DatumGetPointer(given)) pfree(array);
    }
    return static_cast<int32>(nearest_of(kept, vector)) + 1;
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_kmeans_assign) {
    PG_RETURN_INT32(assign(fcinfo, vector_type.view(find_value(PG_GETARG_DATUM(0)))));
}

PGWARP_FUNCTION(pgwarp_kmeans_assign_halfvec) {
    PG_RETURN_INT32(assign(fcinfo, halfvec_type.view(find_value(PG_GETARG_DATUM(0)))));
}

// A literal without a type: SQL declares this function with text, so that it is not ambiguous. It
// is of the centroids' type.
PGWARP_FUNCTION(pgwarp_kmeans_assign_text) {
    const Oid element = ARR_ELEMTYPE(DatumGetArrayTypeP(PG_GETARG_DATUM(1)));
    Oid input;
    Oid parameter;
    getTypeInputInfo(element, &input, &parameter);
    char* literal = text_to_cstring(PG_GETARG_TEXT_PP(0));
    const Datum value = OidInputFunctionCall(input, literal, parameter, -1);
    PG_RETURN_INT32(assign(fcinfo, VectorType::of(element).view(value)));
}
