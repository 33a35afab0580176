// Entries of a list page that pass the conditions of a scan.
#pragma once

#include "extension/scan/state.h"

namespace pgwarp {

// Offers them to the selection, and counts entries, passing or not.
// Called with the page locked; entries before `first` are passed over.
void gather_passing(ScanState* s, CandidateSelection* selection, uint32 list, Page page,
                    const EntryLayout& layout, uint32 first);

}  // namespace pgwarp
