#include "extension/table/planned.h"

extern "C" {
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "executor/spi.h"
#include "nodes/plannodes.h"
#include "optimizer/paths.h"
#include "optimizer/planner.h"
#include "parser/parsetree.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/plancache.h"
}

namespace pgwarp {

namespace {

set_rel_pathlist_hook_type own_hook = nullptr;
set_rel_pathlist_hook_type previous_hook = nullptr;

struct PlanReader {
    List* range_table;
    List* members;  // OIDs: the table, its children and partitions
};

RowsAre farther(RowsAre a, RowsAre b) {
    return Max(a, b);
}

RowsAre where(const PlanReader& reader, const Plan* plan);

RowsAre where_of_all(const PlanReader& reader, const List* plans) {
    RowsAre found = RowsAre::in_table;
    for (const ListCell* cell = list_head(plans); cell; cell = lnext(plans, cell))
        found = farther(found, where(reader, static_cast<const Plan*>(lfirst(cell))));
    return found;
}

bool reads_member(const PlanReader& reader, const Plan* plan) {
    const Index number = reinterpret_cast<const Scan*>(plan)->scanrelid;
    if (number == 0) return false;
    const RangeTblEntry* entry = rt_fetch(number, reader.range_table);
    return entry->rtekind == RTE_RELATION && list_member_oid(reader.members, entry->relid);
}

RowsAre where_below(const PlanReader& reader, const Plan* plan) {
    return farther(plan->lefttree ? where(reader, plan->lefttree) : RowsAre::in_table,
                   plan->righttree ? where(reader, plan->righttree) : RowsAre::in_table);
}

RowsAre where(const PlanReader& reader, const Plan* plan) {
    switch (nodeTag(plan)) {
        case T_SeqScan:
        case T_SampleScan:
        case T_IndexScan:
        case T_IndexOnlyScan:
        case T_BitmapHeapScan:
        case T_TidScan:
        case T_TidRangeScan:
            return reads_member(reader, plan) ? RowsAre::in_table : RowsAre::elsewhere;
        case T_ForeignScan:
            return reads_member(reader, plan) ? RowsAre::by_query : RowsAre::elsewhere;
        case T_CustomScan: {
            if (reads_member(reader, plan)) return RowsAre::by_query;
            const List* plans = reinterpret_cast<const CustomScan*>(plan)->custom_plans;
            if (plans == NIL && !plan->lefttree) return RowsAre::elsewhere;
            return farther(RowsAre::by_query,
                           farther(where_of_all(reader, plans), where_below(reader, plan)));
        }
        case T_Append:
            return where_of_all(reader, reinterpret_cast<const Append*>(plan)->appendplans);
        case T_MergeAppend:
            return where_of_all(reader, reinterpret_cast<const MergeAppend*>(plan)->mergeplans);
        case T_SubqueryScan:
            return where(reader, reinterpret_cast<const SubqueryScan*>(plan)->subplan);
        case T_Result:  // without a plan below: a partitioned table that has no partitions
        case T_Gather:
        case T_GatherMerge:
        case T_Material:
            return where_below(reader, plan);
        default:
            return RowsAre::elsewhere;
    }
}

bool has_storage_here(char kind) {
    return kind == RELKIND_RELATION || kind == RELKIND_MATVIEW || kind == RELKIND_PARTITIONED_TABLE;
}

}  // namespace

set_rel_pathlist_hook_type install_path_hook(set_rel_pathlist_hook_type hook) {
    const set_rel_pathlist_hook_type before = set_rel_pathlist_hook;
    if (before != own_hook) previous_hook = before;
    own_hook = hook;
    set_rel_pathlist_hook = hook;
    return before;
}

bool is_planned_by_others() {
    return planner_hook || previous_hook || set_rel_pathlist_hook != own_hook;
}

RowsAre where_rows_are(Oid table) {
    if (!is_planned_by_others() || !has_storage_here(get_rel_relkind(table)))
        return RowsAre::in_table;
    const MemoryContext before = CurrentMemoryContext;
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
    // No column: it does not matter here which of them the caller may read.
    const char* query = psprintf(
        "SELECT 1 FROM %s", quote_qualified_identifier(get_namespace_name(get_rel_namespace(table)),
                                                       get_rel_name(table)));
    SPIPlanPtr prepared = SPI_prepare(query, 0, nullptr);
    if (!prepared) elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
    CachedPlan* cached = SPI_plan_get_cached_plan(prepared);
    if (!cached) elog(ERROR, "could not plan \"%s\"", query);
    const PlannedStmt* statement = linitial_node(PlannedStmt, cached->stmt_list);
    const PlanReader reader{statement->rtable,
                            find_all_inheritors(table, AccessShareLock, nullptr)};
    const RowsAre found = where(reader, statement->planTree);
    // SPI_plan_get_cached_plan() has no resource owner for a plan that is not kept.
    ReleaseCachedPlan(cached, nullptr);
    SPI_finish();
    MemoryContextSwitchTo(before);
    return found;
}

void check_rows_are_here(Oid table) {
    if (where_rows_are(table) != RowsAre::elsewhere) return;
    ereport(
        ERROR,
        (errcode(ERRCODE_WRONG_OBJECT_TYPE),
         errmsg("the rows of table \"%s\" are not in its index", get_rel_name(table)),
         errdetail("Another extension plans queries of this table, and does not read it: the rows "
                   "are in other tables or on other servers."),
         errhint("Call the function for the indexes of the tables that have the rows. On a "
                 "distributed table of Citus, run_command_on_shards() does that.")));
}

}  // namespace pgwarp
