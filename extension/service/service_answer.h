// An answer of the service, as a backend has it.
#pragma once

#include "extension/service/client.h"
#include "extension/service/deadline.h"
#include "extension/service/service.h"

namespace pgwarp {

// A copy in the current memory context.
struct ServiceAnswer {
    // The device that answered; missing lists are sent to it. Null: several devices, see `devices`.
    ServiceDevice* device;
    const char* why;  // there is no answer
    Neighbor* found;
    uint32 found_count;
    // `found` has the least distance of each row, in any order; candidates that are not there are
    // no nearer than `left_out` (list_store.h).
    bool refined;
    float left_out;
    uint32 taken;          // lists that were searched; of one device: up to this rank
    bool would_take_more;  // than it was asked for, by its threshold
    bool complete;         // nothing is left to verify
    // Lists of the answer: in `probed`, with their versions. If the answer is complete, in `lists`,
    // by list_and_generation(), if the search is filtered, and nowhere otherwise. Null: not there.
    MirrorProbe* probed;
    uint64* lists;
    uint32 probed_count;
    bool some_complete;  // a part of the answer is complete: its lists are not in `probed`
    // (probed_count) The number of the device that has the list of `probed`, or should have it.
    // Null: all are of `device`.
    uint8* devices;
    uint32 asked;            // those that gave the answer, a bit each, where they are several
    MirrorProbe outdated;    // if resident: send the worker what it lacks of this list
    SearchedLists searched;  // if filtered
    bool sent_model;         // this search has sent the model
    Deadline deadline;       // the rest of it is for completing the answer
};

// Whether answers may be complete.
bool may_be_complete();

// Begins an answer to a search for k candidates.
void begin_answer(ServiceAnswer* answer, uint32 k);
// Copies the answer in the slot, for which begin_answer() was called. False: the slot has none, or
// there is no memory for it. `k` is what was asked for, `lists` those of the index. Reports no
// error: the slot has a block.
bool copy_answer(const SearchSlot* slot, uint32 k, uint32 lists, ServiceAnswer* answer);
void free_answer(ServiceAnswer* answer);

// The device that has, or should have, the i-th list of `probed`.
ServiceDevice* device_of(const ServiceAnswer& answer, uint32 i);

// Adds the candidates, at most k, of an answer with other lists than `all`. Each answer has all
// candidates of its lists up to its last one; the union has all up to the nearer of the two last
// ones. `same_lists`: both may have some of the lists, and then the same candidates of these.
void add_candidates(uint32 k, const ServiceAnswer& part, bool same_lists, ServiceAnswer* all);

// The same of refined answers: the union has all candidates of both.
void add_refined(const ServiceAnswer& part, bool same_lists, ServiceAnswer* all);

}  // namespace pgwarp
