// Shared by the tests of k-NN graphs: rows, their true neighbors, and the invariants of any graph.
#pragma once

#include "kernels/knn_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/reference.h"

namespace pgwarp {

inline constexpr float infinity = std::numeric_limits<float>::infinity();

struct Made {
    std::vector<float> values;
    GraphRows rows;

    Made(std::vector<float> made, uint32_t dims, Metric metric)
        : values(std::move(made)), rows{values.data(), values.size() / dims, dims, metric} {
        if (metric != Metric::cosine) return;
        for (size_t i = 0; i < rows.count; ++i) {
            float* row = values.data() + i * dims;
            const double norm = std::sqrt(reference_product(row, row, dims));
            for (uint32_t d = 0; d < dims; ++d) row[d] = static_cast<float>(row[d] / norm);
        }
    }
    Made(const Made&) = delete;

    double distance(size_t a, size_t b) const {
        const float *x = rows.row(a), *y = rows.row(b);
        double sum = 0;
        switch (rows.metric) {
            case Metric::l2:
                return reference_squared_l2(x, y, rows.dims);
            case Metric::cosine:
                return reference_squared_l2(x, y, rows.dims) / 2;
            case Metric::inner_product:
                return -reference_product(x, y, rows.dims);
            case Metric::l1:
                for (uint32_t d = 0; d < rows.dims; ++d) sum += std::fabs(double{x[d]} - y[d]);
        }
        return sum;
    }
    // The rounding error that a distance in float32 may have.
    double rounding(size_t a, size_t b) const {
        double terms = std::fabs(distance(a, b));
        if (rows.metric == Metric::inner_product)
            for (uint32_t d = 0; d < rows.dims; ++d)
                terms += std::fabs(double{rows.row(a)[d]} * rows.row(b)[d]);
        return terms * (4 + 4 * std::sqrt(static_cast<double>(rows.dims))) * 0x1p-24;
    }
    // The true neighbors of a row by (distance, row).
    std::vector<std::pair<double, uint32_t>> sorted(size_t row) const {
        std::vector<std::pair<double, uint32_t>> all;
        for (uint32_t other = 0; other < rows.count; ++other)
            if (other != row) all.emplace_back(distance(row, other), other);
        std::sort(all.begin(), all.end());
        return all;
    }
    std::vector<Edge> unset_lists(uint32_t degree) const {
        return std::vector<Edge>(rows.count * degree, Edge{infinity, no_row});
    }
    std::vector<Edge> exact(uint32_t degree, int threads = 2) const {
        auto lists = unset_lists(degree);
        make_cpu_graph_builder(threads, {})->exact(rows, degree, lists.data());
        return lists;
    }
    std::vector<Edge> descended(const DescentOptions& options, int threads = 2) const {
        auto lists = unset_lists(options.degree);
        make_cpu_graph_builder(threads, {})->descend(rows, options, lists.data());
        return lists;
    }
};

// Everything that a builder makes of the rows, `first` of which have a graph already.
inline std::vector<std::vector<Edge>> make_all_graphs(GraphBuilder& builder, const GraphRows& rows,
                                                      size_t first, const DescentOptions& options) {
    const uint32_t degree = options.degree;
    const GraphRows part{rows.rows, first, rows.dims, rows.metric};
    const std::vector<Edge> empty(rows.count * degree, Edge{infinity, no_row});
    std::vector<std::vector<Edge>> graphs(5, empty);
    builder.exact(rows, degree, graphs[0].data());
    builder.exact(part, degree, graphs[1].data());
    builder.exact_merge(rows, first, degree, graphs[1].data());
    builder.descend(rows, options, graphs[2].data());
    builder.descend(part, options, graphs[3].data());
    graphs[4] = graphs[3];
    builder.merge(rows, first, options, graphs[3].data());
    builder.append(rows, first, options, graphs[4].data());
    return graphs;
}

inline void expect_same(const std::vector<Edge>& a, const std::vector<Edge>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_EQ(a[i].row, b[i].row) << i;
        ASSERT_EQ(a[i].distance, b[i].distance) << i;
    }
}

// Checks the invariants of any graph. The first `sure` neighbors of a list must have distances
// computed from the rows, equal to the bit or up to rounding.
inline void expect_sound(const Made& made, const std::vector<Edge>& lists, uint32_t degree,
                         uint32_t sure, bool to_the_bit = true) {
    for (size_t row = 0; row < made.rows.count; ++row) {
        const Edge* list = lists.data() + row * degree;
        std::vector<uint32_t> seen;
        for (uint32_t i = 0; i < degree; ++i) {
            if (list[i].row == no_row) {
                EXPECT_EQ(list[i].distance, infinity);
                continue;
            }
            ASSERT_LT(list[i].row, made.rows.count);
            EXPECT_NE(list[i].row, row);
            seen.push_back(list[i].row);
            const Edge& before = list[i > 0 ? i - 1 : 0];
            ASSERT_NE(before.row, no_row);
            if (i >= sure) continue;
            EXPECT_LE(before.distance, list[i].distance);
            const float distance = graph_distance(made.rows.metric, made.rows.row(row),
                                                  made.rows.row(list[i].row), made.rows.dims);
            // A device sums in another order.
            if (to_the_bit)
                EXPECT_EQ(list[i].distance, distance);
            else
                EXPECT_NEAR(list[i].distance, distance, made.rounding(row, list[i].row));
        }
        std::sort(seen.begin(), seen.end());
        EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end()) << "twice, row " << row;
    }
}

// The fraction of the first k neighbors of some rows that are as near as the k-th true one.
inline double recall(const Made& made, const std::vector<Edge>& lists, uint32_t degree, uint32_t k,
                     size_t checked = 200) {
    size_t hits = 0, all = 0;
    const size_t step = std::max<size_t>(1, made.rows.count / checked);
    for (size_t row = 0; row < made.rows.count; row += step) {
        const auto truth = made.sorted(row);
        const size_t wanted = std::min<size_t>(k, truth.size());
        for (size_t i = 0; i < wanted; ++i) {
            const Edge& edge = lists[row * degree + i];
            ++all;
            if (edge.row == no_row) continue;
            const auto [farthest, other] = truth[wanted - 1];
            hits += made.distance(row, edge.row) <= farthest + made.rounding(row, other);
        }
    }
    return all ? static_cast<double>(hits) / static_cast<double>(all) : 1;
}

// Rows on a curved manifold of few dimensions in a space of many, like real data.
inline std::vector<float> surface_rows(std::mt19937& random, size_t count, uint32_t dims,
                                       uint32_t inner = 8) {
    const auto frame = normal_floats(random, size_t{inner} * dims);
    const auto bend = normal_floats(random, size_t{inner} * dims);
    const auto places = normal_floats(random, count * inner);
    std::vector<float> rows(count * dims);
    for (size_t i = 0; i < count; ++i)
        for (uint32_t d = 0; d < dims; ++d) {
            float straight = 0, bent = 0;
            for (uint32_t j = 0; j < inner; ++j) {
                straight += places[i * inner + j] * frame[j * dims + d];
                bent += places[i * inner + j] * bend[j * dims + d];
            }
            rows[i * dims + d] = straight + std::sin(bent);
        }
    return rows;
}

inline DescentOptions options_for(uint32_t k, uint64_t seed) {
    DescentOptions options = DescentOptions::for_neighbors(k);
    options.seed = seed;
    return options;
}

}  // namespace pgwarp
