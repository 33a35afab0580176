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

// What a round asks for. False: too much.
bool plan_search(IndexScanDesc scan, ScanState* s, PlannedSearch* plan);
// The next search of a round with this many candidates left to ask for.
void begin_search(const ScanState* s, Size left, bool refined, WantedSearch* search);
// The first of several searches for the lists of a search, or the only one.
WantedSearch first_part(const ScanState* s, const WantedSearch& search);

// --- service_rounds.cpp

// Asks the service for the lists of the search; again, for more of them, where it would have taken
// more.
bool ask_for_lists(IndexScanDesc scan, ScanState* s, WantedSearch* search, ServiceAnswer* answer);

// An answer that is current with the pages, and the candidates of the lists that it has not.
struct TakenAnswer {
    WantedSearch search;
    ServiceAnswer answer;
    uint64* lists;  // of the answer: see ServiceProgress
    // The nearest by code first; behind these some whose code is unknown. Those of a refined answer
    // are not among them. In the memory for candidates.
    Candidate* candidates;
    Size by_code;
    Size unknown;
    Size found;     // candidates that the search has given, of search.k
    bool complete;  // `candidates` are all of these lists
    Candidate floor;
    bool from_pages;  // some are
    Size ranked;      // of by_code
    Neighbor last;    // of these
};
// False: the answer is not current, or does not go on where the ones before ended.
bool take_answer(IndexScanDesc scan, ScanState* s, const WantedSearch& search,
                 const ServiceAnswer& answer, TakenAnswer* taken);
// Of a refined answer: its candidates wait for visits, and so do those from pages, which are scored
// here. Those whose code is unknown are visited.
void refine_and_remember(IndexScanDesc scan, ScanState* s, const TakenAnswer& taken);
// Where the scan stands after its candidates were ranked.
void leave_answer(IndexScanDesc scan, ScanState* s, const TakenAnswer& taken);

}  // namespace pgwarp
