// Joins that search an index for a batch of queries at a time.
//
//   SELECT ... FROM queries q CROSS JOIN LATERAL
//       (SELECT ... FROM items ORDER BY items.v <-> q.v LIMIT k) s
//
// PostgreSQL plans this as a Nested Loop that scans the index once for each row of `q`. Where it
// costs less, the planner hook (plan.cpp) puts a custom scan above the plan of `q`. The custom scan
// (execute.cpp) reads rows of `q` ahead, searches for all of them at once (knn/batch.h), and passes
// them on one by one. The Nested Loop and everything below its inner side remain as they are: the
// index scan there takes the rows that were found for its query (scan/given.h), and searches by
// itself where there are none. So limits, projections, permissions and join types are the
// executor's.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "nodes/extensible.h"
}

namespace pgwarp {

// Leaves of a partitioned table that a join searches: each has lists of its own, and each scan
// looks for its own among them.
inline constexpr int most_batch_scans = 256;

inline constexpr char batch_scan_name[] = "Ivfpq Batch";

// What the planner tells the custom scan: the indexes, and whether a device is to compare all rows
// with all queries (knn/device.h).
List* make_batch_private(List* indexes, bool on_device);

// The plan of the custom scan.
Plan* make_batch_scan(List* target, List* custom_private, Plan* child);

// Bytes for the queries of a batch with what they find, and for copies of lists.
struct BatchMemory {
    Size queries;
    Size lists;
};
BatchMemory batch_memory();
// The part of the memory for lists that one of several indexes gets, by its part of all pages.
Size memory_of_lists(Size all, int indexes, double part);

// Installs the hook of the planner.
void install_join_planner();
// Installs the hook of the executor.
void install_join_executor();

}  // namespace pgwarp
