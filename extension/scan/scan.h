// Index scans: the access method's callbacks, and scans without an executor node.
#pragma once

#include "kernels/common.h"
#include "extension/scan/repeated_search.h"

extern "C" {
#include "access/genam.h"
#include "access/relscan.h"
#include "utils/rel.h"
}

namespace pgwarp {

IndexScanDesc ivfpq_begin_scan(Relation index, int keys, int order_bys);
void ivfpq_rescan(IndexScanDesc scan, ScanKey keys, int key_count, ScanKey order_bys,
                  int order_by_count);
bool ivfpq_get_tuple(IndexScanDesc scan, ScanDirection direction);
void ivfpq_end_scan(IndexScanDesc scan);

// For a scan without an executor node: how many rows the caller will use. The scan selects
// `passed_over` more candidates for rows that the caller fetches and skips.
void want_rows(IndexScanDesc scan, uint32 rows, uint32 passed_over = 0);

// For a scan that repeats a search, which stays the caller's. Such a scan is not counted.
void repeat_search(IndexScanDesc scan, const RepeatedSearch* search);

// The exact distance of the row that the scan returned last, as exact_distance() has it.
double returned_distance(IndexScanDesc scan);

}  // namespace pgwarp
