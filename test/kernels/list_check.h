// Batches that any list store must pass, of a world of synthetic lists.
#pragma once

#include "test/kernels/list_world.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace pgwarp {

// Refined batches that any store must pass.
inline std::vector<ListCase> refined_cases() {
    std::vector<ListCase> cases;
    const auto add = [&](auto change) {
        ListCase c;
        c.refined = true;
        c.k = 60;
        change(c);
        cases.push_back(c);
    };
    for (const Metric metric : {Metric::l2, Metric::inner_product, Metric::cosine})
        for (const uint32_t dims : {1u, 15u, 16u, 100u, 513u, 1000u})
            add([&](ListCase& c) { c.metric = metric, c.dims = dims, c.m = std::min(dims, 8u); });
    for (uint32_t k : {1u, 17u, 112u, 128u, 129u, 500u, 512u, 513u, 1024u, 2048u})
        for (uint32_t wanted : {1u, 30u, 2048u})
            add([&](ListCase& c) { c.k = k, c.refined_k = wanted, c.probes = 20, c.queries = 3; });
    // More dimensions than a block has threads, and all that a refinement may have.
    add([](ListCase& c) { c.dims = max_refined_dims, c.entries = 300, c.queries = 2; });
    add([](ListCase& c) { c.shift = 30; });
    add([](ListCase& c) { c.shift = 30, c.dims = 200, c.metric = Metric::cosine; });
    add([](ListCase& c) { c.bits = 4; });
    add([](ListCase& c) { c.additive = true; });
    add([](ListCase& c) { c.duplicates = true, c.m = 2, c.probes = 20; });
    add([](ListCase& c) { c.lists = 1, c.probes = 1; });
    add([](ListCase& c) { c.lists = 1, c.probes = 1, c.entries = 0; });
    add([](ListCase& c) { c.entries = 5, c.probes = 20; });
    add([](ListCase& c) { c.lists = 700, c.entries = 20000, c.probes = 300; });
    return cases;
}

// Some lists without refinements, and changes to others.
inline void check_refined_changes(ListStore& store, ListWorld& world, double rough = 0) {
    const ListCase& c = world.list_case();
    const auto search = [&] {
        const auto batch = world.make_batch(store);
        store.search(*batch, c.queries);
        for (size_t q = 0; q < c.queries; q += std::max<size_t>(1, c.queries / 20))
            world.check_refined(*batch, q, rough);
    };
    for (uint32_t l = 0; l < c.lists; l += 3) world.lists()[l].refinements.clear();
    world.put_all(store);
    search();
    // Lists with refinements keep them, the others get none.
    for (uint32_t l = 0; l < c.lists; l += 2) world.grow(store, l, 1 + l * 7 % 50);
    search();
    // All of a list's pages have them, or the list has none.
    const size_t before = store.bytes();
    for (uint32_t l = 2; l < c.lists; l += 6) {
        TestList more = world.make_list(l, 3);
        more.refinements.clear();
        TestList& here = world.lists()[l];
        here.refinements.clear();
        here.codes.insert(here.codes.end(), more.codes.begin(), more.codes.end());
        here.offsets.insert(here.offsets.end(), more.offsets.begin(), more.offsets.end());
        here.ids.insert(here.ids.end(), more.ids.begin(), more.ids.end());
        here.rows.insert(here.rows.end(), more.rows.begin(), more.rows.end());
        more.with_pages(c.m, 2, [&](std::span<const ListPage> pages) { store.append(l, pages); });
    }
    EXPECT_LT(store.bytes(), before);
    search();
    for (uint32_t l = 0; l < c.lists; ++l) store.drop(l);
    EXPECT_EQ(store.bytes(), 0u);
}

// Shapes that any store must pass.
inline std::vector<ListCase> list_cases() {
    std::vector<ListCase> cases;
    const auto add = [&](auto change) {
        ListCase c;
        change(c);
        cases.push_back(c);
    };
    add([](ListCase&) {});
    add([](ListCase& c) { c.metric = Metric::inner_product; });
    add([](ListCase& c) { c.metric = Metric::cosine; });
    for (uint32_t k : {1u, 16u, 17u, 31u, 32u, 33u, 48u, 49u, 100u, 113u, 1000u, 2048u})
        add([&](ListCase& c) { c.k = k, c.probes = 20, c.queries = 3; });
    for (uint32_t m : {1u, 2u, 5u, 16u, 17u, 31u, 32u}) add([&](ListCase& c) { c.m = m; });
    add([](ListCase& c) { c.dims = 1, c.m = 1; });
    add([](ListCase& c) { c.dims = 100, c.m = 33; });
    add([](ListCase& c) { c.dims = 65, c.m = 64; });
    add([](ListCase& c) { c.dims = 130, c.m = 100, c.entries = 5000; });
    // As many slices of the table as fit into shared memory beside each kind of selection, and
    // more.
    for (uint32_t m : {80u, 112u, 144u, 176u, 192u})
        for (uint32_t k : {200u, 2048u})
            add([&](ListCase& c) {
                c.dims = 200, c.m = m, c.k = k, c.entries = 3000, c.queries = 3;
            });
    add([](ListCase& c) { c.lists = 1, c.probes = 1; });
    add([](ListCase& c) { c.lists = 1, c.probes = 1, c.entries = 0; });
    add([](ListCase& c) { c.entries = 5, c.probes = 20; });
    add([](ListCase& c) { c.duplicates = true, c.m = 2, c.probes = 20, c.k = 100; });
    add([](ListCase& c) { c.shift = 30; });
    for (uint32_t m : {1u, 8u, 16u, 17u}) add([&](ListCase& c) { c.m = m, c.additive = true; });
    for (uint32_t m : {1u, 7u, 16u}) add([&](ListCase& c) { c.m = m, c.bits = 4; });
    add([](ListCase& c) { c.bits = 4, c.lists = 2, c.probes = 2, c.k = 100; });
    add([](ListCase& c) { c.bits = 4, c.metric = Metric::inner_product; });
    add([](ListCase& c) { c.bits = 4, c.shift = 30; });
    add([](ListCase& c) { c.bits = 4, c.duplicates = true, c.m = 2, c.probes = 20, c.k = 100; });
    add([](ListCase& c) { c.additive = true, c.metric = Metric::inner_product; });
    add([](ListCase& c) { c.additive = true, c.dims = 5, c.m = 7, c.probes = 20, c.k = 100; });
    add([](ListCase& c) { c.additive = true, c.shift = 30; });
    add([](ListCase& c) { c.lists = 700, c.entries = 20000, c.probes = 300; });
    // Attributes and conditions.
    add([](ListCase& c) { c.attributes = {4}, c.probes = 20; });
    add([](ListCase& c) { c.attributes = {1, 2, 4, 8}, c.probes = 20, c.queries = 40; });
    add([](ListCase& c) { c.attributes = {8, 1, 2}, c.bits = 4, c.probes = 20, c.queries = 20; });
    add([](ListCase& c) { c.attributes = {2}, c.numbers = 1000, c.probes = 20, c.k = 1000; });
    for (uint32_t k : {1u, 100u, 2048u})
        add([&](ListCase& c) {
            c.attributes = {4, 4}, c.k = k, c.probes = 20, c.numbers = 5, c.queries = 10;
        });
    for (uint32_t m : {5u, 33u, 80u, 192u})
        add([&](ListCase& c) { c.attributes = {4}, c.dims = 200, c.m = m, c.probes = 20; });
    // A table larger than shared memory.
    add([](ListCase& c) {
        c.attributes = {4}, c.dims = 400, c.m = 400, c.entries = 3000, c.probes = 20;
    });
    add([](ListCase& c) { c.attributes = {4}, c.metric = Metric::inner_product; });
    add([](ListCase& c) { c.filtered = true; });
    add([](ListCase& c) { c.filtered = true, c.bits = 4, c.k = 1000; });
    add([](ListCase& c) { c.attributes = {4}, c.additive = true; });
    add([](ListCase& c) { c.attributes = std::vector<uint8_t>(31, 8), c.queries = 30; });
    add([](ListCase& c) {
        c.attributes = {4}, c.duplicates = true, c.m = 2, c.probes = 20, c.k = 100;
    });
    add([](ListCase& c) { c.attributes = {2}, c.lists = 700, c.entries = 20000, c.probes = 300; });
    for (uint32_t probes : {32u, 33u, 64u, 65u, 128u, 129u})
        add([&](ListCase& c) { c.lists = 3000, c.entries = 20000, c.probes = probes; });
    return cases;
}

// A shape for check_appends().
inline ListCase appended_attributes(uint32_t bits) {
    ListCase c;
    c.bits = bits;
    c.attributes = {4, 1, 8, 2};
    c.queries = 7;
    c.probes = 20;
    return c;
}

// Lists that grow, by few entries and by many, give what they have.
inline void check_appends(ListWorld& world, ListStore& store) {
    const ListCase& c = world.list_case();
    const auto batch = world.make_batch(store);
    for (const uint32_t added : {0u, 1u, 1u, 6u, 8u, 31u, 33u, 500u})
        for (uint32_t l = 0; l < c.lists; l += 3) {
            world.grow(store, l, added);
            if (l != 6) continue;
            store.search(*batch, c.queries);
            for (size_t q = 0; q < c.queries; q += 1 + c.queries / 5) world.check(*batch, q);
        }
    store.search(*batch, c.queries);
    for (size_t q = 0; q < c.queries; q += 1 + c.queries / 40) world.check(*batch, q);
}

// Shapes for check_resumed().
inline std::vector<ListCase> resumed_cases() {
    std::vector<ListCase> cases;
    ListCase c;
    c.lists = 9;
    c.probes = 9;
    c.entries = 1000;
    c.queries = 4;
    c.k = 23;
    c.filtered = true;
    cases.push_back(c);
    c.duplicates = true;
    c.m = 2;
    cases.push_back(c);
    c.attributes = {1, 4};
    c.numbers = 5;
    cases.push_back(c);
    c.duplicates = false;
    c.bits = 4;
    c.metric = Metric::inner_product;
    cases.push_back(c);
    return cases;
}

// Searches that each resume where the one before ended, in groups of lists, give what one search
// gives that may find all, each entry once.
inline void check_resumed(ListWorld& world, ListStore& store) {
    const ListCase& c = world.list_case();
    const auto batch = world.make_batch(store);
    for (size_t q = 0; q < c.queries; ++q) {
        std::map<uint64_t, int> expected, found;
        const auto take = [&](std::map<uint64_t, int>* to) {
            const Neighbor* rows = batch->found + q * batch->found_stride;
            for (uint32_t i = 0; i < batch->found_counts[q]; ++i) ++(*to)[rows[i].id];
        };
        const ListQuery whole = batch->wanted[q];
        bool stuck = false;
        for (uint32_t begin = 0; begin < c.probes; begin += 3) {
            batch->wanted[q] = whole;
            batch->wanted[q].first_probe = begin;
            batch->wanted[q].probes = begin + 3;
            while (!stuck) {
                store.search(*batch, c.queries);
                world.check(*batch, q);
                take(&found);
                const uint32_t count = batch->found_counts[q];
                if (!batch->searched[q].more) break;
                stuck = count == 0;
                if (stuck) break;
                const Neighbor& last = batch->found[q * batch->found_stride + count - 1];
                batch->wanted[q].floor_distance = last.distance;
                batch->wanted[q].floor_id = last.id;
            }
        }
        batch->wanted[q] = whole;
        for (uint32_t list = 0; list < c.lists; ++list)
            for (size_t e = 0; e < world.lists()[list].ids.size(); ++e)
                if (world.passes(q, list, e)) expected[world.lists()[list].ids[e]] = 1;
        EXPECT_TRUE(!stuck || c.duplicates) << c;
        if (stuck) continue;
        EXPECT_EQ(found, expected) << c;
    }
}

// Shapes for check_limited(): codes of both widths, tables in shared memory and not, every
// selection.
inline std::vector<ListCase> limited_cases() {
    std::vector<ListCase> cases;
    const auto add = [&](auto change) {
        ListCase c;
        c.lists = c.probes = 60;
        c.entries = 6000;
        change(c);
        cases.push_back(c);
    };
    add([](ListCase&) {});
    add([](ListCase& c) { c.m = 32, c.bits = 4; });
    add([](ListCase& c) { c.m = c.dims = 48, c.queries = 40; });
    add([](ListCase& c) { c.m = c.dims = 400; });
    add([](ListCase& c) { c.k = 500, c.queries = 2; });
    add([](ListCase& c) { c.k = 2048, c.queries = 2; });
    add([](ListCase& c) { c.metric = Metric::cosine, c.probes = 25; });
    add([](ListCase& c) { c.duplicates = true; });
    // As many as share a scan on a CPU.
    add([](ListCase& c) { c.queries = 100; });
    add([](ListCase& c) { c.m = 32, c.bits = 4, c.queries = 100; });
    // With conditions, of which the queries pass all, some or few entries.
    add([](ListCase& c) { c.attributes = {4}, c.numbers = 10; });
    add([](ListCase& c) { c.attributes = {1, 8}, c.numbers = 8, c.k = 5, c.probes = c.lists; });
    return cases;
}

// The lists that a query takes by the rule (list_plan.h), in float64: at least the first number, at
// most the second, as floats may round scores near the threshold either way.
inline std::pair<uint32_t, uint32_t> expected_lists(ListWorld& world, const ListBatch& batch,
                                                    size_t query) {
    const ListCase& c = world.list_case();
    const ListPlan& plan = batch.wanted[query].plan;
    const float* vector = world.queries().data() + query * c.dims;
    const uint32_t* probed = batch.probed + query * batch.probed_stride;
    const uint32_t probes = std::min(c.probes, c.lists);
    std::vector<double> near;
    double radius = plan.radius, entries = 0, passed = plan.entries;
    double wave_entries = 0, wave_passed = passed, share = 1;
    uint32_t least = 0, rank = 0, renewed_at = 0;
    for (; rank < probes; ++rank) {
        const double nearest = std::min<double>(plan.nearest, world.term(vector, probed[0]));
        if (rank == renewed_at) {
            renewed_at = renewed_at == 0 ? 1 : 4 * renewed_at;
            if (near.size() >= plan.k) {
                std::nth_element(near.begin(), near.begin() + plan.k - 1, near.end());
                radius = std::min<double>(plan.radius, near[plan.k - 1]);
            }
            wave_entries = entries;
            wave_passed = passed;
            share = entries > 0 ? (passed - plan.entries) / entries : 1;
        }
        if (!std::isinf(radius)) {
            double counted = 1;  // the share of the score, of queries unlike rows
            if ((radius > plan.outside.radius || nearest > plan.outside.share_of_radius * radius) &&
                plan.outside.threshold > plan.threshold)
                counted = plan.threshold / plan.outside.threshold;
            if (nearest > plan.outside.nearest)
                counted *= std::sqrt(plan.outside.nearest / nearest);
            const double distance = world.term(vector, probed[rank]);
            const double seen = wave_passed + (entries - wave_entries) * share;
            const double score =
                radius > 0 ? counted * std::pow(distance / radius, 4) *
                                 std::pow(distance / std::max(nearest, radius / 2), 2) * seen
                           : std::numeric_limits<double>::infinity();
            if (score > 1.01 * plan.threshold) break;
            // From here on either may be right; also whether another wave comes.
            if (score > 0.99 * plan.threshold) return {least, probes};
        }
        least = rank + 1;
        for (size_t e = 0; e < world.lists()[probed[rank]].ids.size(); ++e) {
            ++entries;
            if (!world.passes(query, probed[rank], e)) continue;
            ++passed;
            near.push_back(world.distance(vector, probed[rank], e));
        }
    }
    return {least, rank};
}

// Queries that decide how many lists they take: as many as the rule says, and the same answer as
// with that number of lists given.
inline void check_limited(ListWorld& world, const ListCase& c, ListStore& store) {
    const auto batch = world.make_batch(store);
    const float thresholds[] = {1e-3f, 300, 3000, 3e4f, 1e9f};
    for (size_t q = 0; q < c.queries; ++q) {
        ListPlan& plan = batch->wanted[q].plan;
        plan.threshold = thresholds[q % std::size(thresholds)];
        plan.k = std::min(c.k, 20u);
        // Every fourth is unlike rows, every third has seen other parts of the table.
        if (q % 4 == 1)
            plan.outside = {0.2f * static_cast<float>(c.dims), 0.3f * static_cast<float>(c.dims),
                            4 * plan.threshold};
        if (q % 3 != 2) continue;
        plan.nearest = 0.5f * static_cast<float>(c.dims);
        plan.radius = static_cast<float>(c.dims);
        plan.entries = 100;
    }
    store.search(*batch, c.queries);
    std::vector<std::vector<Neighbor>> found;
    std::vector<uint32_t> taken(batch->taken, batch->taken + c.queries);
    std::set<uint32_t> numbers;
    for (size_t q = 0; q < c.queries; ++q) {
        const Neighbor* begin = batch->found + q * batch->found_stride;
        found.emplace_back(begin, begin + batch->found_counts[q]);
        const auto [least, most] = expected_lists(world, *batch, q);
        EXPECT_GE(taken[q], least) << "query " << q << ", " << c;
        EXPECT_LE(taken[q], most) << "query " << q << ", " << c;
        numbers.insert(taken[q]);
    }
    if (c.queries > 10) {
        EXPECT_GT(numbers.size(), 2u) << c;
    }
    for (size_t q = 0; q < c.queries; ++q) {
        if (taken[q] == 0) {
            EXPECT_TRUE(found[q].empty());
            taken[q] = batch->wanted[q].probes;  // there is no search without a list
            continue;
        }
        batch->wanted[q].probes = taken[q];
        batch->wanted[q].plan = {};
    }
    store.search(*batch, c.queries);
    for (size_t q = 0; q < c.queries; ++q) {
        if (batch->wanted[q].plan.threshold > 0) continue;
        EXPECT_EQ(batch->taken[q], taken[q]);
        ASSERT_EQ(batch->found_counts[q], found[q].size()) << "query " << q << ", " << c;
        const Neighbor* again = batch->found + q * batch->found_stride;
        for (size_t i = 0; i < found[q].size(); ++i) {
            EXPECT_EQ(again[i].id, found[q][i].id) << "query " << q << ", " << c;
            EXPECT_EQ(again[i].distance, found[q][i].distance);
        }
    }
}

// Shapes of stores whose queries share a batch, for check_mixed().
inline std::vector<ListCase> mixed_cases() {
    std::vector<ListCase> cases;
    const auto add = [&](auto change) {
        ListCase c;
        c.k = 40;
        change(c);
        cases.push_back(c);
    };
    add([](ListCase&) {});
    add([](ListCase& c) { c.metric = Metric::inner_product, c.m = 17; });
    add([](ListCase& c) { c.metric = Metric::cosine, c.refined = true; });
    add([](ListCase& c) { c.refined = true, c.k = fast_list_k, c.dims = 100, c.m = 33; });
    add([](ListCase& c) { c.refined = true, c.probes = most_mixed_probes; });
    add([](ListCase& c) { c.k = 1, c.bits = 4, c.probes = 130; });
    add([](ListCase& c) { c.additive = true, c.probes = 20; });
    // Far from zero. The lists of a store that has only one are so in any case.
    add([](ListCase& c) { c.shift = 30; });
    add([](ListCase& c) { c.shift = 30, c.refined = true, c.metric = Metric::cosine; });
    // A table larger than shared memory.
    add([](ListCase& c) { c.dims = c.m = 400; });
    return cases;
}

// Queries of stores of different sizes in one batch give what their own store has, as it was when
// the batch started; of these, every second decides how many lists it takes.
template <typename MakeStore>
void check_mixed(const ListCase& like, unsigned seed, MakeStore make_store) {
    struct Size {
        uint32_t lists, entries;
        size_t queries;
    };
    const Size sizes[] = {{20, 3000, 5}, {7, 500, 1}, {300, 0, 3}, {1, 900, 2}, {300, 9000, 11}};
    std::vector<ListWorld> worlds;
    std::vector<std::unique_ptr<ListStore>> stores;
    ListBatchShape shape{0, like.k, like.probes};
    shape.refined = like.refined;
    shape.mixed = true;
    for (const Size& size : sizes) {
        ListCase c = like;
        c.lists = size.lists;
        c.entries = size.entries;
        c.queries = size.queries;
        worlds.emplace_back(c, ++seed);
        stores.push_back(make_store(worlds.back().quantizer()));
        worlds.back().put_all(*stores.back());
        shape.queries += size.queries;
    }
    const auto batch = stores[1]->make_batch(shape);
    const auto fill = [&] {
        batch->stores.clear();
        for (size_t w = 0; w < worlds.size(); ++w) {
            const std::unique_ptr<ListBatch> own = worlds[w].make_batch(*stores[w]);
            for (size_t q = 0; q < worlds[w].list_case().queries; ++q) {
                const size_t at = batch->stores.size();
                std::copy_n(own->queries + q * like.dims, like.dims,
                            batch->queries + at * like.dims);
                batch->wanted[at] = own->wanted[q];
                if (at % 2 == 1 && like.metric != Metric::inner_product) {
                    batch->wanted[at].plan.threshold = 3000;
                    batch->wanted[at].plan.k = std::min(like.k, 5u);
                }
                batch->stores.push_back(stores[w].get());
            }
        }
    };
    // The answers to queries of `world`, the first at `at`, beside those of its store alone.
    const auto check = [&](const ListWorld& world, size_t at, ListStore* alone) {
        const size_t queries = world.list_case().queries;
        const std::unique_ptr<ListBatch> own = alone ? world.make_batch(*alone) : nullptr;
        if (alone) {
            std::copy_n(batch->wanted + at, queries, own->wanted);
            alone->search(*own, queries);
        }
        std::vector<ListQuery> taken(batch->wanted + at, batch->wanted + at + queries);
        for (size_t q = 0; q < queries; ++q) {
            if (own) {
                EXPECT_NEAR(batch->taken[at + q], own->taken[q], 1) << like;
            }
            taken[q].probes = batch->taken[at + q];
        }
        ListBatch part(*batch);
        part.wanted = taken.data();
        part.found += at * batch->found_stride;
        part.found_counts += at;
        part.probed += at * batch->probed_stride;
        part.left_out += at;
        for (size_t q = 0; q < queries; ++q)
            like.refined ? world.check_refined(part, q) : world.check(part, q);
    };
    const auto check_all = [&](const std::vector<ListWorld>& as, bool alone) {
        size_t at = 0;
        for (size_t w = 0; w < as.size(); ++w) {
            check(as[w], at, alone ? stores[w].get() : nullptr);
            at += as[w].list_case().queries;
        }
        ASSERT_EQ(at, shape.queries);
    };
    fill();
    stores[3]->search(*batch, shape.queries);
    check_all(worlds, true);
    // Lists that change while it runs.
    const std::vector<ListWorld> before = worlds;
    fill();
    stores[0]->start(*batch, shape.queries);
    for (size_t w = 0; w < worlds.size(); ++w)
        for (uint32_t l = 0; l < worlds[w].list_case().lists; l += 2)
            worlds[w].grow(*stores[w], l, 1 + l % 40);
    stores[0]->wait(*batch);
    check_all(before, false);
    fill();
    stores[0]->search(*batch, shape.queries);
    check_all(worlds, true);
    // Fewer than there is room for, and stores that come again.
    std::swap(batch->stores[0], batch->stores[5]);
    std::swap_ranges(batch->queries, batch->queries + like.dims, batch->queries + 5 * like.dims);
    std::swap(batch->wanted[0], batch->wanted[5]);
    const uint32_t counts[] = {batch->found_counts[0], batch->found_counts[5]};
    stores[0]->search(*batch, 6);
    EXPECT_EQ(batch->found_counts[5], counts[0]) << like;
    EXPECT_EQ(batch->found_counts[0], counts[1]) << like;

    const auto refuse = [&](auto&& wrong) { EXPECT_THROW(wrong(), std::invalid_argument); };
    batch->stores.resize(5);
    refuse([&] { stores[0]->start(*batch, 6); });
    ListCase other = like;
    other.dims += 3;
    const ListWorld apart(other, seed);
    const std::unique_ptr<ListStore> strange = make_store(apart.quantizer());
    EXPECT_TRUE(stores[0]->mixes_with(*stores[1]));
    EXPECT_FALSE(stores[0]->mixes_with(*strange));
    batch->stores[4] = strange.get();
    refuse([&] { stores[0]->start(*batch, 5); });
    shape.k = fast_list_k + 1;
    refuse([&] { stores[0]->make_batch(shape); });
}

}  // namespace pgwarp
