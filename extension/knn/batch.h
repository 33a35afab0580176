// The nearest rows for many queries, a batch at a time.
//
// One search of the lists finds the candidates of all queries of a batch (lists.h). Their rows are
// visited in the order of TIDs, each once, even if it is a candidate of several queries: a page of
// the table is pinned once a batch, and a vector is fetched once, together with its key. A query
// may have fewer than k rows then, because candidates are not visible or its lists are short. An
// ordinary index scan answers it instead. Where rows have to meet conditions, an SQL query answers
// each query (query.h); conditions that a caller checks itself, by KnnIndex::check, are checked on
// candidate rows, of which there are more then. An exact search (scan/exact.h) compares every row
// with all queries of the batch.
#pragma once

#include "extension/knn/query.h"

namespace pgwarp {

// Lives in the memory context that is current when it is opened; `index` outlives it.
struct KnnBatch;
// Bytes that a batch may take: for queries with their candidates and rows, while it searches; for
// lists and TIDs, as long as it is open.
struct KnnMemory {
    Size queries;
    Size lists;
};
// An index of a partitioned table is searched by a query: merged_batch.h searches its leaves.
// `threads` outlive the batch; null: it has its own.
struct SearchThreads;
KnnBatch* open_knn_batch(const KnnIndex& index, uint32 k, const KnnMemory& memory,
                         SearchThreads* threads = nullptr);
// Null where memory does not hold one query.
KnnBatch* try_knn_batch(const KnnIndex& index, uint32 k, const KnnMemory& memory,
                        SearchThreads* threads = nullptr);
void close_knn_batch(KnnBatch* batch);

// How many queries the coming searches will have in all: what one search reads may serve the
// others.
void expect_queries(KnnBatch* batch, uint32 count);
// The most queries of one search: memory has room for them and for the caller's vectors.
uint32 most_queries(const KnnBatch* batch);
// The fewest for which the next search is cheaper than a scan each.
uint32 least_queries(const KnnBatch* batch);

// The effort of searches of the lists: the same for all queries, or the mean of what they decide.
struct KnnEffort {
    bool exact;
    bool served;   // the service finds candidates
    uint32 lists;  // of the index; 0: it is untrained
    uint32 probes;
    uint32 candidates;
};
KnnEffort effort_of(const KnnBatch* batch);

// The k nearest rows of each query, of all parts that are searched, at once or one after the other.
struct NearestRows {
    MemoryContext context;  // reset by begin_rows()
    uint32 k;
    uint32 count;     // of queries
    KnnRow* rows;     // (count)(k): heaps with the farthest on top, until they are sorted
    uint32* counts;   // (count)
    uint32* dropped;  // (count): candidates without a wanted row, since begin_parts()
    bool again;       // rows may be offered that were offered before
};
// Lives in the memory context that is current.
NearestRows* open_nearest_rows(uint32 k);
// Bytes for each query.
Size found_bytes(uint32 k);
void begin_rows(NearestRows* found, uint32 count);
// Those of some of the queries.
NearestRows rows_of_some(const NearestRows& found, uint32 first, uint32 count);
// Nearest first, with the operator's distances.
void sort_rows(NearestRows* found, const KnnIndex& index);

// Searches for these queries, (found->count)(dims), in several indexes of one table. All have the
// same k. If their candidates can be compared, this is one search. `equal`: what rows have to equal
// for each of them, (found->count)(KnnIndex::equal_count).
void search_batches(KnnBatch* const* batches, int count, const float* queries, NearestRows* found,
                    const KnnValues& equal = {});

// The same for queries whose nearest rows are known but for their order, some more than k of each.
// places: (count)(most), of visible versions, by places_of(); found: (count). Places of other
// leaves are not this batch's.
struct FoundPlaces {
    const uint64* places;
    const uint32* found;
    uint32 most;
};
void rank_batch(KnnBatch* batch, const float* queries, const FoundPlaces& near, NearestRows* found);

// The rows of a query, once they are sorted.
struct KnnRows {
    const KnnRow* rows;
    uint32 count;
};
inline KnnRows rows_of(const NearestRows& found, uint32 query) {
    return {found.rows + Size{query} * found.k, found.counts[query]};
}
// With a KnnIndex::check: whether as many rows passed as the recall asked for needs. Otherwise a
// scan has to go on.
bool is_complete(const KnnBatch* batch, uint32 query);

}  // namespace pgwarp
