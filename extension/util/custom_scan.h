// What our custom scans have in common: paths, plans and the methods of nodes.
//
// The state of a node is a struct that inherits CustomScanState.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "nodes/extensible.h"
}

namespace pgwarp {

// A path with the rows, the order and the costs of its first child, for the caller to change. Not
// parallel.
CustomPath* make_custom_path(List* children, const CustomPathMethods* methods);

// A plan whose rows are those of its first child, before the node's own projection.
CustomScan* make_custom_scan(List* target, List* children, List* custom_private,
                             const CustomScanMethods* methods);

// The methods that each of our nodes has.
constexpr CustomExecMethods custom_exec_methods(const char* name, auto begin, auto exec, auto end,
                                                auto rescan, auto explain) {
    CustomExecMethods methods = {};
    methods.CustomName = name;
    methods.BeginCustomScan = begin;
    methods.ExecCustomScan = exec;
    methods.EndCustomScan = end;
    methods.ReScanCustomScan = rescan;
    methods.ExplainCustomScan = explain;
    return methods;
}

// Methods of a plan whose nodes have this State, zeroed but for `methods`.
template <typename State, const CustomExecMethods& methods>
constexpr CustomScanMethods custom_scan_methods = {
    methods.CustomName, [](CustomScan*) {
        auto* state = static_cast<State*>(palloc0(sizeof(State)));
        NodeSetTag(state, T_CustomScanState);
        state->methods = &methods;
        return reinterpret_cast<Node*>(state);
    }};

// Stores the values of a row in a virtual slot. By reference: valid as long as the row is.
TupleTableSlot* store_values(TupleTableSlot* row, TupleTableSlot* slot);

// A child's row, or none, as the node returns it: through its scan slot and its projection.
TupleTableSlot* project_row(CustomScanState* node, TupleTableSlot* row);

}  // namespace pgwarp
