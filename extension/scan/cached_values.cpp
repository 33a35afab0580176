#include "extension/scan/cached_values.h"

#include "extension/types/vector_cache.h"
#include "extension/types/vector_type.h"

extern "C" {
#include "catalog/pg_type.h"
#include "executor/execExpr.h"
#include "utils/lsyscache.h"
}

namespace pgwarp {

namespace {

// Takes the place of a distance function of pgvector, which FmgrInfo still names. A constant
// argument stays in fcinfo for the next call: arguments are put back.
Datum call_with_values(FunctionCallInfo fcinfo) {
    const Datum given[] = {fcinfo->args[0].value, fcinfo->args[1].value};
    for (int i = 0; i < 2; ++i) fcinfo->args[i].value = PointerGetDatum(find_value(given[i]));
    const Datum distance = fcinfo->flinfo->fn_addr(fcinfo);
    for (int i = 0; i < 2; ++i) fcinfo->args[i].value = given[i];
    return distance;
}

bool is_distance_of_pgvector(Oid function) {
    Oid* types;
    int count;
    if (get_func_signature(function, &types, &count) != FLOAT8OID || count != 2) return false;
    return VectorType::of(types[0]) && VectorType::of(types[1]) && is_pgvector_function(function);
}

// Code that JIT has compiled calls the function itself: this changes nothing there.
void pass_cached_values(ExprState* expression) {
    if (!expression) return;
    for (int i = 0; i < expression->steps_len; ++i) {
        ExprEvalStep* step = &expression->steps[i];
        if (compat_is_strict_call(ExecEvalStepOp(expression, step)) && step->d.func.nargs == 2 &&
            is_distance_of_pgvector(step->d.func.finfo->fn_oid))
            step->d.func.fn_addr = call_with_values;
    }
}

}  // namespace

void pass_cached_values(IndexScanState* scan) {
    PlanState& state = scan->ss.ps;
    if (state.ps_ProjInfo) pass_cached_values(&state.ps_ProjInfo->pi_state);
    pass_cached_values(state.qual);
}

}  // namespace pgwarp
