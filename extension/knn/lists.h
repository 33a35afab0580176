// Candidates for many queries at once, from the lists of an index.
//
// Lists are copied from their pages into a store (list_store.h), which searches them for all
// queries together. Scanning pages under their locks costs a query a third more, and a store may be
// on a device. The copies stay valid for the whole call, whatever happens to the index: they were
// read after the snapshot was taken, and a TID that was reused since then leads to a row that the
// snapshot does not see. An index larger than memory is read again for each batch, a chunk of lists
// at a time.
#pragma once

#include "kernels/executor.h"
#include "extension/index/effort.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// Threads that searches share, of which one runs at a time. They start with the first store. Lives
// in the memory context that is current when it is made.
struct SearchThreads;
SearchThreads* make_search_threads();

// Lives in the memory context that is current when it is opened. `entries`: of all lists, about.
// Null: the model or a single list does not fit into this memory.
struct ListSearch;
ListSearch* open_list_search(Relation index, const MetaPage& meta, double entries, Size memory,
                             SearchThreads* threads);

// Whether all lists of an index with this number of list pages and entries would fit.
bool would_fit_all_lists(const MetaPage& meta, double pages, double entries, Size memory);

// Whether all lists are in the store, so that a search reads no pages.
bool holds_all_lists(const ListSearch* search);
// Whether all lists fit into the store: then queries may decide how many they take.
bool fits_all_lists(const ListSearch* search);

// The term of the nearest list (kernels/list_plan.h); infinity: unknown, as lists have parents.
float nearest_list(ListSearch* search, const float* form);

struct ListWants {
    const float* forms;  // (count)(code_dims), by model_form()
    uint32 count;
    uint32 probes;
    uint32 candidates;  // at most max_list_k
    uint32 k;
    // With a threshold, a query decides how many of these lists it takes.
    Effort effort = {};
    const float* radii = nullptr;  // (count): what other parts of the table tell (list_plan.h)
};
struct CandidateSink {
    // Called once for each query, with all that it has found, nearest by code first.
    void (*put)(void* state, uint32 query, const Neighbor* found, uint32 count);
    void* state;
};
// Searches for more candidates than others have a batch of their own in memory, so that neither has
// the other's size.
enum class ListRound { first, more };
// Passes the nearest candidates of every query, by code distance, to the sink, in any order.
void search_lists(ListSearch* search, const ListWants& wants, const CandidateSink& sink,
                  ListRound round = ListRound::first);

// Bytes that search_lists() allocates for each query, at most.
Size list_search_bytes(uint32 candidates);

}  // namespace pgwarp
