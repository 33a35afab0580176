#include "bench/truth.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "bench/neighbors.h"
#include "bench/random.h"

namespace pgwarp::bench {
namespace {

constexpr uint64_t values_seed = 16;

template <typename Number>
Vectors chosen(const Vectors& all, const std::vector<Number>& rows) {
    Vectors some{rows.size(), all.dims, {}};
    some.values.reserve(rows.size() * all.dims);
    for (const Number row : rows) {
        const auto values = all.row(static_cast<size_t>(row));
        some.values.insert(some.values.end(), values.begin(), values.end());
    }
    return some;
}

// Which of `passing` each query has.
size_t group_of(const Truth& truth, size_t query) {
    if (truth.values.empty()) return 0;
    const auto at =
        std::lower_bound(truth.distinct.begin(), truth.distinct.end(), truth.values[query]);
    return static_cast<size_t>(at - truth.distinct.begin());
}

}  // namespace

const Rows* Truth::rows_of(size_t query) const {
    return passing.empty() ? nullptr : &passing[group_of(*this, query)];
}

bool Truth::passes(size_t query, int32_t row) const {
    const Rows* rows = rows_of(query);
    return rows == nullptr || std::binary_search(rows->begin(), rows->end(), row);
}

Truth plain_truth(const RowNumbers& neighbors, size_t k) {
    Truth truth;
    for (size_t query = 0; query < neighbors.rows; query++) {
        const auto row = neighbors.row(query).first(std::min(k, neighbors.width));
        truth.neighbors.emplace_back(row.begin(), row.end());
    }
    return truth;
}

void set_values(Truth& truth, std::vector<int32_t> values) {
    truth.values = std::move(values);
    truth.distinct = truth.values;
    std::sort(truth.distinct.begin(), truth.distinct.end());
    truth.distinct.erase(std::unique(truth.distinct.begin(), truth.distinct.end()),
                         truth.distinct.end());
}

std::vector<int32_t> parameter_values(const Filter& filter, size_t queries) {
    std::vector<int32_t> values(queries);
    if (filter.is_query_number) {
        std::iota(values.begin(), values.end(), 0);
        return values;
    }
    const auto count = static_cast<size_t>(int64_t{filter.last} - filter.first + 1);
    Random random(values_seed);
    for (int32_t& value : values)
        value = static_cast<int32_t>(filter.first + static_cast<int64_t>(random.below(count)));
    return values;
}

void rank_passing(Truth& truth, Metric metric, const Vectors& base, const Vectors& queries,
                  size_t k, unsigned threads) {
    std::vector<std::vector<size_t>> queries_of(truth.passing.size());
    for (size_t query = 0; query < queries.rows; query++)
        queries_of[group_of(truth, query)].push_back(query);

    truth.neighbors.assign(queries.rows, {});
    double passing = 0;
    for (size_t group = 0; group < truth.passing.size(); group++) {
        const Rows& rows = truth.passing[group];
        const std::vector<size_t>& asked = queries_of[group];
        passing += double(rows.size()) * double(asked.size());
        if (rows.empty()) continue;
        // A base that passes whole is not copied: it may be most of the memory.
        const bool all = rows.size() == base.rows;
        const Vectors some = all ? Vectors{} : chosen(base, rows);
        const RowNumbers nearest =
            exact_neighbors(metric, all ? base : some, chosen(queries, asked), k, threads);
        for (size_t i = 0; i < asked.size(); i++)
            for (const int32_t place : nearest.row(i))
                truth.neighbors[asked[i]].push_back(rows[static_cast<size_t>(place)]);
    }
    if (passing == 0)
        throw std::runtime_error("no row passes the filter \"" + truth.filter.condition + "\"");
    truth.share = passing / (double(queries.rows) * double(base.rows));
}

}  // namespace pgwarp::bench
