// The nearest entries of one query's lists.
#pragma once

#include "kernels/candidates.h"
#include "kernels/nibble_scan.h"
#include "kernels/cpu/stored_lists.h"

#include <vector>

namespace pgwarp {

// A thread's scratch for one query.
struct SearchScratch {
    std::vector<float> terms, table, distances;
    std::vector<float> half_table;   // with four bits
    std::vector<uint8_t> low_table;  // likewise
    std::vector<NibbleHit> hits;
    std::vector<uint32_t> order;
    std::vector<float> parent_terms;
    std::vector<uint32_t> parent_order;
    // For sorting by terms:
    std::vector<uint64_t> keys, sorted_keys;
    std::vector<uint32_t> buckets, bucket_ends;
    std::vector<Candidate> candidates;
    std::vector<Condition> conditions;
    std::vector<uint64_t> passing;  // a bit for each entry of a list
    std::vector<int16_t> values;    // of a refined query
    std::vector<RefinedRange> ranges;
    std::vector<float> mosts;
};

// Computes the terms of all lists, and the batch's `probed`; returns the number of probes.
uint32_t rank_lists(const StoredLists& stored, CpuBatch& batch, size_t query,
                    SearchScratch& scratch);
// How many of the ranked lists a query takes that decides by itself (list_plan.h); after
// rank_lists(), with its table in the scratch. Other queries take all.
uint32_t limit_lists(const StoredLists& stored, const ListQuery& wanted, SearchScratch& scratch);
// Answers one query of the batch.
void search_one(const StoredLists& stored, CpuBatch& batch, size_t query, SearchScratch& scratch);

}  // namespace pgwarp
