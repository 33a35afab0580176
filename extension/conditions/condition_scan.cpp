#include <algorithm>
#include <cmath>

#include "extension/am/callbacks.h"
#include "extension/conditions/condition_scan.h"

extern "C" {
#include "executor/executor.h"
}

namespace pgwarp {

namespace {

bool is_ordered_path(const Path* path) {
    if (!IsA(path, IndexPath) || path->pathtype != T_IndexScan || path->param_info) return false;
    const IndexPath* index = reinterpret_cast<const IndexPath*>(path);
    // What an index cannot answer, it prices at infinity.
    return path->pathkeys != NIL && list_length(index->indexorderbys) == 1 &&
           compat_is_cost_function(index->indexinfo, ivfpq_cost) &&
           !index->indexinfo->hypothetical && std::isfinite(index->indextotalcost);
}

}  // namespace

List* ordered_paths(const RelOptInfo* table) {
    List* paths = NIL;
    for (const ListCell* cell = list_head(table->pathlist); cell;
         cell = lnext(table->pathlist, cell))
        if (is_ordered_path(static_cast<const Path*>(lfirst(cell))))
            paths = lappend(paths, lfirst(cell));
    return paths;
}

void set_search_costs(IndexScan* search, const CustomPath* path, Cost source) {
    Plan* plan = &search->scan.plan;
    plan->plan_rows = path->path.rows;
    plan->startup_cost = std::max(0.0, path->path.startup_cost - source);
    plan->total_cost = std::max(0.0, path->path.total_cost - source);
}

void begin_children(ConditionScan* state, EState* estate, int flags) {
    const List* plans = reinterpret_cast<const CustomScan*>(state->ss.ps.plan)->custom_plans;
    PlanState* search = ExecInitNode(static_cast<Plan*>(linitial(plans)), estate, flags);
    state->search = castNode(IndexScanState, search);
    state->source = ExecInitNode(static_cast<Plan*>(lsecond(plans)), estate, flags);
    state->custom_ps = list_make2(search, state->source);
}

void rescan_children(CustomScanState* node) {
    auto* state = static_cast<ConditionScan*>(node);
    ExecClearTuple(state->ss.ss_ScanTupleSlot);
    if (state->ss.ps.chgParam) {
        UpdateChangedParamSet(&state->search->ss.ps, state->ss.ps.chgParam);
        UpdateChangedParamSet(state->source, state->ss.ps.chgParam);
    }
    // The ordered scan drops what it has of the condition before that goes.
    ExecReScan(&state->search->ss.ps);
    if (state->source->chgParam) state->made = false;
    if (!state->made && !state->source->chgParam) ExecReScan(state->source);
    state->told = false;
}

void end_children(CustomScanState* node) {
    auto* state = static_cast<ConditionScan*>(node);
    ExecEndNode(&state->search->ss.ps);
    ExecEndNode(state->source);
}

}  // namespace pgwarp
