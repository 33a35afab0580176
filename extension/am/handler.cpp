// The access method's handler: the capabilities and callbacks of ivfpq.

#include <cstring>

#include "extension/am/callbacks.h"
#include "extension/create/build.h"
#include "extension/index/column.h"
#include "extension/index/options.h"
#include "extension/create/progress.h"
#include "extension/scan/scan.h"
#include "extension/types/attribute.h"

extern "C" {
#include "access/amvalidate.h"
#include "access/htup_details.h"
#include "catalog/pg_amop.h"
#include "catalog/pg_amproc.h"
#include "catalog/pg_opclass.h"
#include "catalog/pg_opfamily.h"
#include "catalog/pg_type.h"
#include "commands/vacuum.h"
#include "parser/parse_coerce.h"
#include "utils/builtins.h"
#include "utils/regproc.h"
#include "utils/syscache.h"
}

namespace pgwarp {

namespace {

// Whether a family has a hash function for the left operand of an operator. A class for varchar may
// have the operator of text.
bool hashes_left(const FormData_pg_amop& form, const CatCList* procedures) {
    for (int i = 0; i < procedures->n_members; ++i) {
        const auto* procedure =
            reinterpret_cast<Form_pg_amproc>(GETSTRUCT(&procedures->members[i]->tuple));
        if (procedure->amprocnum == hash_procedure &&
            IsBinaryCoercible(procedure->amproclefttype, form.amoplefttype))
            return true;
    }
    return false;
}

bool is_sound_operator(const FormData_pg_amop& form, const CatCList* procedures) {
    if (form.amoppurpose == AMOP_ORDER) return form.amopstrategy == 1;
    const std::optional<AttributeKind> kind =
        attribute_kind(form.amoplefttype, hashes_left(form, procedures));
    return kind && decides(*kind, form.amoplefttype,
                           static_cast<AttributeStrategy>(form.amopstrategy), form.amoprighttype);
}

bool is_sound_procedure(const FormData_pg_amproc& form) {
    switch (form.amprocnum) {
        case metric_procedure:
            return check_amproc_signature(form.amproc, INT4OID, true, 1, 1, INT4OID);
        case hash_procedure:
            return check_amproc_signature(form.amproc, INT4OID, false, 1, 1, form.amproclefttype);
        default:
            return false;
    }
}

}  // namespace

// A class for vectors has an ordering operator and a metric; one for attributes has operators for
// conditions, and may have a hash.
bool ivfpq_validate(Oid opclass) {
    HeapTuple tuple = SearchSysCache1(CLAOID, ObjectIdGetDatum(opclass));
    if (!HeapTupleIsValid(tuple)) elog(ERROR, "cache lookup failed for operator class %u", opclass);
    const Oid family = reinterpret_cast<Form_pg_opclass>(GETSTRUCT(tuple))->opcfamily;
    ReleaseSysCache(tuple);

    bool sound = true;
    bool orders = false;
    CatCList* procedures = SearchSysCacheList1(AMPROCNUM, ObjectIdGetDatum(family));
    CatCList* operators = SearchSysCacheList1(AMOPSTRATEGY, ObjectIdGetDatum(family));
    for (int i = 0; i < operators->n_members; ++i) {
        const Form_pg_amop form =
            reinterpret_cast<Form_pg_amop>(GETSTRUCT(&operators->members[i]->tuple));
        orders |= form->amoppurpose == AMOP_ORDER;
        if (is_sound_operator(*form, procedures)) continue;
        ereport(INFO,
                (errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
                 errmsg("operator family of ivfpq contains operator %s with wrong signature or "
                        "strategy %d",
                        format_operator(form->amopopr), form->amopstrategy)));
        sound = false;
    }
    ReleaseCatCacheList(operators);

    bool has_metric = false;
    for (int i = 0; i < procedures->n_members; ++i) {
        const Form_pg_amproc form =
            reinterpret_cast<Form_pg_amproc>(GETSTRUCT(&procedures->members[i]->tuple));
        has_metric |= form->amprocnum == metric_procedure;
        if (is_sound_procedure(*form)) continue;
        ereport(INFO, (errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
                       errmsg("operator family of ivfpq contains function %s with wrong signature "
                              "or number %d",
                              format_procedure(form->amproc), form->amprocnum)));
        sound = false;
    }
    ReleaseCatCacheList(procedures);
    if (orders && !has_metric) {
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
    static IndexAmRoutine routine;
    routine.type = T_IndexAmRoutine;
    routine.amstrategies = attribute_strategies;
    routine.amsupport = hash_procedure;
    routine.amcanorderbyop = true;
    routine.amcanmulticol = true;
    routine.amsearcharray = true;
    routine.amsearchnulls = true;
    // No condition on the indexed column is required, so that the planner may use a partial index
    // without one.
    routine.amoptionalkey = true;
    routine.amparallelvacuumoptions = VACUUM_OPTION_PARALLEL_BULKDEL;
    routine.amkeytype = InvalidOid;

    routine.ambuild = ivfpq_build;
    routine.ambuildempty = ivfpq_build_empty;
    routine.aminsert = ivfpq_insert;
    routine.ambulkdelete = ivfpq_bulk_delete;
    routine.amvacuumcleanup = ivfpq_vacuum_cleanup;
    routine.amcostestimate = ivfpq_cost;
    routine.amoptions = ivfpq_options;
    routine.ambuildphasename = ivfpq_phase_name;
    routine.amvalidate = ivfpq_validate;
    routine.ambeginscan = ivfpq_begin_scan;
    routine.amrescan = ivfpq_rescan;
    routine.amgettuple = ivfpq_get_tuple;
    routine.amendscan = ivfpq_end_scan;
    PG_RETURN_POINTER(compat_access_method(&routine));
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
