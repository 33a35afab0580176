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
#include "extension/index/format.h"

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

// The squared distance of the nearest centroid from a form; 0: unknown, as lists have parents.
float nearest_list(ListSearch* search, const float* form);
// How many lists a query takes whose radius is known (kernels/list_effort.h), beginning with
// `least` of them: about, as lists count as of equal length. Where lists have parents: all.
uint32 lists_within(ListSearch* search, const float* form, float radius, float threshold,
                    uint32 least, double list_entries);

struct ListWants {
    const float* forms;  // (count)(code_dims), by model_form()
    uint32 count;
    uint32 probes;
    uint32 candidates;  // at most max_list_k
    uint32 k;
    const uint32* own_probes = nullptr;  // (count): no more than these of a query
    // Above 0: a query decides how many of these lists it takes (kernels/list_effort.h).
    float threshold = 0;
    uint32 first_entries = 0;
    uint32 first_lists = 0;
    uint32 wider_k = 0;
    // Above 0: a query decides how many of these candidates it ranks, at least so many
    // (index/effort.h).
    float margin = 0;
    uint32 least_candidates = 0;
};
struct CandidateSink {
    void (*put)(void* state, uint32 query, uint64 tid);
    void* state;
    // Called instead of put() for a query all of whose candidates are within its margin: there may
    // be more of them. May be null.
    void (*want_more)(void* state, uint32 query) = nullptr;
    // Not null: called once for each query, instead of both, with all that it has found, nearest by
    // code first. How many of these are worth ranking is the caller's to decide.
    void (*all)(void* state, uint32 query, const Neighbor* found, uint32 count) = nullptr;
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
