// Candidates for many queries at once, from the lists of an index.
//
// Lists are copied from their pages into a store (list_store.h), which searches them for all
// queries together: page by page and lock by lock a query costs a third more, and a store may be on
// a device. What has been read stays good for the whole call, whatever happens to the index: it was
// read after the snapshot was taken, and a TID that was given to another row since then leads to a
// row that the snapshot does not see. An index that is larger than memory is read again for each
// batch, some lists at a time.
#pragma once

#include "extension/index/format.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// Lives in the memory context that is current when it is opened. Null where the model, or a single
// list, takes more than this memory.
struct ListSearch;
ListSearch* open_list_search(Relation index, const MetaPage& meta, Size memory, int threads);

// Whether lists are at hand that need not be read again.
bool holds_all_lists(const ListSearch* search);

struct ListWants {
    const float* forms;  // (count)(code_dims), as the model sees them
    uint32 count;
    uint32 probes;
    uint32 candidates;  // at most max_list_k
};
struct CandidateSink {
    void (*put)(void* state, uint32 query, uint64 tid);
    void* state;
};
// Hands over the nearest candidates of every query by their codes, in any order, each once.
void search_lists(ListSearch* search, const ListWants& wants, const CandidateSink& sink);

// Memory that a search takes beside the lists, for each query of a batch.
Size list_search_bytes(uint32 candidates);

}  // namespace pgwarp
