#include "extension/util/signature.h"

extern "C" {
#include "utils/builtins.h"
#include "utils/lsyscache.h"
}

namespace pgwarp {

namespace {

int columns_of(FunctionCallInfo fcinfo) {
    TupleDesc descriptor;
    if (get_call_result_type(fcinfo, nullptr, &descriptor) != TYPEFUNC_COMPOSITE) return 0;
    return descriptor->natts;
}

}  // namespace

void check_signature(FunctionCallInfo fcinfo, int arguments, int columns) {
    if (PG_NARGS() == arguments && columns_of(fcinfo) == columns) return;
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("function %s is of another version than the library of pgwarp",
                           get_func_name(fcinfo->flinfo->fn_oid)),
                    errdetail("The library is version %s.", library_version),
                    errhint("Run ALTER EXTENSION pgwarp UPDATE. Restart the server first if "
                            "pgwarp was installed since it started.")));
}

}  // namespace pgwarp

// The version of the library, which may be newer than that of the extension in a database.
PGWARP_FUNCTION(pgwarp_version) {
    PG_RETURN_TEXT_P(cstring_to_text(pgwarp::library_version));
}
