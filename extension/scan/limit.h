// What the plan says about the rows that will be fetched from a scan: how many, and how far away.
#pragma once

#include "extension/scan/bound.h"

extern "C" {
#include "access/genam.h"
#include "access/relscan.h"
}

namespace pgwarp {

// For a scan that is about to return its first row.
struct WantedRows {
    uint32 rows;    // expected number of fetched rows: a hint, never a promise
    Size in_order;  // most rows fetched, LIMIT plus OFFSET; 0: unknown
};
WantedRows wanted_rows(IndexScanDesc scan);

// The bound that the query's conditions set on the distance that the scan is ordered by.
DistanceBound wanted_bound(IndexScanDesc scan, Metric metric);

// Installs the executor hook that notes the ivfpq scans of a query.
void install_limit_hook();

}  // namespace pgwarp
