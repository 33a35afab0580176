// Many queries that share one scan of the lists. Sums of bytes give lower bounds of distances, for
// sixteen queries at once (group_scan.h). The entries that may be among the nearest then get their
// distances.
#pragma once

#include "kernels/interrupts.h"
#include "kernels/cpu/group_scan.h"
#include "kernels/cpu/list_search.h"

#include <tuple>
#include <vector>

namespace pgwarp {

// A list that a query probes, and its term of the distance.
struct Visit {
    bool late;  // one of the query's farther lists
    uint32_t list;
    uint32_t query;
    float term;

    friend bool operator<(const Visit& a, const Visit& b) {
        return std::tie(a.late, a.list, a.query) < std::tie(b.late, b.list, b.query);
    }
};

// A thread's scratch for many queries.
struct SharedScratch {
    std::vector<Visit> visits;
    std::vector<ByteTable> tables;
    std::vector<uint8_t> bytes;  // (queries)(m)(256)
    std::vector<uint8_t> interleaved;
    std::vector<uint16_t> sums, passed;
    std::vector<Candidate> candidates;  // (queries)(room of a selection)
    std::vector<CandidateSelection> selections;
    std::vector<float> terms;    // (queries)(probes), as in the batch's `probed`
    std::vector<float> largest;  // by query: the largest magnitude of a term of its distances
    SearchScratch single;
};

// Into how many tasks to divide the queries; 0: searching one by one is faster. Searches for a few
// of them, to know.
size_t shared_tasks(const StoredLists& stored, CpuBatch& batch, size_t queries, int threads);
// For tests: to share wherever it is possible, or where it pays.
void share_always(bool always);

// Answers the queries begin .. end - 1 of the batch: one task. A task may take long, so it polls
// `interrupts`.
void search_together(const StoredLists& stored, CpuBatch& batch, size_t begin, size_t end,
                     const Interrupts& interrupts, SharedScratch& scratch);

}  // namespace pgwarp
