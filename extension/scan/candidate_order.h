// Any number of candidates, sorted by (distance, id). Candidates that do not fit in memory spill to
// temporary files.
//
// An order lives in the memory context that is current when it is opened. Its files belong to the
// resource owner that is current when they are created, as with a Sort node. That is the portal's
// owner, so the files survive between two fetches of a cursor.
#pragma once

#include "kernels/candidates.h"
#include "extension/compat.h"

namespace pgwarp {

struct CandidateOrder;

// `bytes`: of memory to use before spilling.
CandidateOrder* open_candidate_order(Size bytes);
void put_candidate(CandidateOrder* order, const Candidate& candidate);

// Takes up to the given number of next candidates, each once; returns how many, 0 at the end. After
// the first take, no candidate may be put.
Size take_candidates(CandidateOrder* order, Candidate* to, Size most);

void close_candidate_order(CandidateOrder* order);

}  // namespace pgwarp
