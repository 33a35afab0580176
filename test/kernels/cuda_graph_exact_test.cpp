// Exact k-NN graphs on the device, against float64 and the CPU's.

#include "test/kernels/cuda_graph_check.h"

namespace pgwarp::gpu {
namespace {

TEST_F(CudaGraph, ExactIsExact) {
    OnDevice device(options());
    for (size_t count : {1, 2, 33, 1000, 2500, 4096})
        for (Metric metric : all_metrics) {
            if (small_tests() && count > 2500) continue;
            const auto dims = static_cast<uint32_t>(between(random, 1, 140));
            const auto degree = static_cast<uint32_t>(between(random, 1, 40));
            const Made made(pgwarp::normal_floats(random, count * dims), dims, metric);
            SCOPED_TRACE(testing::Message() << count << " x " << dims << ", degree " << degree
                                            << ", metric " << static_cast<int>(metric));
            expect_exact(made, exact(device, made, degree), degree);
        }
}

// Whole numbers have exact distances: every place is decided, by row number among equals.
TEST_F(CudaGraph, ExactBreaksTiesByRow) {
    OnDevice device(options());
    for (Metric metric : {Metric::l2, Metric::inner_product, Metric::l1}) {
        const uint32_t dims = 24, degree = 10;
        const Made made(whole_floats(random, 3000 * dims, 9), dims, metric);
        const auto lists = exact(device, made, degree);
        const auto truth = made.exact(degree);
        size_t differ = 0;
        for (size_t i = 0; i < lists.size(); ++i) {
            ASSERT_EQ(lists[i].distance, truth[i].distance) << i;
            differ += lists[i].row != truth[i].row;
        }
        // Where more are as near as the last than there are candidates, any of them may stand.
        EXPECT_LE(differ, lists.size() / 1000) << static_cast<int>(metric);
    }
}

TEST_F(CudaGraph, ExactOfManyNeighbors) {
    OnDevice device(options());
    for (uint32_t degree : {31u, 100u, 700u, 1000u}) {
        const Made made(pgwarp::normal_floats(random, 1500 * 17), 17, Metric::l2);
        expect_exact(made, exact(device, made, degree), degree);
    }
}

// Enough rows for a short descent before, which gives limits.
TEST_F(CudaGraph, ExactOfManyRows) {
    if (small_tests()) GTEST_SKIP() << "takes long";
    OnDevice device(options());
    for (Metric metric : {Metric::l2, Metric::inner_product, Metric::cosine})
        for (bool clumps : {false, true}) {
            const uint32_t dims = 20, degree = 10;
            const size_t count = 110000;
            const Made made(clumps ? clustered_rows(random, count, dims, 300)
                                   : pgwarp::normal_floats(random, count * dims),
                            dims, metric);
            SCOPED_TRACE(testing::Message() << "metric " << static_cast<int>(metric) << clumps);
            const auto lists = exact(device, made, degree);
            expect_exact(made, lists, degree);
            // The two halves, merged, are the same.
            auto parts = made.unset_lists(degree);
            const size_t first = count / 2;
            const GraphRows& rows = made.rows;
            device->exact({rows.rows, first, dims, metric}, degree, parts.data());
            device->exact({rows.row(first), count - first, dims, metric}, degree,
                          parts.data() + first * degree);
            for (size_t i = first * degree; i < parts.size(); ++i)
                parts[i].row += static_cast<uint32_t>(first);
            device->exact_merge(rows, first, degree, parts.data());
            for (size_t i = 0; i < lists.size(); ++i)
                ASSERT_EQ(parts[i].distance, lists[i].distance) << i;
        }
}

// The filter's values are of no use there: all lists are searched again.
TEST_F(CudaGraph, ExactHoldsFarFromTheOrigin) {
    OnDevice device(options());
    for (float shift : {0.0f, 3000.0f})
        for (size_t clusters : {1, 20}) {
            const uint32_t dims = 24, degree = 10;
            auto values = clustered_rows(random, 3000, dims, clusters);
            // Tight clusters, far apart.
            for (size_t i = 0; i < 3000 * dims && clusters > 1; ++i) values[i] *= 100;
            for (float& value : values) value += shift;
            const Made made(values, dims, Metric::l2);
            const auto lists = exact(device, made, degree);
            expect_sound(made, lists, degree, degree, false);
            EXPECT_EQ(recall(made, lists, degree, degree), 1) << clusters << ", " << shift;
        }
}

// Neighbors that are far nearer to each other than to the rest: products cannot tell them apart.
TEST_F(CudaGraph, ExactOfTightClumps) {
    OnDevice device(options());
    struct Shape {
        uint32_t dims;
        size_t clumps, rows;  // rows of a clump
        float apart, spread;
    };
    for (const Shape& shape : {Shape{16, 8, 600, 1000, 0.05f}, Shape{2, 5, 1000, 1e6f, 300},
                               Shape{64, 20, 200, 1, 2e-5f}, Shape{1, 1, 5000, 1, 1}})
        for (Metric metric : {Metric::l2, Metric::cosine})
            for (uint32_t degree : {10u, 30u}) {
                if (small_tests() && degree > 10) continue;
                // On a line all directions are the same.
                if (metric == Metric::cosine && shape.dims == 1) continue;
                const size_t count = shape.clumps * shape.rows;
                const auto centres =
                    pgwarp::normal_floats(random, shape.clumps * shape.dims, shape.apart);
                auto values = pgwarp::normal_floats(random, count * shape.dims, shape.spread);
                for (size_t i = 0; i < values.size(); ++i)
                    values[i] +=
                        centres[i / shape.dims % shape.clumps * shape.dims + i % shape.dims];
                const Made made(values, shape.dims, metric);
                SCOPED_TRACE(testing::Message() << shape.dims << " dims, degree " << degree
                                                << ", metric " << static_cast<int>(metric));
                const auto lists = exact(device, made, degree);
                expect_sound(made, lists, degree, degree, false);
                EXPECT_EQ(recall(made, lists, degree, degree, 60), 1);
            }
}

TEST_F(CudaGraph, ExactPartsMakeTheWhole) {
    OnDevice device(options());
    for (Metric metric : all_metrics)
        for (size_t first : {0, 1, 512, 3000, 5299, 5300}) {
            if (small_tests() && first != 3000) continue;
            const uint32_t dims = 19, degree = 12;
            const Made made(pgwarp::normal_floats(random, 5300 * dims), dims, metric);
            const GraphRows& rows = made.rows;
            const auto whole = exact(device, made, degree);
            auto parts = made.unset_lists(degree);
            device->exact({rows.rows, first, dims, metric}, degree, parts.data());
            device->exact({rows.row(first), rows.count - first, dims, metric}, degree,
                          parts.data() + first * degree);
            for (size_t i = first * degree; i < parts.size(); ++i)
                if (parts[i].row != no_row) parts[i].row += static_cast<uint32_t>(first);
            device->exact_merge(rows, first, degree, parts.data());
            for (size_t i = 0; i < whole.size(); ++i) {
                ASSERT_EQ(parts[i].distance, whole[i].distance) << "border " << first << ", " << i;
                ASSERT_EQ(parts[i].row, whole[i].row) << "border " << first << ", edge " << i;
            }
        }
}

}  // namespace
}  // namespace pgwarp::gpu
