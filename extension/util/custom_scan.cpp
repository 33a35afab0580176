#include "extension/util/custom_scan.h"

#include <algorithm>

extern "C" {
#include "executor/executor.h"
}

namespace pgwarp {

CustomPath* make_custom_path(List* children, const CustomPathMethods* methods) {
    CustomPath* path = makeNode(CustomPath);
    path->path = *static_cast<const Path*>(linitial(children));
    path->path.type = T_CustomPath;
    path->path.pathtype = T_CustomScan;
    path->path.parallel_aware = path->path.parallel_safe = false;
    path->path.parallel_workers = 0;
    path->flags = compat_custom_projects;
    path->custom_paths = children;
    path->methods = methods;
    return path;
}

CustomScan* make_custom_scan(List* target, List* children, List* custom_private,
                             const CustomScanMethods* methods) {
    const auto* child = static_cast<const Plan*>(linitial(children));
    CustomScan* scan = makeNode(CustomScan);
    scan->scan.plan.targetlist = target;
    scan->custom_plans = children;
    scan->custom_scan_tlist = static_cast<List*>(copyObjectImpl(child->targetlist));
    scan->custom_private = custom_private;
    scan->flags = compat_custom_projects;
    scan->methods = methods;
    return scan;
}

TupleTableSlot* store_values(TupleTableSlot* row, TupleTableSlot* slot) {
    const int count = slot->tts_tupleDescriptor->natts;
    slot_getallattrs(row);
    ExecClearTuple(slot);
    std::copy_n(row->tts_values, count, slot->tts_values);
    std::copy_n(row->tts_isnull, count, slot->tts_isnull);
    return ExecStoreVirtualTuple(slot);
}

TupleTableSlot* project_row(CustomScanState* node, TupleTableSlot* row) {
    TupleTableSlot* slot = node->ss.ss_ScanTupleSlot;
    ProjectionInfo* projection = node->ss.ps.ps_ProjInfo;
    if (TupIsNull(row)) {
        ExecClearTuple(slot);
        return projection ? ExecClearTuple(projection->pi_state.resultslot) : slot;
    }
    // Expressions over the node's rows were made for virtual tuples.
    store_values(row, slot);
    if (!projection) return slot;
    ExprContext* context = node->ss.ps.ps_ExprContext;
    ResetExprContext(context);
    context->ecxt_scantuple = slot;
    return ExecProject(projection);
}

}  // namespace pgwarp
