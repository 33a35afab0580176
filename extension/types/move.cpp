// Casts between our types and pgvector's, of extension pgwarp_pgvector. Values are the same bytes,
// so a cast checks the dimensions at most. Where these need no check, the planner drops the call:
// ALTER TABLE ... ALTER COLUMN ... TYPE then leaves the table's rows where they are.

#include "extension/types/vector.h"

extern "C" {
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "nodes/supportnodes.h"
}

using namespace pgwarp;

// pgwarp_move(value, typmod, explicit): of vectors and of halfvecs, whose header is the same.
PGWARP_FUNCTION(pgwarp_move) {
    const Vector* vector = datum_get<Vector>(PG_GETARG_DATUM(0));
    check_expected_dims(PG_GETARG_INT32(1), vector->dims);
    PG_RETURN_POINTER(vector);
}

PGWARP_FUNCTION(pgwarp_move_support) {
    Node* request = reinterpret_cast<Node*>(PG_GETARG_POINTER(0));
    if (!IsA(request, SupportRequestSimplify)) PG_RETURN_DATUM(Datum{0});
    FuncExpr* call = reinterpret_cast<SupportRequestSimplify*>(request)->fcall;
    if (list_length(call->args) < 2) PG_RETURN_DATUM(Datum{0});
    Node* value = static_cast<Node*>(linitial(call->args));
    const auto* typmod = static_cast<Const*>(lsecond(call->args));
    if (!IsA(typmod, Const) || typmod->constisnull) PG_RETURN_DATUM(Datum{0});
    const int32 wanted = DatumGetInt32(typmod->constvalue);
    if (wanted >= 0 && wanted != exprTypmod(value)) PG_RETURN_DATUM(Datum{0});
    PG_RETURN_POINTER(applyRelabelType(value, call->funcresulttype, wanted, InvalidOid,
                                       COERCE_EXPLICIT_CAST, -1, false));
}
