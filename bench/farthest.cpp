#include "bench/farthest.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bench/parallel.h"

namespace pgwarp::bench {
namespace {

// The `count` farthest rows; ties by row number.
std::vector<int32_t> farthest_rows(Metric metric, const Vectors& base, std::span<const float> query,
                                   size_t count) {
    std::vector<double> distances(base.rows);
    for (size_t row = 0; row < base.rows; row++)
        distances[row] = distance(metric, query, base.row(row));
    std::vector<int32_t> rows(base.rows);
    std::iota(rows.begin(), rows.end(), 0);
    std::nth_element(rows.begin(), rows.begin() + ptrdiff_t(count) - 1, rows.end(),
                     [&](int32_t a, int32_t b) {
                         return distances[size_t(a)] != distances[size_t(b)]
                                    ? distances[size_t(a)] > distances[size_t(b)]
                                    : a < b;
                     });
    rows.resize(count);
    return rows;
}

}  // namespace

std::vector<int32_t> farthest_labels(Metric metric, const Vectors& base, const Vectors& queries,
                                     double share, unsigned threads) {
    const auto wanted = static_cast<size_t>(std::llround(share * double(base.rows)));
    const size_t count = std::clamp<size_t>(wanted, 1, base.rows);
    std::vector<std::vector<int32_t>> rows_of(queries.rows);
    parallel_pieces(queries.rows, threads, [&](unsigned, size_t query) {
        rows_of[query] = farthest_rows(metric, base, queries.row(query), count);
    });
    std::vector<std::vector<int32_t>> queries_of(base.rows);
    for (size_t query = 0; query < queries.rows; query++)
        for (const int32_t row : rows_of[query])
            queries_of[size_t(row)].push_back(static_cast<int32_t>(query));

    // Rows with the least choice first; each goes to the query that has the fewest yet.
    std::vector<size_t> order(base.rows);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return queries_of[a].size() < queries_of[b].size();
    });
    std::vector<int32_t> labels(base.rows, -1);
    std::vector<size_t> given(queries.rows);
    for (const size_t row : order) {
        if (queries_of[row].empty()) continue;
        const int32_t query = *std::min_element(
            queries_of[row].begin(), queries_of[row].end(),
            [&](int32_t a, int32_t b) { return given[size_t(a)] < given[size_t(b)]; });
        labels[row] = query;
        given[size_t(query)]++;
    }
    return labels;
}

}  // namespace pgwarp::bench
