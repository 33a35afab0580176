// The state of a batch, and what its files know of each other: batch_open.cpp opens it,
// batch_search.cpp searches, batch_rows.cpp reads and ranks rows.
#pragma once

#include "extension/index/effort.h"
#include "extension/index/format.h"
#include "extension/knn/batch.h"
#include "extension/knn/lists.h"
#include "extension/scan/entries.h"
#include "extension/scan/row_walk.h"
#include "extension/table/heap_roots.h"

extern "C" {
#include "access/genam.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

// A candidate row of a query: its exact distance has to be computed.
struct CandidateRow {
    uint64 tid;
    uint32 query;
    bool is_wanted;  // it is missing if it has no row

    friend bool operator<(const CandidateRow& a, const CandidateRow& b) {
        return a.tid < b.tid || (a.tid == b.tid && a.query < b.query);
    }
};

struct CandidateRows {
    CandidateRow* rows;
    Size count;
    Size room;
};

template <typename T>
T* alloc_array(Size count) {
    return static_cast<T*>(
        MemoryContextAllocHuge(CurrentMemoryContext, Max(count, Size{1}) * sizeof(T)));
}

struct KnnBatch {
    MemoryContext context;
    MemoryContext batch_context;  // reset by each search
    const KnnIndex* index;
    Snapshot snapshot;
    uint32 k;
    KnnMemory memory;
    uint32 room;  // queries that fit into a batch
    RowReader* reader;
    IndexScanDesc scan;  // for queries short of rows, or too few for a batch; null until used
    KnnQuery* query;     // not null: search by SQL (KnnIndex::by_query)

    MetaPage meta;
    // A query is searched for this many nearest rows, visible or not, whether they pass the check
    // or not: its rows are complete where its k nearest are among them.
    uint32 limit;
    Effort effort;           // for these
    bool exact;              // the search compares all rows
    PendingEntries pending;  // all entries, for that
    SearchThreads* threads;
    ListSearch* lists;
    bool lists_tried;
    bool by_service;  // the last search was
    uint32 expected;  // queries of this search and of later ones, at least

    // Of the last search:
    const float* queries;  // (found->count)(dims)
    NearestRows* found;
    bool* few;  // (found->count): too few rows were found for the recall that is asked for
    CandidateRows candidates;
    RootFinder* roots;  // not null: candidates are visible versions, which may not be entries
};

// --- batch_open.cpp

// Begins a search for these queries.
void begin_search(KnnBatch* batch, const float* queries, NearestRows* found);
// Only rows are kept: other batches may search now.
void end_search(KnnBatch* batch);
// The lists for a search of this many queries. False: they cannot be had, or are not worth it.
bool open_lists(KnnBatch* batch, uint32 count);
// Whether queries decide on their effort, as single scans do. With lists, or by the service.
bool queries_decide(const KnnBatch* batch);
// What queries want of the batch's effort. `forms`: (count)(code_dims).
ListWants wants_of(const KnnBatch* batch, const float* forms, uint32 count);
// Puts the index's form of a query into this place of `forms`.
void form_query(const KnnBatch* batch, uint32 query, float* forms, uint32 place);
void check_batch_snapshot(const KnnBatch* batch);

// Whether a query's distances can be told from codes. A scan compares others with all rows.
bool has_codes_for(const KnnBatch* batch, uint32 query);
// Whether a scan goes on for queries that lack rows. That scan also finds rows without a finite
// distance, which come after all others.
bool scans_go_on(const KnnBatch* batch);

// --- batch_service.cpp

// Whether the service is to find the candidates of this many queries.
bool asks_service(const KnnBatch* batch, uint32 count);
struct ServedSink {
    // Called for queries that have a whole answer: their candidates, nearest by code first, and
    // entries that were appended to lists since the service got them, whose codes were not read.
    void (*put)(void* state, uint32 query, const Neighbor* found, uint32 count,
                const uint64* appended, uint32 appended_count);
    void* state;
};
// False: the service does not have the index, or not yet, and put() was not called.
bool search_service(const KnnBatch* batch, const ListWants& wants, const ServedSink& sink);

// --- batch_rows.cpp

// Counts the candidates of the parts that are searched next.
void begin_parts(NearestRows* found);
void add_candidate(KnnBatch* batch, uint32 query, uint64 tid, bool is_wanted);
// Offers rows to all queries.
void rank_for_all(KnnBatch* batch, TidSet* tids);
// Visits the rows of candidates in the order of TIDs, so that each page is pinned once, and forgets
// the candidates.
void rank_rows(KnnBatch* batch);
// Finds the rows of a query by an ordinary scan.
void scan_for(KnnBatch* batch, uint32 query);

}  // namespace pgwarp
