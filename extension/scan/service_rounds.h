// What a round of a scan asks the service for.
#pragma once

#include "extension/scan/state.h"
#include "extension/service/client.h"
#include "extension/service/completion.h"

namespace pgwarp {

struct PlannedSearch {
    WantedSearch search;
    Size wanted;   // candidates of the round
    Size left;     // to ask for
    bool refined;  // by a device
    bool answered;
    ServiceAnswer answer;
};

// What a round asks for. False: too much.
bool plan_search(IndexScanDesc scan, ScanState* s, PlannedSearch* plan);
// The next search of a round with this many candidates left to ask for.
void begin_search(const ScanState* s, Size left, bool refined, WantedSearch* search);
// The first of several searches for the lists of a search, or the only one.
WantedSearch first_part(const ScanState* s, const WantedSearch& search);

}  // namespace pgwarp
