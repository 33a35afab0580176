// What the custom scans of this folder share. Each has two children: the ordered scan of an ivfpq
// index, and a source, which is read first and gives the ordered scan a further condition. The
// source is a bitmap of other indexes (bitmap_scan.h), or has the keys of a semi-join
// (semi_join.h).
#pragma once

#include "extension/util/custom_scan.h"

extern "C" {
#include "nodes/execnodes.h"
#include "nodes/pathnodes.h"
#include "nodes/plannodes.h"
}

namespace pgwarp {

// --- the planner

// The index paths of a table, of ivfpq indexes, that have rows in the order of a distance.
List* ordered_paths(const RelOptInfo* table);

// Sets the ordered scan's rows and costs to those of the custom path, less those of the source: its
// own path was priced without the condition.
void set_search_costs(IndexScan* search, const CustomPath* path, Cost source);

// --- the executor

struct ConditionScan : CustomScanState {
    IndexScanState* search;  // the ordered scan
    PlanState* source;
    MemoryContext context;  // of the condition
    bool made;              // the condition
    bool told;              // the ordered scan has the condition
};

void begin_children(ConditionScan* state, EState* estate, int flags);

// Methods of the nodes. The condition stays for rescans that do not change the source's parameters.
void rescan_children(CustomScanState* node);
void end_children(CustomScanState* node);

}  // namespace pgwarp
