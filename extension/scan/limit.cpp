// PostgreSQL passes an index access method neither LIMIT nor filter conditions, only index
// conditions. After ExecutorStart has set up a query, this hook walks its plan state. It notes each
// ivfpq scan, with the bounds on its distance, filters on its attributes, and the Limit node above
// it. A Limit counts only if the nodes between it and the scan pass rows on one by one. The count
// is read when the scan starts: by then the executor has evaluated it, including parameters. Notes
// live as long as their query.

#include <algorithm>
#include <cmath>

#include "extension/index/effort.h"
#include "extension/index/options.h"
#include "extension/index/table_rows.h"
#include "extension/scan/filter_keys.h"
#include "extension/scan/cached_values.h"
#include "extension/scan/limit.h"
#include "extension/scan/noted_scan.h"
#include "extension/limits.h"
#include "extension/settings.h"

extern "C" {
#include "executor/executor.h"
#include "executor/instrument.h"
#include "nodes/extensible.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "utils/fmgroids.h"
}

namespace pgwarp {

namespace {

ExecutorStart_hook_type previous_hook = nullptr;

}  // namespace

struct ScanGroup {
    MergeAppendState* node;
    const LimitState* limit;
    bool sorted;
    double rows;  // of all partitions, by the plan
};

namespace {

struct ScanNote {
    IndexScanState* scan;
    const LimitState* limit;  // null: none
    ScanGroup* group;         // null: none
    double part_rows;         // see set_part_rows(); 0: the plan's share of LIMIT
    bool sorted;              // a node above the scan trusts its order, as an Incremental Sort does
    List* bounds;             // see init_bounds()
    List* filters;            // see init_filter_keys()
    bool other_filters;
    // For checking filters and keys on rows that the scan reads; null until it does.
    ExprContext* row_context;
    bool checks_filters;
    bool checks_keys;
    BitmapOfScan bitmap;
    const ScanKeyData* further_key;  // null: none
    ScanNote* next;
    MemoryContextCallback callback;
};
ScanNote* notes = nullptr;

void drop_note(void* argument) {
    for (ScanNote** at = &notes; *at; at = &(*at)->next)
        if (*at == argument) {
            *at = (*at)->next;
            return;
        }
}

ScanNote* find_note(const IndexScanState* scan) {
    ScanNote* note = notes;
    while (note && note->scan != scan) note = note->next;
    return note;
}

// The scan keeps the result, as a query of many partitions has many notes. Both end with the query.
ScanNote* find_note(IndexScanDesc scan) {
    void** kept = &static_cast<NotedScan*>(scan->opaque)->note;
    if (*kept) return static_cast<ScanNote*>(*kept);
    ScanNote* note = notes;
    while (note && note->scan->iss_ScanDesc != scan) note = note->next;
    *kept = note;
    return note;
}

// What is above a node of the plan.
struct Above {
    const LimitState* limit;  // null: none
    bool sorted;              // a node above trusts the order of rows
    ScanGroup* group;         // of the Merge Append directly above; null: none
};

void note_scan(IndexScanState* scan, const Above& above) {
    ScanNote* note = find_note(scan);
    if (!note) {
        const MemoryContext query = scan->ss.ps.state->es_query_cxt;
        note = static_cast<ScanNote*>(MemoryContextAllocZero(query, sizeof(ScanNote)));
        note->scan = scan;
        const MemoryContext before = MemoryContextSwitchTo(query);
        note->bounds = init_bounds(scan);
        note->filters = init_filter_keys(scan, &note->other_filters);
        Node* conditions = reinterpret_cast<Node*>(scan->ss.ps.plan->qual);
        note->checks_filters = note->other_filters && !contain_volatile_functions(conditions) &&
                               !contain_subplans(conditions);
        pass_cached_values(scan);
        MemoryContextSwitchTo(before);
        note->callback.func = drop_note;
        note->callback.arg = note;
        MemoryContextRegisterResetCallback(query, &note->callback);
        note->next = notes;
        notes = note;
    }
    note->limit = above.limit;
    note->sorted |= above.sorted;  // a scan of WITH is seen by each of its readers
    note->group = above.group;
}

void show_above(PlanState* node, const Above& above);

bool show_nothing(PlanState* node, void*) {
    show_above(node, {});
    return false;
}

bool show_same(PlanState* node, void* above) {
    show_above(node, *static_cast<const Above*>(above));
    return false;
}

// The share of the rows that pass all conditions of the plan; 1: the scan checks them itself.
double passing_share(const ScanNote* note) {
    if (!note->other_filters) return 1;
    if (note->bitmap.passing_share > 0) return std::clamp(note->bitmap.passing_share, 1e-6, 1.0);
    const IndexScanState* scan = note->scan;
    const Plan* plan = scan->ss.ps.plan;
    const double rows = table_rows(scan->ss.ss_currentRelation, scan->iss_RelationDesc);
    return rows > 0 ? std::clamp(plan->plan_rows / rows, 1e-6, 1.0) : 1;
}

ScanGroup* make_group(MergeAppendState* node, const Above& above) {
    if (!above.limit || node->ms_nplans < 2) return nullptr;
    auto* group = static_cast<ScanGroup*>(
        MemoryContextAllocZero(node->ps.state->es_query_cxt, sizeof(ScanGroup)));
    *group = {node, above.limit, above.sorted, 0};
    for (int i = 0; i < node->ms_nplans; ++i) group->rows += node->mergeplans[i]->plan->plan_rows;
    return group;
}

// Whether window functions look at no row behind the current one and its peers.
bool looks_back(const WindowAggState* window) {
    const auto* plan = reinterpret_cast<const WindowAgg*>(window->ss.ps.plan);
    const bool frames_do = (plan->frameOptions & FRAMEOPTION_END_CURRENT_ROW) != 0;
    for (const ListCell* cell = list_head(window->funcs); cell; cell = lnext(window->funcs, cell)) {
        const WindowFunc* function = static_cast<const WindowFuncExprState*>(lfirst(cell))->wfunc;
        const Oid name = function->winfnoid;
        const bool looks = function->winagg
                               ? frames_do
                               : name == F_ROW_NUMBER || name == F_RANK_ || name == F_DENSE_RANK_;
        if (!looks) return false;
    }
    return true;
}

void show_above(PlanState* node, const Above& above) {
    if (!node) return;
    switch (nodeTag(node)) {
        case T_IndexScanState: {
            IndexScanState* scan = reinterpret_cast<IndexScanState*>(node);
            // EXPLAIN without ANALYZE does not open the index.
            if (scan->iss_RelationDesc && is_ivfpq(scan->iss_RelationDesc)) note_scan(scan, above);
            compat_planstate_walk(node, show_nothing, nullptr);
            break;
        }
        case T_LimitState: {
            Above here = {reinterpret_cast<LimitState*>(node), false, nullptr};
            compat_planstate_walk(node, show_same, &here);
            break;
        }
        case T_IncrementalSortState: {
            // Sorts rows of equal distance, and passes them on before it reads the next ones.
            Above here = {above.limit, true, nullptr};
            compat_planstate_walk(node, show_same, &here);
            break;
        }
        case T_WindowAggState: {
            // Takes adjacent rows for a partition, or for peers.
            const auto* plan = reinterpret_cast<const WindowAgg*>(node->plan);
            const bool trusts = plan->partNumCols > 0 || plan->ordNumCols > 0;
            const bool behind = trusts && !looks_back(reinterpret_cast<WindowAggState*>(node));
            Above here = {behind ? nullptr : above.limit, above.sorted || trusts, nullptr};
            compat_planstate_walk(node, show_same, &here);
            break;
        }
        case T_CteScanState:
            // From 17 on the planner knows the order of what WITH materializes.
            if (above.sorted)
                show_above(reinterpret_cast<CteScanState*>(node)->cteplanstate,
                           {nullptr, true, nullptr});
            break;
        case T_MergeJoinState:
        case T_GroupState:
        case T_UniqueState:
        case T_SetOpState: {
            // Compare a row with the one before, or with the other side's, and may read all rows.
            Above here = {nullptr, true, nullptr};
            compat_planstate_walk(node, show_same, &here);
            break;
        }
        case T_AggState: {
            // Groups are adjacent rows, or aggregates want an order of their own.
            const AggStrategy strategy = reinterpret_cast<AggState*>(node)->aggstrategy;
            Above here = {
                nullptr,
                strategy == AGG_SORTED || (strategy == AGG_PLAIN && compat_sorts_before_aggregates),
                nullptr};
            compat_planstate_walk(node, show_same, &here);
            break;
        }
        case T_MaterialState:
        case T_ResultState:
        case T_LockRowsState:
        case T_SubqueryScanState:
        case T_AppendState: {
            Above here = {above.limit, above.sorted, nullptr};
            compat_planstate_walk(node, show_same, &here);
            break;
        }
        case T_CustomScanState: {
            const char* name = reinterpret_cast<CustomScanState*>(node)->methods->CustomName;
            Above here = {};
            if (name == bitmap_scan_name || name == semi_join_name)
                here = {above.limit, above.sorted, nullptr};
            compat_planstate_walk(node, show_same, &here);
            break;
        }
        case T_MergeAppendState: {
            Above here = {above.limit, above.sorted,
                          make_group(reinterpret_cast<MergeAppendState*>(node), above)};
            compat_planstate_walk(node, show_same, &here);
            break;
        }
        case T_NestLoopState:
            // The outer side is read until the join has enough rows; the inner side is rescanned.
            show_above(outerPlanState(node), {above.limit, above.sorted, nullptr});
            show_above(innerPlanState(node), {});
            break;
        default:
            compat_planstate_walk(node, show_nothing, nullptr);
    }
}

// LIMIT plus OFFSET, which may overflow int64. An Incremental Sort reads one row more than it
// needs, to see another distance.
double rows_of_limit(const LimitState* limit, bool sorted) {
    constexpr double max_rows = 1e18;
    return std::min(max_rows, static_cast<double>(limit->count) +
                                  static_cast<double>(limit->offset) + (sorted ? 1 : 0));
}

void start_executor(QueryDesc* query, int flags) {
    if (previous_hook)
        previous_hook(query, flags);
    else
        standard_ExecutorStart(query, flags);
    show_above(query->planstate, {});
    for (ListCell* cell = list_head(query->estate->es_subplanstates); cell;
         cell = lnext(query->estate->es_subplanstates, cell))
        show_above(static_cast<PlanState*>(lfirst(cell)), {});
}

}  // namespace

WantedRows wanted_rows(IndexScanDesc scan) {
    // Rows to start with if there is no Limit.
    constexpr uint32 unknown = 100;
    // Caps the rows for selective filter conditions: the first round should be smaller than LIMIT
    // divided by a tiny selectivity.
    constexpr double most_for_conditions = 10000;
    const ScanNote* note = find_note(scan);
    if (!note) return {unknown, 0, unknown, 0};
    const bool known = note->limit && !note->limit->noCount;
    // Rows of a later round may be nearer, but a node above trusts the order: without a LIMIT, one
    // round has all rows.
    if (note->sorted && !known) return {unknown, Size{1} << 40, unknown, 0};
    double rows = known ? rows_of_limit(note->limit, note->sorted) : unknown;
    const Size of_group = known && note->part_rows > 0 ? static_cast<Size>(rows) : 0;
    if (of_group > 0) rows = std::min(rows, note->part_rows);
    // Among how many of the nearest rows the wanted ones are varies by chance.
    const double share = passing_share(note);
    const double some_more = share < 1 ? std::sqrt(rows) : 0;
    const double passing = std::min((rows + some_more) / share, most_for_conditions);
    const auto bounded = [](double wanted) {
        return static_cast<uint32>(std::clamp<double>(wanted, 1, most_wanted_rows));
    };
    return {bounded(std::max(rows, passing)), known ? static_cast<Size>(rows) : 0, bounded(rows),
            of_group};
}

ScanGroup* group_of(IndexScanDesc scan) {
    const ScanNote* note = find_note(scan);
    return note && note->group && !note->group->limit->noCount ? note->group : nullptr;
}

double group_rows(const ScanGroup* group) {
    return rows_of_limit(group->limit, group->sorted);
}

bool reads_only_limit(const ScanGroup* group) {
    const LimitState* limit = group->limit;
    if (limit->limitOption != LIMIT_OPTION_COUNT) return false;
    const PlanState* below = outerPlanState(limit);
    // It computes what PostgreSQL puts off until after ORDER BY.
    if (IsA(below, ResultState) && !below->qual &&
        !reinterpret_cast<const ResultState*>(below)->resconstantqual)
        below = outerPlanState(below);
    return below == &group->node->ps;
}

bool returns_all_rows(IndexScanDesc scan) {
    return find_note(scan)->scan->ss.ps.plan->qual == NIL;
}

int group_size(const ScanGroup* group) {
    return group->node->ms_nplans;
}

IndexScanDesc begin_member(const ScanGroup* group, int member) {
    PlanState* node = group->node->mergeplans[member];
    if (!IsA(node, IndexScanState) || !bms_is_member(member, group->node->ms_valid_subplans))
        return nullptr;
    IndexScanState* scan = reinterpret_cast<IndexScanState*>(node);
    ScanNote* note = find_note(scan);
    if (!note || note->group != group) return nullptr;
    const MemoryContext before = MemoryContextSwitchTo(node->state->es_query_cxt);
    // As ExecProcNode() and ExecIndexScan() do before they fetch.
    if (node->chgParam || (scan->iss_NumRuntimeKeys > 0 && !scan->iss_RuntimeKeysReady))
        ExecReScan(node);
    if (!scan->iss_ScanDesc) {
        scan->iss_ScanDesc = compat_index_beginscan(
            scan->ss.ss_currentRelation, scan->iss_RelationDesc, node->state->es_snapshot,
            scan->iss_NumScanKeys, scan->iss_NumOrderByKeys);
        index_rescan(scan->iss_ScanDesc, scan->iss_ScanKeys, scan->iss_NumScanKeys,
                     scan->iss_OrderByKeys, scan->iss_NumOrderByKeys);
    }
    MemoryContextSwitchTo(before);
    note->part_rows = 0;
    return scan->iss_ScanDesc;
}

void set_part_rows(IndexScanDesc scan, double rows) {
    find_note(scan)->part_rows = rows;
}

double part_share(IndexScanDesc scan) {
    const ScanNote* note = find_note(scan);
    return note->scan->ss.ps.plan->plan_rows / std::max(note->group->rows, 1.0);
}

double planned_share(IndexScanDesc scan) {
    const ScanNote* note = find_note(scan);
    if (!note || note->other_filters) return 0;
    const double rows = table_rows(note->scan->ss.ss_currentRelation, scan->indexRelation);
    return rows > 0 ? std::clamp(note->scan->ss.ps.plan->plan_rows / rows, 1e-9, 1.0) : 0;
}

namespace {

bool passes_filters(void* state, TupleTableSlot* row) {
    const ScanNote* note = static_cast<const ScanNote*>(state);
    PlanState* plan = &note->scan->ss.ps;
    ResetExprContext(note->row_context);
    note->row_context->ecxt_scantuple = row;
    // Counts rows that it rejects as the executor does, for EXPLAIN ANALYZE.
    if (note->checks_keys && !ExecQual(note->scan->indexqualorig, note->row_context)) {
        InstrCountFiltered2(plan, 1);
        return false;
    }
    if (note->checks_filters && !ExecQual(plan->qual, note->row_context)) {
        InstrCountFiltered1(plan, 1);
        return false;
    }
    return true;
}

}  // namespace

RowFilter wanted_filter(IndexScanDesc scan, const Conditions& conditions) {
    ScanNote* note = find_note(scan);
    // A bound on the distance tells by itself how far the scan has to go.
    if (!note || note->bounds != NIL || !note->limit || note->limit->noCount) return {};
    // Where the executor rechecks the keys, it does so before its filters: a key may be a policy,
    // or keep a filter from an error.
    note->checks_keys = conditions.rough || (conditions.recheck && note->checks_filters);
    if (!note->checks_filters && !note->checks_keys) return {};
    EState* estate = note->scan->ss.ps.state;
    const MemoryContext before = MemoryContextSwitchTo(estate->es_query_cxt);
    if (!note->row_context) note->row_context = CreateExprContext(estate);
    MemoryContextSwitchTo(before);
    return {passes_filters, note, 0, 0};
}

Conditions wanted_conditions(IndexScanDesc scan) {
    const ScanNote* note = find_note(scan);
    const int filters = note ? list_length(note->filters) : 0;
    auto* keys = static_cast<ScanKeyData*>(
        palloc(static_cast<Size>(scan->numberOfKeys + filters + 1) * sizeof(ScanKeyData)));
    std::copy_n(scan->keyData, scan->numberOfKeys, keys);
    if (filters > 0) evaluate_filter_keys(note->filters, note->scan, keys + scan->numberOfKeys);
    int count = scan->numberOfKeys + filters;
    if (note && note->further_key) keys[count++] = *note->further_key;
    Conditions conditions = make_conditions(scan->indexRelation, keys, count);
    if (note && note->bitmap.rows) {
        conditions.rows = note->bitmap.rows;
        conditions.ranks_rows = note->bitmap.ranks_rows;
        conditions.never |= is_empty(*conditions.rows);
    }
    return conditions;
}

void set_bitmap(const IndexScanState* scan, const BitmapOfScan& bitmap) {
    if (ScanNote* note = find_note(scan)) note->bitmap = bitmap;
}

void set_further_key(const IndexScanState* scan, const ScanKeyData* key) {
    if (ScanNote* note = find_note(scan)) note->further_key = key;
}

DistanceBound wanted_bound(IndexScanDesc scan, Metric metric) {
    const ScanNote* note = find_note(scan);
    if (!note) return evaluate_bounds(NIL, nullptr, metric, settings.target_recall);
    return evaluate_bounds(note->bounds, note->scan, metric, settings.target_recall);
}

void install_limit_hook() {
    previous_hook = ExecutorStart_hook;
    ExecutorStart_hook = start_executor;
}

}  // namespace pgwarp
