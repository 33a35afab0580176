// What a scan does with the service's answer: nothing of it is believed before the pages agree.
//
// The answer names the lists it looked into and the versions it had of them. A list whose version
// is in the pages now is mirrored truly; one that has only grown since is completed from its pages;
// one that is not resident is read from its pages; and with one that lost or moved an entry the
// whole answer is worth nothing, since that entry may be anywhere in it.
#pragma once

#include "extension/service/service.h"
#include "extension/service/patience.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// A copy in the current memory context.
struct ServiceAnswer {
    Neighbor* found;
    uint32 found_count;
    MirrorProbe* probed;
    uint32 probed_count;
    Patience patience;  // what is left of it, for what completes the answer
};

// Asks for the k nearest by their codes. False where the service has no answer, for whatever
// reason; what it lacks of the index is sent to it then.
bool ask_for_candidates(Relation index, const MetaPage& meta, const float* form, uint32 k,
                        uint32 probes, ServiceAnswer* answer);

// Reads from pages what the answer lacks.
struct CompletionVisitor {
    // Before the first visit, with no lock held.
    void (*prepare)(void* state);
    // The entries of a page from `first` on, under its share lock. A page may be seen twice.
    void (*visit)(void* state, uint32 list, Page page, const EntryLayout& layout, uint32 first);
    void* state;
};
struct Completion {
    bool current;      // the answer, with what follows and what was visited, is the truth
    uint64* appended;  // TIDs of entries that were not visited: so few that their rows tell all
    uint32 appended_count;
    uint32 read_lists;  // from pages, as they were not resident
    uint32 grown_lists;
    const char* because;  // not current
};
inline constexpr uint32 most_appended = 64;
Completion complete_answer(Relation index, const MetaPage& meta, const ServiceAnswer& answer,
                           const CompletionVisitor& visitor);

}  // namespace pgwarp
