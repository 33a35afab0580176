// An index access method is not told LIMIT. After the executor has set up a query, this hook walks
// its plan and notes each ivfpq scan with the Limit node above it, if the nodes between pass rows
// on one by one. When the scan starts, the node's count is read: by then the executor has evaluated
// it, parameters and all. Notes live as long as their query.

#include <algorithm>

#include "extension/ivfpq.h"
#include "extension/ivfpq_limit.h"

extern "C" {
#include "executor/executor.h"
#include "nodes/nodeFuncs.h"
}

namespace pgwarp {

namespace {

ExecutorStart_hook_type previous_hook = nullptr;

struct ScanNote {
    const IndexScanState* scan;
    const LimitState* limit;  // null: none
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

void note_scan(IndexScanState* scan, const LimitState* limit) {
    ScanNote* note = find_note(scan);
    if (!note) {
        const MemoryContext query = scan->ss.ps.state->es_query_cxt;
        note = static_cast<ScanNote*>(MemoryContextAllocZero(query, sizeof(ScanNote)));
        note->scan = scan;
        note->callback.func = drop_note;
        note->callback.arg = note;
        MemoryContextRegisterResetCallback(query, &note->callback);
        note->next = notes;
        notes = note;
    }
    note->limit = limit;
}

void show_limit(PlanState* node, const LimitState* limit);

bool show_no_limit(PlanState* node, void*) {
    show_limit(node, nullptr);
    return false;
}

bool show_same_limit(PlanState* node, void* limit) {
    show_limit(node, static_cast<const LimitState*>(limit));
    return false;
}

double passing_share(const IndexScanState* scan) {
    const Plan* plan = scan->ss.ps.plan;
    if (plan->qual == NIL) return 1;
    const double rows = scan->ss.ss_currentRelation->rd_rel->reltuples;
    return rows > 0 ? std::clamp(plan->plan_rows / rows, 1e-6, 1.0) : 1;
}

void show_limit(PlanState* node, const LimitState* limit) {
    if (!node) return;
    switch (nodeTag(node)) {
        case T_IndexScanState: {
            IndexScanState* scan = reinterpret_cast<IndexScanState*>(node);
            // EXPLAIN alone opens no index.
            if (scan->iss_RelationDesc &&
                scan->iss_RelationDesc->rd_indam->amgettuple == ivfpq_get_tuple)
                note_scan(scan, limit);
            compat_planstate_walk(node, show_no_limit, nullptr);
            break;
        }
        case T_LimitState:
            compat_planstate_walk(node, show_same_limit, node);
            break;
        case T_ResultState:
        case T_LockRowsState:
        case T_SubqueryScanState:
        case T_AppendState:
        case T_MergeAppendState:
            compat_planstate_walk(node, show_same_limit, const_cast<LimitState*>(limit));
            break;
        case T_NestLoopState:
            // The outer side runs until the join has its rows; the inner side starts over.
            show_limit(outerPlanState(node), limit);
            show_limit(innerPlanState(node), nullptr);
            break;
        default:
            compat_planstate_walk(node, show_no_limit, nullptr);
    }
}

void start_executor(QueryDesc* query, int flags) {
    if (previous_hook)
        previous_hook(query, flags);
    else
        standard_ExecutorStart(query, flags);
    show_limit(query->planstate, nullptr);
    for (ListCell* cell = list_head(query->estate->es_subplanstates); cell;
         cell = lnext(query->estate->es_subplanstates, cell))
        show_limit(static_cast<PlanState*>(lfirst(cell)), nullptr);
}

}  // namespace

uint32 wanted_rows(IndexScanDesc scan) {
    // Without a Limit, enough to begin with.
    constexpr double unknown = 100;
    constexpr double most = 10000;
    const ScanNote* note = notes;
    while (note && note->scan->iss_ScanDesc != scan) note = note->next;
    if (!note) return unknown;
    double rows = unknown;
    if (note->limit && !note->limit->noCount)
        rows = static_cast<double>(note->limit->count) + static_cast<double>(note->limit->offset);
    return static_cast<uint32>(std::clamp(rows / passing_share(note->scan), 1.0, most));
}

void install_limit_hook() {
    previous_hook = ExecutorStart_hook;
    ExecutorStart_hook = start_executor;
}

}  // namespace pgwarp
