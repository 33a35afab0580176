// The access method's handler: what ivfpq can do, and who does it.

#include <cmath>
#include <cstring>

#include "kernels/distance.h"
#include "extension/ivfpq.h"
#include "extension/vector.h"

extern "C" {
#include "access/amvalidate.h"
#include "access/htup_details.h"
#include "catalog/pg_amop.h"
#include "catalog/pg_amproc.h"
#include "catalog/pg_opclass.h"
#include "catalog/pg_opfamily.h"
#include "commands/vacuum.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/ruleutils.h"
#include "utils/syscache.h"
}

namespace pgwarp {

namespace {

// Support function 1 of an operator class returns its metric's number.
constexpr uint16 metric_procedure = 1;

[[noreturn]] void report_no_dimensions(Relation index) {
    const char* what = pg_get_indexdef_columns(RelationGetRelid(index), true);
    const Oid table = index->rd_index->indrelid;
    const bool is_column = index->rd_index->indkey.values[0] != 0;
    ereport(
        ERROR,
        (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("column does not have dimensions"),
         is_column ? errdetail("Column %s of table \"%s\" has type vector, not vector(n).", what,
                               get_rel_name(table))
                   : errdetail("Expression %s has type vector, not vector(n).", what),
         is_column ? errhint("Use ALTER TABLE %s ALTER COLUMN %s TYPE vector(n), or "
                             "CREATE INDEX ... USING ivfpq ((%s::vector(n))) and ORDER BY the same "
                             "expression.",
                             quote_identifier(get_rel_name(table)), what, what)
                   : errhint("Use CREATE INDEX ... USING ivfpq ((%s::vector(n))) and ORDER BY the "
                             "same expression.",
                             what)));
}

}  // namespace

Metric metric_of(Relation index) {
    const FmgrInfo* procedure = index_getprocinfo(index, 1, metric_procedure);
    const int32 metric = DatumGetInt32(
        FunctionCall1Coll(const_cast<FmgrInfo*>(procedure), InvalidOid, Int32GetDatum(0)));
    return static_cast<Metric>(metric);
}

int dims_of(Relation index) {
    const int dims = TupleDescAttr(RelationGetDescr(index), 0)->atttypmod;
    if (dims < 0) report_no_dimensions(index);
    return dims;
}

void index_form(Metric metric, const float* from, uint32 dims, float* to) {
    if (metric != Metric::cosine) {
        memcpy(to, from, dims * sizeof(float));
        return;
    }
    const double norm = std::sqrt(squared_norm(from, dims));
    for (uint32 i = 0; i < dims; ++i) to[i] = norm > 0 ? static_cast<float>(from[i] / norm) : 0;
}

bool ivfpq_validate(Oid opclass) {
    HeapTuple tuple = SearchSysCache1(CLAOID, ObjectIdGetDatum(opclass));
    if (!HeapTupleIsValid(tuple)) elog(ERROR, "cache lookup failed for operator class %u", opclass);
    const Oid family = reinterpret_cast<Form_pg_opclass>(GETSTRUCT(tuple))->opcfamily;
    ReleaseSysCache(tuple);

    bool sound = true;
    CatCList* operators = SearchSysCacheList1(AMOPSTRATEGY, ObjectIdGetDatum(family));
    for (int i = 0; i < operators->n_members; ++i) {
        const Form_pg_amop form =
            reinterpret_cast<Form_pg_amop>(GETSTRUCT(&operators->members[i]->tuple));
        if (form->amopstrategy == 1 && form->amoppurpose == AMOP_ORDER) continue;
        ereport(INFO, (errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
                       errmsg("operator family of ivfpq contains operator %s with strategy %d that "
                              "is no ordering operator",
                              format_operator(form->amopopr), form->amopstrategy)));
        sound = false;
    }
    ReleaseCatCacheList(operators);

    CatCList* procedures = SearchSysCacheList1(AMPROCNUM, ObjectIdGetDatum(family));
    bool has_metric = false;
    for (int i = 0; i < procedures->n_members; ++i) {
        const Form_pg_amproc form =
            reinterpret_cast<Form_pg_amproc>(GETSTRUCT(&procedures->members[i]->tuple));
        if (form->amprocnum == metric_procedure &&
            check_amproc_signature(form->amproc, INT4OID, true, 1, 1, INT4OID)) {
            has_metric = true;
            continue;
        }
        ereport(INFO, (errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
                       errmsg("operator family of ivfpq contains function %s with wrong signature "
                              "or number %d",
                              format_procedure(form->amproc), form->amprocnum)));
        sound = false;
    }
    ReleaseCatCacheList(procedures);
    if (!has_metric) {
        ereport(INFO,
                (errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
                 errmsg("operator class of ivfpq lacks support function %d", metric_procedure)));
        sound = false;
    }
    return sound;
}

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(ivfpq_handler) {
    IndexAmRoutine* routine = makeNode(IndexAmRoutine);
    routine->amstrategies = 1;
    routine->amsupport = 1;
    routine->amcanorderbyop = true;
    // The planner may use a partial index without a condition on it.
    routine->amoptionalkey = true;
    routine->amparallelvacuumoptions = VACUUM_OPTION_PARALLEL_BULKDEL;
    routine->amkeytype = InvalidOid;

    routine->ambuild = ivfpq_build;
    routine->ambuildempty = ivfpq_build_empty;
    routine->aminsert = ivfpq_insert;
    routine->ambulkdelete = ivfpq_bulk_delete;
    routine->amvacuumcleanup = ivfpq_vacuum_cleanup;
    routine->amcostestimate = ivfpq_cost;
    routine->amoptions = ivfpq_options;
    routine->ambuildphasename = ivfpq_phase_name;
    routine->amvalidate = ivfpq_validate;
    routine->ambeginscan = ivfpq_begin_scan;
    routine->amrescan = ivfpq_rescan;
    routine->amgettuple = ivfpq_get_tuple;
    routine->amendscan = ivfpq_end_scan;
    PG_RETURN_POINTER(routine);
}

PGWARP_FUNCTION(ivfpq_metric_l2) {
    PG_RETURN_INT32(static_cast<int32>(Metric::l2));
}

PGWARP_FUNCTION(ivfpq_metric_inner_product) {
    PG_RETURN_INT32(static_cast<int32>(Metric::inner_product));
}

PGWARP_FUNCTION(ivfpq_metric_cosine) {
    PG_RETURN_INT32(static_cast<int32>(Metric::cosine));
}
