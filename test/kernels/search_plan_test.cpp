// Layouts, keys and plans of the CUDA kernels, where there is no device.

#include "kernels/cuda/lists/code_tiles.h"
#include "kernels/cuda/select/keys.h"
#include "kernels/cuda/lists/search_layout.h"
#include "kernels/cuda/lists/search_plan.h"
#include "kernels/cuda/select/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/seed.h"

namespace pgwarp::gpu {
namespace {

TEST(Keys, CompareAsFloatsDo) {
    const float infinity = std::numeric_limits<float>::infinity();
    std::vector<float> values = {-infinity, -3e38f, -1.5f, -1e-42f, 0.0f,
                                 1e-42f,    1e-10f, 1.0f,  3e38f,   infinity};
    std::mt19937 random(test_seed());
    std::uniform_real_distribution<float> any(-1e6f, 1e6f);
    for (int i = 0; i < 100; ++i) values.push_back(any(random));
    for (float a : values)
        for (float b : values) {
            EXPECT_EQ(a < b, make_key(a, 7) < make_key(b, 7)) << a << ' ' << b;
            EXPECT_EQ(a == b, ordered_bits(a) == ordered_bits(b));
            EXPECT_EQ(ordered_value(ordered_bits(a)), a);
        }
    EXPECT_EQ(make_key(-0.0f, 3), make_key(0.0f, 3));
    EXPECT_LT(make_key(1.0f, 3), make_key(1.0f, 4));
    EXPECT_LT(make_key(infinity, no_index), no_key);
    EXPECT_TRUE(std::isnan(key_value(no_key)));
    EXPECT_EQ(key_index(make_key(-2.0f, 12345)), 12345u);
}

TEST(CodeTiles, HoldEveryByteOnce) {
    for (uint32_t m : {1u, 2u, 7u, 15u, 16u, 17u, 24u, 31u, 32u, 33u, 48u, 49u, 64u, 96u, 100u}) {
        const CodeLayout layout = CodeLayout::of(m);
        EXPECT_GE(layout.slices * layout.width, m);
        EXPECT_LT(layout.slices * layout.width, m + 16);
        std::set<uint32_t> places;
        for (uint32_t lane = 0; lane < tile_entries; ++lane)
            for (uint32_t j = 0; j < m; ++j) {
                const uint32_t place = layout.place(lane, j);
                EXPECT_LT(place, layout.tile_bytes());
                EXPECT_TRUE(places.insert(place).second);
            }
    }
}

// Byte `step` of a lane's loads is the column that the lane takes at that step, and eight-byte
// look-ups of 16 lanes at a time hit 16 different pairs of banks.
TEST(CodeTiles, FollowTheSteps) {
    for (uint32_t m : {16u, 32u, 96u}) {
        const CodeLayout layout = CodeLayout::of(m);
        for (uint32_t step = 0; step < layout.width; ++step)
            for (uint32_t half = 0; half < 2; ++half) {
                std::set<uint32_t> banks;
                for (uint32_t l = 16 * half; l < 16 * half + 16; ++l) {
                    const uint32_t column = layout.column(l, step);
                    EXPECT_EQ(layout.place(l, column),
                              step / 16 * (tile_entries * 16) + l * 16 + step % 16);
                    banks.insert(column % 16);
                }
                EXPECT_EQ(banks.size(), 16u);
            }
    }
}

TEST(SelectPlan, SplitsFewLongRows) {
    EXPECT_EQ(plan_select(10000, 128000, 100, 132).splits, 1u);
    EXPECT_EQ(plan_select(10000, 1000, 1000, 132).splits, 1u);
    EXPECT_GT(plan_select(1, 5000000, 10, 132).splits, 100u);
    EXPECT_EQ(plan_select(1, 1000, 10, 132).splits, 1u);
    for (uint32_t k : {1u, 128u, 129u, 1024u, 2048u})
        for (uint32_t rows : {1u, 7u, 100u, 5000u})
            for (uint32_t length : {1u, 100u, 10000u, 3000000u}) {
                const SelectPlan plan = plan_select(rows, length, k, 132);
                EXPECT_GE(plan.splits, 1u);
                // A part must be long enough to be worth its merging.
                if (plan.splits > 1) {
                    EXPECT_GE(length / plan.splits, 4 * k);
                }
            }
}

SearchShape shape_of(uint32_t queries, uint32_t probes, uint32_t k) {
    return {queries, k, probes, 128, 1024, 3000, 1000000, CodeLayout::of(32)};
}

void expect_slices_apart(const SearchPlan& plan) {
    std::vector<Slice> slices = {
        plan.coarse,     plan.probed,       plan.terms,       plan.tile_starts,
        plan.tables,     plan.keys,         plan.counts,      plan.first_counts,
        plan.bounds,     plan.distances,    plan.sizes,       plan.overflowed,
        plan.visits,     plan.item_starts,  plan.cursors,     plan.item_table,
        plan.item_count, plan.ranks,        plan.first_sizes, plan.first_item_starts,
        plan.answers,    plan.answer_counts};
    std::erase_if(slices, [](const Slice& s) { return s.bytes == 0; });
    std::sort(slices.begin(), slices.end(),
              [](const Slice& a, const Slice& b) { return a.at < b.at; });
    for (size_t i = 0; i + 1 < slices.size(); ++i)
        EXPECT_LE(slices[i].at + slices[i].bytes, slices[i + 1].at);
    EXPECT_LE(slices.back().at + slices.back().bytes, plan.scratch_bytes);
}

TEST(SearchPlan, ChoosesByVisits) {
    const DeviceFigures device{132, size_t{8} << 30};
    EXPECT_EQ(plan_search(shape_of(1, 32, 10), device).method, SearchMethod::by_query);
    EXPECT_EQ(plan_search(shape_of(64, 32, 10), device).method, SearchMethod::by_query);
    EXPECT_EQ(plan_search(shape_of(200, 32, 10), device).method, SearchMethod::by_query);
    // As many queries, but four times the lists to scan.
    EXPECT_EQ(plan_search(shape_of(200, 128, 10), device).method, SearchMethod::by_list);
    // Few visits a list: nothing to share.
    EXPECT_EQ(plan_search(shape_of(1000, 2, 10), device).method, SearchMethod::by_query);
    EXPECT_EQ(plan_search(shape_of(10000, 32, 10), device).method, SearchMethod::by_list);
    EXPECT_EQ(plan_search(shape_of(10000, 1024, 2048), device).method, SearchMethod::by_list);
    // One query, but enough blocks for the whole device.
    EXPECT_GT(plan_search(shape_of(1, 32, 10), device).splits, 64u);
}

TEST(SearchPlan, StaysInItsBudget) {
    for (size_t megabytes : {1, 16, 256, 4096})
        for (uint32_t queries : {1u, 64u, 10000u, 40000u})
            for (uint32_t k : {1u, 100u, 2048u})
                for (uint32_t probes : {1u, 32u, 1024u}) {
                    const DeviceFigures device{132, megabytes << 20};
                    const SearchPlan plan = plan_search(shape_of(queries, probes, k), device);
                    EXPECT_LE(plan.scratch_bytes, megabytes << 20);
                    EXPECT_GE(plan.part_queries, 1u);
                    EXPECT_LE(plan.part_queries, queries);
                    EXPECT_GE(plan.candidate_room, list_candidates(k));
                    if (plan.method == SearchMethod::by_list) {
                        EXPECT_GE(plan.first_room, list_candidates(k));
                        EXPECT_GE(plan.candidate_room, plan.splits * list_candidates(k));
                    }
                    expect_slices_apart(plan);
                }
}

// A list of half the store costs no more scratch space than even lists do, within a factor.
TEST(SearchPlan, DoesNotGrowWithTheLongestList) {
    const DeviceFigures device{132, size_t{64} << 30};
    SearchShape shape = shape_of(10000, 32, 10);
    const size_t even = plan_search(shape, device).scratch_bytes;
    shape.longest_list = 500000;
    EXPECT_LT(plan_search(shape, device).scratch_bytes, even + (size_t{64} << 20));
}

TEST(SearchPlan, SaysWhatCannotBe) {
    EXPECT_THROW(plan_search(shape_of(1, 32, 10), {132, 1000}), std::length_error);
}

}  // namespace
}  // namespace pgwarp::gpu
