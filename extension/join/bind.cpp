// The index scans that a custom scan searches for: those on the inner side of the Nested Loop
// above.

#include <algorithm>

#include "extension/index/column.h"
#include "extension/index/options.h"
#include "extension/index/table_rows.h"
#include "extension/join/batch_state.h"
#include "extension/table/heap_roots.h"

extern "C" {
#include "access/skey.h"
#include "executor/execPartition.h"
#include "executor/executor.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

// Skips pass-through nodes (Result, Subquery Scan).
PlanState* below(PlanState* node) {
    while (node) {
        if (IsA(node, ResultState) && outerPlanState(node) && !node->qual)
            node = outerPlanState(node);
        else if (IsA(node, SubqueryScanState) && !node->qual)
            node = reinterpret_cast<SubqueryScanState*>(node)->subplan;
        else
            break;
    }
    return node;
}

// The expression of the scan's query; null: batches cannot search for this scan.
ExprState* query_of(const IndexScanState* scan) {
    if (!scan->iss_RelationDesc || !is_ivfpq(scan->iss_RelationDesc) ||
        scan->iss_NumOrderByKeys != 1)
        return nullptr;
    for (int i = 0; i < scan->iss_NumRuntimeKeys; ++i)
        if (scan->iss_RuntimeKeys[i].scan_key == &scan->iss_OrderByKeys[0])
            return scan->iss_RuntimeKeys[i].key_expr;
    return nullptr;
}

// Whether the scan has conditions other than IS NOT NULL on the vector, which all entries meet.
bool has_conditions(const IndexScanState* scan) {
    if (scan->ss.ps.qual) return true;
    for (int i = 0; i < scan->iss_NumScanKeys; ++i)
        if (scan->iss_ScanKeys[i].sk_attno != 1 ||
            !(scan->iss_ScanKeys[i].sk_flags & SK_SEARCHNOTNULL))
            return true;
    return false;
}

bool add_index(BatchScan* state, PlanState* node) {
    if (!IsA(node, IndexScanState)) return false;
    IndexScanState* scan = reinterpret_cast<IndexScanState*>(node);
    ExprState* query = query_of(scan);
    if (!query) return false;
    KnnIndex index = {};
    index.heap = scan->ss.ss_currentRelation;
    index.index = scan->iss_RelationDesc;
    index.metric = metric_of(index.index);
    index.dims = static_cast<uint32>(dims_of(index.index));
    index.entry_places = true;
    index.rights_checked = true;
    index.vector_attribute = index.index->rd_index->indkey.values[0];
    const KnnIndex& first = state->indexes[0].index;
    if (state->index_count == 0)
        state->query = query;
    else if (first.dims != index.dims || !type_of(first.index).stores_like(type_of(index.index)))
        return false;
    index.part = static_cast<uint32>(state->index_count);
    SearchedIndex* added = &state->indexes[state->index_count++];
    *added = {state, scan, index, nullptr, nullptr};
    if (has_conditions(scan)) {
        const double rows = table_rows(index.heap, index.index);
        const double passing = scan->ss.ps.plan->plan_rows;
        added->index.check = {passes_conditions, added,
                              rows > 0 ? std::clamp(passing / rows, 1e-6, 1.0) : 1};
        if (!state->row_context) state->row_context = CreateExprContext(scan->ss.ps.state);
    }
    return true;
}

bool add_indexes(BatchScan* state, PlanState* node) {
    const auto make_room = [state](int count) {
        state->indexes =
            static_cast<SearchedIndex*>(palloc0(static_cast<Size>(count) * sizeof(SearchedIndex)));
    };
    if (!IsA(node, MergeAppendState)) {
        make_room(1);
        return add_index(state, node);
    }
    const auto* merge = reinterpret_cast<const MergeAppendState*>(node);
    // Each outer row has partitions of its own: a batch would search all of them for all rows.
    if (merge->ms_prune_state && merge->ms_prune_state->do_exec_prune) return false;
    if (merge->ms_nplans > most_batch_scans) return false;
    make_room(merge->ms_nplans);
    for (int i = 0; i < merge->ms_nplans; ++i)
        if (!add_index(state, merge->mergeplans[i])) return false;
    return merge->ms_nplans > 0;
}

// Whether all scans have one query and metric, and no conditions: where these leave too few rows
// to a query, one of its scans may search by itself, and find others.
bool has_one_query(const BatchScan* state) {
    const SearchedIndex& first = state->indexes[0];
    const auto order_of = [](const SearchedIndex& searched) {
        return reinterpret_cast<const IndexScan*>(searched.scan->ss.ps.plan)->indexorderby;
    };
    const auto asked_by = [&](const SearchedIndex& searched) {
        return lsecond(static_cast<const OpExpr*>(linitial(order_of(searched)))->args);
    };
    return std::all_of(
        state->indexes, state->indexes + state->index_count, [&](const SearchedIndex& searched) {
            return !searched.index.check.passes && searched.index.metric == first.index.metric &&
                   equal(asked_by(searched), asked_by(first));
        });
}

// Whether a device may read all tables: it merges what is nearest, and has to name all rows.
bool fits_device(const BatchScan* state) {
    return state->compares_all && std::all_of(state->indexes, state->indexes + state->index_count,
                                              [](const SearchedIndex& searched) {
                                                  const KnnIndex& index = searched.index;
                                                  return index.vector_attribute > 0 &&
                                                         has_heap_pages(index.heap);
                                              });
}

KnnIndex whole_of(const BatchScan* state) {
    KnnIndex whole = state->indexes[0].index;
    if (state->index_count == 1) return whole;
    whole.partitioned = true;
    whole.leaf_count = state->index_count;
    whole.leaves =
        static_cast<KnnIndex*>(palloc(static_cast<Size>(whole.leaf_count) * sizeof(KnnIndex)));
    for (int i = 0; i < whole.leaf_count; ++i) whole.leaves[i] = state->indexes[i].index;
    return whole;
}

}  // namespace

bool bind_scan(BatchScan* state, NestLoopState* join) {
    PlanState* node = innerPlanState(join);
    // Filters above the Limit do not change what is fetched from the scan.
    if (node && IsA(node, SubqueryScanState))
        node = reinterpret_cast<SubqueryScanState*>(node)->subplan;
    node = below(node);
    if (!node || !IsA(node, LimitState)) return false;
    const auto* limit = reinterpret_cast<const LimitState*>(node);
    if (limit->limitOption != LIMIT_OPTION_COUNT || !limit->limitCount) return false;
    EState* estate = state->ss.ps.state;
    const MemoryContext before = MemoryContextSwitchTo(estate->es_query_cxt);
    PlanState* scans = below(outerPlanState(node));
    if (scans && add_indexes(state, scans)) {
        state->whole = whole_of(state);
        state->compares_all = has_one_query(state);
        state->wants_device &= fits_device(state);
        const auto* plan = reinterpret_cast<const NestLoop*>(join->js.ps.plan);
        state->limit = limit;
        state->query_context = CreateExprContext(estate);
        state->rows_context =
            AllocSetContextCreate(estate->es_query_cxt, "ivfpq batch", ALLOCSET_DEFAULT_SIZES);
        state->parameter_count = list_length(plan->nestParams);
        const auto parameters = static_cast<Size>(Max(state->parameter_count, 1));
        state->parameters =
            static_cast<ParamExecData*>(palloc0(parameters * sizeof(ParamExecData)));
        state->join = plan;
    } else {
        state->index_count = 0;
    }
    MemoryContextSwitchTo(before);
    return state->join != nullptr;
}

}  // namespace pgwarp
