// The nearest rows for very many queries, by a device that compares every query with every row.
//
// With many queries for the size of the table, this takes less time than visiting candidate rows
// one by one. Workers read the table sequentially, once a batch. The result is exact, and the index
// is not read. Of a partitioned table whose rows have no key, the leaves are read one after the
// other, and what is found in each is merged by distance.
#pragma once

#include "extension/knn/index.h"

namespace pgwarp {

// Lives in the memory context that is current when it is opened; `index` outlives it.
struct KnnDevice;
// `queries` is an estimate. Null: a device does not pay for that many, or there is none.
KnnDevice* open_knn_device(const KnnIndex& index, uint32 k, double queries);
void close_knn_device(KnnDevice* device);

// The most queries of one search_on_device(): memory has room for them and the caller's vectors.
uint32 most_queries(const KnnDevice* device);

// Searches for these queries, (count)(dims). False: the device failed, or there are vectors that it
// cannot compare; there are no results then.
bool search_on_device(KnnDevice* device, const float* queries, uint32 count);

// About how many seconds a device takes, with its start and without; through the lists.
double seconds_on_device(double rows, double dims, double queries);
inline constexpr double seconds_of_start = 0.5;
double seconds_in_lists(double queries);
// The most rows of a query.
inline constexpr uint32 most_device_rows = 1024;

// The places of a query's rows, of the visible versions, nearest first; returns how many, at most
// k. Where the index is partitioned, a place tells its leaf.
uint32 places_of(const KnnDevice* device, uint32 query, uint64* places);
// A TID as a number has 48 bits.
inline constexpr int place_bits = 48;
inline constexpr uint64 place_of_leaf(uint32 leaf, uint64 tid) {
    return uint64{leaf} << place_bits | tid;
}
inline constexpr uint32 leaf_of_place(uint64 place) {
    return static_cast<uint32>(place >> place_bits);
}
inline constexpr uint64 tid_of_place(uint64 place) {
    return place & ((uint64{1} << place_bits) - 1);
}
// A query's rows, nearest first, with the operator's distances; returns their number, at most k.
uint32 rows_of(const KnnDevice* device, uint32 query, KnnRow* rows);

}  // namespace pgwarp
