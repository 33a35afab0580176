// Candidates in the order of (distance, id), however many: what memory has no room for goes to
// temporary files.
//
// Lives in the memory context that is current when it is opened. Its files belong to the resource
// owner that is current when they are made, as those of a Sort node do: a portal's, whose runs may
// be far apart.
#pragma once

#include "kernels/candidates.h"
#include "extension/compat.h"

namespace pgwarp {

struct CandidateOrder;

// `bytes`: of memory.
CandidateOrder* open_candidate_order(Size bytes);
void put_candidate(CandidateOrder* order, const Candidate& candidate);

// Takes the next candidates, each once, at most as many as asked for; 0: there are no more. No
// candidate is put after the first was taken.
Size take_candidates(CandidateOrder* order, Candidate* to, Size most);

void close_candidate_order(CandidateOrder* order);

}  // namespace pgwarp
