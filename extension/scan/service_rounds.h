// A round that the service answers, in steps: one scan takes them one after the other
// (service_rounds.cpp), scans of partitions take each together (joint_answers.cpp).
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

// --- service_search.cpp

// About how many entries this many lists have; 0: unknown.
double entries_in(IndexScanDesc scan, const ScanState* s, uint32 lists);
// Lists for a search with conditions that this share of the entries passes. Lists too many cost a
// device little; too few cost another search.
uint32 probes_for(const ScanState* s, double share);
// The share of the entries that is taken to pass, for the first search.
double first_share(IndexScanDesc scan);
// What a round asks for. False: too much.
bool plan_search(IndexScanDesc scan, ScanState* s, PlannedSearch* plan);
// The next search of a round with this many candidates left to ask for.
void begin_search(const ScanState* s, Size left, bool refined, WantedSearch* search);
// The first of several searches for the lists of a search, or the only one.
WantedSearch first_part(const ScanState* s, const WantedSearch& search);

}  // namespace pgwarp
