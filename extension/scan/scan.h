// Scans of an index: the callbacks, and scans that no executor node drives.
#pragma once

#include "kernels/common.h"
#include "extension/compat.h"

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

// For a scan that no executor node drives: how many rows will be fetched, beside some that the
// caller passes over, for which there are as many candidates more.
void want_rows(IndexScanDesc scan, uint32 rows, uint32 passed_over = 0);

}  // namespace pgwarp
