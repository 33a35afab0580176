// k-NN graphs on the device, for tests of the exact builder and of NN-Descent.
#pragma once

#include "kernels/cuda/graph/builder.h"
#include "kernels/device.h"

#include "test/kernels/cuda_fixture.h"
#include "test/kernels/graph_check.h"

namespace pgwarp::gpu {

class CudaGraph : public CudaTest {
  protected:
    std::mt19937 random{test_seed()};

    struct OnDevice {
        Context context;
        std::unique_ptr<GraphBuilder> builder;
        explicit OnDevice(const DeviceOptions& options)
            : context(options), builder(make_graph_builder(context)) {}
        GraphBuilder* operator->() const { return builder.get(); }
    };

    static std::vector<Edge> exact(OnDevice& device, const Made& made, uint32_t degree) {
        // Whatever was there before is no part of the graph.
        std::vector<Edge> lists(made.rows.count * degree, Edge{-5, 0});
        device->exact(made.rows, degree, lists.data());
        return lists;
    }

    // Places are those of float64, up to what float32 cannot tell apart.
    static void expect_exact(const Made& made, const std::vector<Edge>& lists, uint32_t degree) {
        expect_sound(made, lists, degree, degree, false);
        const size_t count = made.rows.count;
        for (size_t row = 0; row < count; row += 1 + count / 40) {
            const auto truth = made.sorted(row);
            for (uint32_t i = 0; i < degree; ++i) {
                const Edge& edge = lists[row * degree + i];
                if (i >= truth.size()) {
                    ASSERT_EQ(edge.row, no_row);
                    continue;
                }
                ASSERT_NE(edge.row, no_row) << "row " << row << ", place " << i;
                ASSERT_NEAR(edge.distance, truth[i].first, 2 * made.rounding(row, truth[i].second))
                    << "row " << row << ", place " << i;
            }
        }
    }

    // Two graphs of parts of the rows, side by side, with numbers in the whole.
    static std::vector<Edge> parts_of(OnDevice& device, const Made& made, size_t first,
                                      const DescentOptions& options, bool second_too) {
        auto lists = made.unset_lists(options.degree);
        const GraphRows& rows = made.rows;
        device->descend({rows.rows, first, rows.dims, rows.metric}, options, lists.data());
        if (!second_too) return lists;
        Edge* second = lists.data() + first * options.degree;
        device->descend({rows.row(first), rows.count - first, rows.dims, rows.metric}, options,
                        second);
        for (Edge* edge = second; edge != lists.data() + lists.size(); ++edge)
            if (edge->row != no_row) edge->row += static_cast<uint32_t>(first);
        return lists;
    }
};

}  // namespace pgwarp::gpu
