// What the plan above a scan tells of the rows it will be asked for: how many, and how far away.
#pragma once

#include "extension/scan/bound.h"

extern "C" {
#include "access/genam.h"
#include "access/relscan.h"
}

namespace pgwarp {

// Of a scan that is about to return its first row.
struct WantedRows {
    uint32 rows;    // will probably be fetched: a hint, never a promise
    Size in_order;  // are fetched at most, by a known LIMIT; 0: nobody knows
};
WantedRows wanted_rows(IndexScanDesc scan);

// The bound that the query's conditions set to the distance it is ordered by.
DistanceBound wanted_bound(IndexScanDesc scan, Metric metric);

// Installs the executor hook that notes the ivfpq scans of a query.
void install_limit_hook();

}  // namespace pgwarp
