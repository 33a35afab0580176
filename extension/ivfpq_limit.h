// How many rows a scan is likely to be asked for: a hint, never a promise.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "access/relscan.h"
}

namespace pgwarp {

// Rows that will probably be fetched from a scan that is about to return its first.
uint32 wanted_rows(IndexScanDesc scan);

// Installs the executor hook that notes the ivfpq scans of a query.
void install_limit_hook();

}  // namespace pgwarp
