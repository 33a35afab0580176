// The true answers to the queries of a run, among all rows or among those that pass a filter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/filter.h"
#include "bench/metric.h"
#include "bench/vecs_file.h"
#include "bench/vectors.h"

namespace pgwarp::bench {

// Rows that pass, in ascending order.
using Rows = std::vector<int32_t>;

struct Truth {
    Filter filter;
    double share = 1;               // of the rows that pass, on average over the queries
    std::vector<int32_t> values;    // of $2, one a query; empty: the condition has no $2
    std::vector<int32_t> distinct;  // the same, in ascending order, each once
    std::vector<Rows> passing;      // one for each of `distinct`; one alone if there are none;
                                    // empty without a condition
    std::vector<std::vector<int32_t>> neighbors;  // (query)(rank), nearest first

    // The rows that pass for this query; null: all.
    const Rows* rows_of(size_t query) const;
    bool passes(size_t query, int32_t row) const;
};

// Without a condition: the first k of each row of exact neighbors.
Truth plain_truth(const RowNumbers& neighbors, size_t k);

// Sets values and distinct.
void set_values(Truth& truth, std::vector<int32_t> values);

// A value of $2 for each query. Drawn ones are the same in every run.
std::vector<int32_t> parameter_values(const Filter& filter, size_t queries);

// Sets share and neighbors from `passing`. Throws if no row passes for any query.
void rank_passing(Truth& truth, Metric metric, const Vectors& base, const Vectors& queries,
                  size_t k, unsigned threads);

}  // namespace pgwarp::bench
