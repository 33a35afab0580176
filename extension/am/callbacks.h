// Callbacks of the access method that have no header of their own, one file each.
#pragma once

#include "kernels/common.h"
#include "extension/compat.h"

extern "C" {
#include "access/amapi.h"
#include "nodes/pathnodes.h"
#include "utils/rel.h"
}

namespace pgwarp {

bool ivfpq_insert(Relation index, Datum* values, bool* nulls, ItemPointer tid, Relation heap,
                  IndexUniqueCheck check_unique, bool unchanged, IndexInfo* info);
IndexBulkDeleteResult* ivfpq_bulk_delete(IndexVacuumInfo* info, IndexBulkDeleteResult* stats,
                                         IndexBulkDeleteCallback callback, void* callback_state);
IndexBulkDeleteResult* ivfpq_vacuum_cleanup(IndexVacuumInfo* info, IndexBulkDeleteResult* stats);
void ivfpq_cost(PlannerInfo* root, IndexPath* path, double loop_count, Cost* startup_cost,
                Cost* total_cost, Selectivity* selectivity, double* correlation, double* pages);
bool ivfpq_validate(Oid opclass);

}  // namespace pgwarp
