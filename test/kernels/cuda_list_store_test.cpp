// The list store on the device against float64, and against itself under change.

#include "kernels/cuda/lists/list_store.h"
#include "kernels/cuda/lists/search_plan.h"

#include <cstdlib>
#include <limits>
#include <string>

#include "test/kernels/cuda_fixture.h"
#include "test/kernels/list_check.h"

namespace pgwarp::gpu {
namespace {

class CudaListStoreTest : public CudaTest {
  protected:
    // Enough for a search by list.
    static constexpr uint32_t many = always_by_list + 3;

    static void check_case(const Context& context, const ListCase& c, unsigned seed) {
        ListWorld world(c, seed);
        const auto store = make_list_store(context, world.quantizer(), world.attributes());
        world.put_all(*store);
        const auto batch = world.make_batch(*store);
        store->search(*batch, c.queries);
        // Checking in float64 takes long: some of many.
        const size_t step = std::max<size_t>(1, c.queries / 40);
        for (size_t q = 0; q < c.queries; q += step) world.check(*batch, q);
    }
};

// A few queries are searched by query, hundreds by list: each shape both ways.
TEST_F(CudaListStoreTest, FindsTheNearestForFew) {
    const Context context(options());
    unsigned seed = test_seed();
    for (const ListCase& c : list_cases()) check_case(context, c, ++seed);
}

TEST_F(CudaListStoreTest, FindsTheNearestForMany) {
    const Context context(options());
    unsigned seed = test_seed();
    for (ListCase c : list_cases()) {
        c.queries = small_tests() ? many : 403;
        check_case(context, c, ++seed);
    }
}

// Candidates of many queries are selected by tables of halves.
constexpr double rough_distances = 0.02;

TEST_F(CudaListStoreTest, Refines) {
    const Context context(options());
    unsigned seed = test_seed();
    for (ListCase c : refined_cases())
        for (const bool together : {false, true}) {
            if (together && small_tests() && c.dims > 200) continue;
            if (together) c.queries = many;
            ListWorld world(c, ++seed);
            const auto store = make_list_store(context, world.quantizer(), world.attributes());
            world.put_all(*store);
            const auto batch = world.make_batch(*store);
            store->search(*batch, c.queries);
            const size_t step = std::max<size_t>(1, c.queries / 20);
            for (size_t q = 0; q < c.queries; q += step)
                world.check_refined(*batch, q, together ? rough_distances : 0);
        }
}

TEST_F(CudaListStoreTest, RefinesListsThatChange) {
    const Context context(options());
    for (const float shift : {0.0f, 30.0f})
        for (const size_t queries : {5u, many}) {
            ListCase c;
            c.refined = true;
            c.shift = shift;
            c.k = 100;
            c.probes = 20;
            c.queries = queries;
            ListWorld world(c, test_seed() + static_cast<unsigned>(queries));
            const auto store = make_list_store(context, world.quantizer(), world.attributes());
            check_refined_changes(*store, world, queries > 5 ? rough_distances : 0);
        }
}

// The same bounds as on the CPU, but for the last digits: the same arithmetic.
TEST_F(CudaListStoreTest, RefinesAsTheCpuDoes) {
    const Context context(options());
    unsigned seed = test_seed();
    for (const Metric metric : {Metric::l2, Metric::inner_product, Metric::cosine}) {
        ListCase c;
        c.refined = true;
        c.metric = metric;
        c.dims = 300;
        c.k = c.refined_k = 2000;
        c.probes = c.lists;
        ListWorld world(c, ++seed);
        const auto store = make_list_store(context, world.quantizer(), world.attributes());
        const auto by_cpu = make_cpu_list_store(world.quantizer(), world.attributes(), 2, {});
        world.put_all(*store);
        world.put_all(*by_cpu);
        const auto batch = world.make_batch(*store), expected = world.make_batch(*by_cpu);
        store->search(*batch, c.queries);
        by_cpu->search(*expected, c.queries);
        for (size_t q = 0; q < c.queries; ++q) {
            ASSERT_EQ(batch->found_counts[q], expected->found_counts[q]);
            std::map<uint64_t, float> leasts;
            for (uint32_t i = 0; i < expected->found_counts[q]; ++i) {
                const Neighbor& one = expected->found[q * expected->found_stride + i];
                leasts[one.id] = one.distance;
            }
            size_t other = 0;  // one code may be as far as another, but for rounding
            for (uint32_t i = 0; i < batch->found_counts[q]; ++i) {
                const Neighbor& one = batch->found[q * batch->found_stride + i];
                const auto there = leasts.find(one.id);
                if (there == leasts.end())
                    ++other;
                else
                    EXPECT_NEAR(one.distance, there->second,
                                1e-5 * (1 + std::fabs(there->second)) * std::sqrt(300.0));
            }
            EXPECT_LE(other, 2u);
        }
    }
}

TEST_F(CudaListStoreTest, SearchesForQueriesOfSeveralStores) {
    const Context context(options());
    unsigned seed = test_seed();
    for (const ListCase& c : mixed_cases())
        check_mixed(c, seed += 10, [&](const Quantizer& quantizer) {
            return make_list_store(context, quantizer, {});
        });
}

TEST_F(CudaListStoreTest, FindsTheNearestInLongLists) {
    const Context context(options());
    for (uint32_t m : {8u, 32u, 48u})
        for (size_t queries : {2u, many}) {
            ListCase c;
            c.lists = 4;
            c.m = m;
            c.dims = 48;
            c.entries = small_tests() ? 20000 : 60000;
            c.probes = 3;
            c.k = 50;
            c.queries = queries;
            check_case(context, c, test_seed() + m);
        }
    // Runs of tiles within one list, and across the ends of lists; numbers of every width.
    for (uint32_t lists : {3u, 40u, 400u})
        for (const auto& attributes : {std::vector<uint8_t>{4, 1}, std::vector<uint8_t>{2, 8}}) {
            ListCase c;
            c.lists = c.probes = lists;
            c.dims = 48;
            c.entries = 20000;
            c.k = 50;
            c.queries = 20;
            c.attributes = attributes;
            check_case(context, c, test_seed() + lists);
        }
}

// Enough for distances by tiles, and for a selection by more threads: whole tiles
// of lists, queries and dimensions, and parts of them.
TEST_F(CudaListStoreTest, FindsTheNearestInManyLists) {
    const Context context(options());
    unsigned seed = test_seed();
    for (const uint32_t lists : {8192u, 8201u, 4500u})
        for (const uint32_t probes : {5u, 300u, 600u})
            for (const Metric metric : {Metric::l2, Metric::inner_product}) {
                ListCase c;
                c.lists = lists;
                c.dims = lists % 2 ? 24 : 32;
                c.entries = 40000;
                c.metric = metric;
                c.probes = probes;
                c.queries = lists == 4500 ? 70 : probes == 5 ? 64 : 17;
                c.k = 20;
                check_case(context, c, ++seed);
            }
}

// As many as an index gives parents to: a device compares queries with all of them.
TEST_F(CudaListStoreTest, FindsTheNearestInVeryManyLists) {
    const Context context(options());
    unsigned seed = test_seed();
    for (const size_t queries : {1u, 17u, 300u}) {
        ListCase c;
        c.lists = small_tests() ? 40000 : 140000;
        c.dims = 16;
        c.m = 8;
        c.entries = 2 * c.lists;
        c.probes = 400;
        c.queries = queries;
        c.k = 20;
        check_case(context, c, ++seed);
    }
}

TEST_F(CudaListStoreTest, FollowsEachQuerysWish) {
    const Context context(options());
    for (size_t queries : {9u, many}) {
        ListCase c;
        c.queries = queries;
        c.k = 200;
        c.probes = 20;
        ListWorld world(c, test_seed());
        const auto store = make_list_store(context, world.quantizer(), world.attributes());
        world.put_all(*store);
        const auto batch = world.make_batch(*store);
        std::mt19937 random(test_seed());
        for (size_t q = 0; q < queries; ++q)
            batch->wanted[q] = {1 + static_cast<uint32_t>(random()) % 200,
                                1 + static_cast<uint32_t>(random()) % 20};
        store->search(*batch, queries);
        for (size_t q = 0; q < queries; q += 1 + queries / 50) world.check(*batch, q);
    }
}

TEST_F(CudaListStoreTest, ResumesWhereASearchEnded) {
    const Context context(options());
    unsigned seed = test_seed();
    for (const ListCase& c : resumed_cases()) {
        ListWorld world(c, ++seed);
        const auto store = make_list_store(context, world.quantizer(), world.attributes());
        world.put_all(*store);
        check_resumed(world, *store);
    }
}

TEST_F(CudaListStoreTest, LetsQueriesDecideOnTheirLists) {
    const Context context(options());
    unsigned seed = test_seed();
    for (const ListCase& c : limited_cases()) {
        ListWorld world(c, ++seed);
        const auto store = make_list_store(context, world.quantizer(), world.attributes());
        world.put_all(*store);
        check_limited(world, c, *store);
    }
}

TEST_F(CudaListStoreTest, AppendsAttributes) {
    const Context context(options());
    for (const uint32_t bits : {8u, 4u}) {
        ListWorld world(appended_attributes(bits), test_seed() + bits);
        const auto store = make_list_store(context, world.quantizer(), world.attributes());
        world.put_all(*store);
        check_appends(world, *store);
    }
}

// The bound of a query's first list lets nearly everything through: the search starts over.
TEST_F(CudaListStoreTest, SurvivesMoreCandidatesThanItHasRoomFor) {
    const Context context(options());
    ListCase c;
    c.lists = 8;
    c.probes = 8;
    c.entries = 60000;
    c.queries = many;
    c.k = 10;
    c.metric = Metric::inner_product;
    ListWorld world(c, test_seed());
    // Lists are alike, but the first of some query is far behind in all its entries.
    std::vector<uint32_t> nearest(c.lists);
    for (uint32_t l = 0; l < c.lists; ++l)
        for (float& offset : world.lists()[l].offsets) offset = l % 2 ? 0.0f : 1000.0f;
    const auto store = make_list_store(context, world.quantizer(), world.attributes());
    world.put_all(*store);
    const auto batch = world.make_batch(*store);
    store->search(*batch, c.queries);
    for (size_t q = 0; q < c.queries; q += 20) {
        // float32 has fewer places left beside an offset of a thousand.
        if (batch->found[q * batch->found_stride].distance < 500) world.check(*batch, q);
    }
}

TEST_F(CudaListStoreTest, SeesListsAsTheyWereAtItsStart) {
    const Context context(options());
    for (size_t queries : {4u, many}) {
        ListCase c;
        c.queries = queries;
        c.probes = 20;
        ListWorld world(c, test_seed());
        ListWorld changed = world;
        const auto store = make_list_store(context, world.quantizer(), world.attributes());
        world.put_all(*store);
        const auto before = world.make_batch(*store), after = world.make_batch(*store);
        for (int round = 0; round < 20; ++round) {
            world = changed;
            store->start(*before, queries);
            // Replaced, emptied, and grown while the batch is in flight.
            for (uint32_t l = 0; l < c.lists; ++l) {
                if (l % 4 == 0) changed.lists()[l] = changed.make_list(l, 0);
                if (l % 4 == 1) changed.lists()[l] = changed.make_list(l, 100 + round);
                if (l % 4 == 2) changed.lists()[l] = changed.make_list(l, 1000 - 30 * round);
                if (l % 4 != 3) changed.put(*store, l);
            }
            store->start(*after, queries);
            store->wait(*before);
            store->wait(*after);
            for (size_t q = 0; q < queries; q += 1 + queries / 4) {
                world.check(*before, q);
                changed.check(*after, q);
            }
        }
    }
}

// Entries behind a whole tile, within one, and over several; of lists that were empty; beside
// batches that were started before, which end in another order.
TEST_F(CudaListStoreTest, Appends) {
    const Context context(options());
    unsigned seed = test_seed();
    for (const uint32_t m : {8u, 32u, 48u})
        for (const float shift : {0.0f, 30.0f})
            for (const size_t queries : {4u, many}) {
                ListCase c;
                c.m = m;
                c.dims = 48;
                c.shift = shift;
                c.queries = queries;
                c.probes = 20;
                ListWorld world(c, ++seed);
                const auto store = make_list_store(context, world.quantizer(), world.attributes());
                EXPECT_THROW(store->append(0, {}), std::logic_error);
                world.put_all(*store);
                const auto before = world.make_batch(*store), after = world.make_batch(*store);
                for (const uint32_t added : {1u, 31u, 1u, 32u, 300u, 0u, 7u}) {
                    const ListWorld earlier = world;
                    store->start(*before, queries);
                    for (uint32_t l = 0; l < c.lists; l += 2) world.grow(*store, l, added);
                    store->start(*after, queries);
                    store->wait(*after);
                    store->wait(*before);
                    for (size_t q = 0; q < queries; q += 1 + queries / 4) {
                        earlier.check(*before, q);
                        world.check(*after, q);
                    }
                }
            }
}

// A long batch and short ones beside it, which end before it or not: each has its own answers.
TEST_F(CudaListStoreTest, EndsBatchesInAnyOrder) {
    const Context context(options());
    ListCase c;
    c.entries = small_tests() ? 3000 : 60000;
    c.queries = many;
    c.k = 2048;
    c.probes = 20;
    ListWorld world(c, test_seed());
    const auto store = make_list_store(context, world.quantizer(), world.attributes());
    world.put_all(*store);
    const auto large = world.make_batch(*store), first = world.make_batch(*store),
               second = world.make_batch(*store);
    for (size_t q = 0; q < many; ++q) first->wanted[q] = second->wanted[q] = {10, 3};
    for (int round = 0; round < 10; ++round) {
        const ListWorld before = world;
        store->start(*large, many);
        store->start(*first, 20);
        for (uint32_t l = 0; l < c.lists; l += 3) world.grow(*store, l, 5);
        store->start(*second, 3);
        ListBatch* batches[] = {large.get(), first.get(), second.get()};
        for (size_t left = 3; left > 0;)
            for (ListBatch*& batch : batches) {
                if (!batch || !store->done(*batch)) continue;
                store->wait(*batch);
                batch = nullptr;
                --left;
            }
        for (size_t q = 0; q < many; q += 100) before.check(*large, q);
        for (size_t q = 0; q < 20; q += 5) before.check(*first, q);
        for (size_t q = 0; q < 3; ++q) world.check(*second, q);
    }
}

// The same appended lists and whole ones on the CPU: the same answers but for rounding.
TEST_F(CudaListStoreTest, AppendsAsTheCpuDoes) {
    const Context context(options());
    ListCase c;
    c.queries = 50;
    c.probes = 20;
    ListWorld world(c, test_seed());
    const auto store = make_list_store(context, world.quantizer(), world.attributes());
    world.put_all(*store);
    for (int round = 0; round < 40; ++round)
        for (uint32_t l = 0; l < c.lists; ++l) world.grow(*store, l, (l + round) % 3);
    const auto on_cpu = make_cpu_list_store(world.quantizer(), world.attributes(), 2, {});
    world.put_all(*on_cpu);
    const auto batch = world.make_batch(*store), reference = world.make_batch(*on_cpu);
    store->search(*batch, c.queries);
    on_cpu->search(*reference, c.queries);
    for (size_t q = 0; q < c.queries; ++q) {
        world.check(*batch, q);
        ASSERT_EQ(batch->found_counts[q], reference->found_counts[q]);
        for (uint32_t i = 0; i < batch->found_counts[q]; ++i)
            EXPECT_NEAR(batch->found[q * batch->found_stride + i].distance,
                        reference->found[q * reference->found_stride + i].distance,
                        2 * world.tolerance());
    }
}

TEST_F(CudaListStoreTest, PassesOverWhatIsNotHeld) {
    const Context context(options());
    for (size_t queries : {5u, many}) {
        ListCase c;
        c.probes = 20;
        c.queries = queries;
        ListWorld world(c, test_seed());
        const auto store = make_list_store(context, world.quantizer(), world.attributes());
        const auto batch = world.make_batch(*store);
        store->search(*batch, queries);  // nothing at all
        for (size_t q = 0; q < queries; ++q) EXPECT_EQ(batch->found_counts[q], 0u);
        world.put_all(*store);
        std::vector<bool> held(c.lists, true);
        for (uint32_t l = 0; l < c.lists; l += 2) {
            store->drop(l);
            held[l] = false;
        }
        store->search(*batch, queries);
        for (size_t q = 0; q < queries; q += 1 + queries / 20) world.check(*batch, q, &held);
    }
}

// What does not fit is refused, and what was there stays.
TEST_F(CudaListStoreTest, RefusesWhatDoesNotFit) {
    const Context context(options(size_t{12} << 20, size_t{4} << 20));
    ListCase c;
    c.entries = 4000;
    ListWorld world(c, test_seed());
    const auto store = make_list_store(context, world.quantizer(), world.attributes());
    world.put_all(*store);
    const size_t bytes = store->bytes();
    TestList large = world.make_list(3, 1000000);
    large.with_pages(c.m, 200, [&](std::span<const ListPage> pages) {
        EXPECT_THROW(store->put(3, pages), OutOfDeviceMemory);
    });
    large.with_pages(c.m, 200, [&](std::span<const ListPage> pages) {
        EXPECT_THROW(store->append(3, pages), OutOfDeviceMemory);
    });
    EXPECT_EQ(store->bytes(), bytes);
    const auto batch = world.make_batch(*store);
    store->search(*batch, c.queries);
    for (size_t q = 0; q < c.queries; ++q) world.check(*batch, q);
}

// A batch larger than the scratch space is searched in parts.
TEST_F(CudaListStoreTest, SearchesInParts) {
    const Context context(options(size_t{1} << 30, size_t{6} << 20));
    ListCase c;
    c.queries = 1000;
    c.k = 20;
    check_case(context, c, test_seed());
}

TEST_F(CudaListStoreTest, LeaksNothing) {
    const Context context(options());
    const size_t before = context.memory.use().used;
    {
        ListCase c;
        c.queries = many;
        ListWorld world(c, test_seed());
        const auto store = make_list_store(context, world.quantizer(), world.attributes());
        world.put_all(*store);
        const auto batch = world.make_batch(*store);
        size_t used = 0, free_before = 0, free_after = 0, total = 0;
        // A million takes a minute.
        const char* calls = std::getenv("PGWARP_TEST_CALLS");
        const int rounds = small_tests() ? 20 : calls ? std::stoi(calls) : 20000;
        for (int i = 0; i < rounds; ++i) {
            store->search(*batch, i % 50 == 7 ? many : 1 + i % 3);
            if (i % 10 == 0) world.put(*store, i / 10 % c.lists);
            if (i == rounds / 2) {
                used = context.memory.use().used;
                check(cudaMemGetInfo(&free_before, &total), "cudaMemGetInfo");
            }
        }
        EXPECT_NEAR(static_cast<double>(context.memory.use().used), static_cast<double>(used),
                    1 << 20);
        check(cudaMemGetInfo(&free_after, &total), "cudaMemGetInfo");
        EXPECT_GE(free_after, free_before) << "or another process is on the device";
    }
    EXPECT_EQ(context.memory.use().used, before);
}

// Little data, for tools that check every access.
TEST_F(CudaListStoreTest, EveryKernelOnce) {
    const Context context(options());
    const auto check_shape = [&](auto change) {
        ListCase c;
        c.dims = 48;
        c.lists = 12;
        c.probes = 12;
        c.entries = 900;
        c.queries = 2;
        change(c);
        check_case(context, c, test_seed());
    };
    for (uint32_t k : {10u, 100u, 500u, 2048u})
        for (uint32_t queries : {2u, many})
            check_shape([&](ListCase& c) { c.k = k, c.queries = queries, c.entries = 3000; });
    // Codes of one slice and of several, narrow ones and wide ones; of more than a block holds.
    for (uint32_t m : {32u, 48u, 64u, 400u})
        for (uint32_t queries : {2u, many})
            check_shape(
                [&](ListCase& c) { c.m = m, c.dims = std::max(m, 48u), c.queries = queries; });
    for (uint32_t k : {10u, 100u}) check_shape([&](ListCase& c) { c.k = k, c.queries = 1030; });
    // Conditions: with every selection, codes of both widths, and a table that does not fit.
    for (uint32_t k : {10u, 500u, 2048u})
        check_shape([&](ListCase& c) { c.k = k, c.attributes = {4, 1}, c.entries = 3000; });
    for (uint32_t m : {32u, 48u, 400u})
        check_shape([&](ListCase& c) {
            c.m = m, c.dims = std::max(m, 48u), c.attributes = {2, 8}, c.queries = 5;
        });
    check_shape([](ListCase& c) { c.shift = 30, c.queries = many; });
    // Refinements: both selections, found by query and by list, moved queries.
    for (uint32_t k : {50u, 2048u})
        for (uint32_t queries : {2u, many}) {
            ListCase c;
            c.refined = true;
            c.k = k;
            c.queries = queries;
            c.dims = 40;
            c.shift = k == 50 ? 30 : 0;
            ListWorld world(c, test_seed());
            const auto store = make_list_store(context, world.quantizer(), world.attributes());
            check_refined_changes(*store, world, queries > 5 ? rough_distances : 0);
        }
    // Queries that decide on their lists.
    for (const ListCase& c : limited_cases()) {
        ListWorld world(c, test_seed());
        const auto store = make_list_store(context, world.quantizer(), world.attributes());
        world.put_all(*store);
        check_limited(world, c, *store);
    }
    // Ways to choose the lists.
    for (const Metric metric : {Metric::l2, Metric::inner_product})
        check_shape([&](ListCase& c) { c.lists = 8200, c.queries = 17, c.metric = metric; });
    check_shape([](ListCase& c) { c.lists = 600, c.probes = 100, c.queries = 20; });
    check_shape([](ListCase& c) { c.lists = 600, c.probes = 100, c.queries = 520; });
    check_shape([](ListCase& c) { c.lists = 600, c.probes = 300; });
    check_shape([](ListCase& c) { c.lists = 1500, c.probes = 200; });
    check_shape([](ListCase& c) { c.lists = 1500, c.probes = 1200; });
    // Lists that grow, near zero and far from it.
    for (const float shift : {0.0f, 30.0f}) {
        ListCase c;
        c.probes = 20;
        c.entries = 900;
        c.shift = shift;
        ListWorld world(c, test_seed());
        const auto store = make_list_store(context, world.quantizer(), world.attributes());
        world.put_all(*store);
        const auto batch = world.make_batch(*store);
        for (const uint32_t added : {1u, 40u})
            for (uint32_t l = 0; l < c.lists; l += 3) world.grow(*store, l, added);
        store->search(*batch, c.queries);
        for (size_t q = 0; q < c.queries; ++q) world.check(*batch, q);
    }
}

}  // namespace
}  // namespace pgwarp::gpu
