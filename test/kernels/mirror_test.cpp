// What a mirror holds: versions, appends, room for lists and indexes, its figures.
#include "kernels/refinement.h"
#include "test/kernels/mirror_check.h"

#include <cmath>
#include <cstring>
#include <map>

namespace pgwarp {
namespace {

using namespace mirror_check;

TEST_F(MirrorTest, AnswersWithTheVersionsItHas) {
    Mirror mirror(*device, size_t{1} << 30);
    Asked before(key_a, near(model, 3), 5, 2);
    run(mirror, {&before});
    EXPECT_EQ(before.search.outcome, Outcome::unknown);

    mirror.add(key_a, model.quantizer());
    Asked empty(key_a, near(model, 3), 5, 2);
    run(mirror, {&empty});
    EXPECT_EQ(empty.search.outcome, Outcome::found);
    EXPECT_EQ(empty.search.found_count, 0u);
    ASSERT_EQ(empty.search.probed_count, 2u);
    EXPECT_EQ(empty.probed[0].list, 3u);
    EXPECT_EQ(empty.probed[0].version.resident, 0u);
    EXPECT_EQ(empty.probed[0].wanted, 1u);

    const PageData first = make_page(random, 1000, 20);
    const PageData second = make_page(random, 2000, 3);
    const ListPage pages[] = {first.page(), second.page()};
    ASSERT_TRUE(mirror.put(key_a, 3, {4, 88, 3, 0}, pages));
    Asked after(key_a, near(model, 3), 100, 2);
    run(mirror, {&after});
    EXPECT_EQ(after.search.found_count, 23u);
    EXPECT_EQ(*after.ids().begin(), 1000u);
    EXPECT_EQ(*after.ids().rbegin(), 2002u);
    EXPECT_EQ(after.probed[0].version, (MirrorVersion{4, 88, 3, 1}));
    EXPECT_EQ(mirror.use(key_a)->resident_lists, 1u);
    EXPECT_EQ(mirror.use(key_a)->bytes, 23 * entry_bytes);

    // Replaced, not added to.
    const ListPage less[] = {second.page()};
    ASSERT_TRUE(mirror.put(key_a, 3, {5, 88, 3, 0}, less));
    Asked replaced(key_a, near(model, 3), 100, 1);
    run(mirror, {&replaced});
    EXPECT_EQ(replaced.ids(), (std::set<uint64_t>{2000, 2001, 2002}));
    EXPECT_EQ(replaced.probed[0].version, (MirrorVersion{5, 88, 3, 1}));
    EXPECT_EQ(mirror.use(key_a)->reloads, 1u);

    // An empty list is resident too.
    ASSERT_TRUE(mirror.put(key_a, 3, {6, 0xffffffff, 0, 0}, {}));
    Asked emptied(key_a, near(model, 3), 100, 1);
    run(mirror, {&emptied});
    EXPECT_EQ(emptied.search.found_count, 0u);
    EXPECT_EQ(emptied.probed[0].version, (MirrorVersion{6, 0xffffffff, 0, 1}));
}

// Refinements are part of a list, and of its bytes; refined searches share no batch with others.
TEST_F(MirrorTest, RefinesWhatItHas) {
    Mirror mirror(*device, size_t{1} << 30);
    mirror.add(key_a, model.quantizer());
    const PageData data = make_page(random, 1000, 40);
    const uint32_t stride = refinement_stride(dims);
    std::vector<uint8_t> refinements(40 * stride);
    const float* centroid = model.centroids.data() + 3 * dims;
    // Each row is farther from the centroid than the one before.
    for (uint32_t i = 0; i < 40; ++i) {
        std::vector<float> row(centroid, centroid + dims);
        row[0] += static_cast<float>(i);
        const RefinementHead head = encode_refinement(
            Metric::l2, row.data(), centroid, dims,
            reinterpret_cast<int8_t*>(refinements.data() + i * stride + sizeof(RefinementHead)));
        std::memcpy(refinements.data() + i * stride, &head, sizeof(head));
    }
    ListPage page = data.page();
    page.refinements = refinements.data();
    const ListPage pages[] = {page};
    ASSERT_TRUE(mirror.put(key_a, 3, {4, 88, 40, 0}, pages));
    EXPECT_EQ(mirror.use(key_a)->bytes, 40 * (entry_bytes + stride));
    Asked refined(key_a, near(model, 3), 100, 1), plain(key_a, near(model, 3), 100, 1);
    refined.search.refined_k = 5;
    run(mirror, {&refined, &plain});
    EXPECT_EQ(mirror.use(key_a)->batches, 2u);
    EXPECT_EQ(plain.search.found_count, 40u);
    EXPECT_TRUE(std::isinf(plain.search.left_out));
    EXPECT_EQ(refined.ids(), (std::set<uint64_t>{1000, 1001, 1002, 1003, 1004}));
    EXPECT_GT(refined.search.left_out, 16);
    EXPECT_LE(refined.search.left_out, 25);
    EXPECT_EQ(refined.probed[0].version, (MirrorVersion{4, 88, 40, 1}));
    // Appended entries without any: the list has none any more.
    const PageData more = make_page(random, 2000, 1);
    const ListPage one[] = {more.page()};
    ASSERT_TRUE(mirror.append(key_a, 3, {4, 88, 40, 0}, {4, 89, 1, 0}, one));
    Asked all(key_a, near(model, 3), 100, 1);
    all.search.refined_k = 5;
    run(mirror, {&all});
    EXPECT_EQ(all.search.found_count, 41u);
    EXPECT_TRUE(std::isinf(all.search.left_out));
    for (const Neighbor& found : std::span(all.found.data(), 41))
        EXPECT_EQ(found.distance, -std::numeric_limits<float>::infinity());
}

TEST_F(MirrorTest, KeepsIndexesApart) {
    Mirror mirror(*device, size_t{1} << 30);
    const Model other = make_model(random, 3, Metric::inner_product);
    mirror.add(key_a, model.quantizer());
    mirror.add(key_b, other.quantizer());
    const PageData a = make_page(random, 100, 4);
    const PageData b = make_page(random, 200, 5);
    const ListPage page_a[] = {a.page()};
    const ListPage page_b[] = {b.page()};
    for (uint32_t list = 0; list < 8; ++list) mirror.put(key_a, list, {1, list, 4, 0}, page_a);
    for (uint32_t list = 0; list < 3; ++list) mirror.put(key_b, list, {2, list, 5, 0}, page_b);
    Asked one(key_a, near(model, 1), 50, 1);
    Asked two(key_b, near(other, 0), 2, 100);
    Asked three(key_a, near(model, 2), 1, 8);
    Asked wrong({1, 10, 5, 100, 76}, near(model, 1), 50, 1);
    Asked short_query(key_a, {1, 2}, 50, 1);
    run(mirror, {&one, &two, &wrong, &three, &short_query});
    EXPECT_EQ(one.ids(), (std::set<uint64_t>{100, 101, 102, 103}));
    EXPECT_EQ(two.search.found_count, 2u);
    EXPECT_GE(*two.ids().begin(), 200u);
    EXPECT_EQ(two.search.probed_count, 3u);
    EXPECT_EQ(three.search.found_count, 1u);
    EXPECT_EQ(wrong.search.outcome, Outcome::unknown);
    EXPECT_EQ(short_query.search.outcome, Outcome::unknown);
    EXPECT_EQ(mirror.use(key_a)->batches, 1u);
    EXPECT_EQ(mirror.use(key_a)->batch_queries, 2u);

    // A new life of an index ends the old one.
    const MirrorKey later{1, 10, 5, 100, 79};
    mirror.add(later, model.quantizer());
    EXPECT_FALSE(mirror.knows(key_a));
    EXPECT_TRUE(mirror.put(key_a, 0, {1, 0, 4, 0}, page_a)) << "passed over";
    EXPECT_EQ(mirror.use(later)->resident_lists, 0u);

    mirror.forget(1, 0);
    EXPECT_FALSE(mirror.knows(later));
    EXPECT_FALSE(mirror.knows(key_b));
    EXPECT_EQ(mirror.bytes(), 0u);
    EXPECT_EQ(device->memory().used, 0u);
}

TEST_F(MirrorTest, GivesUpWhatWasUsedLeast) {
    // Room for three lists of ten, and for the sixteenth that is cleared beyond what is needed.
    constexpr size_t budget = 32 * entry_bytes;
    Mirror mirror(*device, budget);
    mirror.add(key_a, model.quantizer());
    const PageData ten = make_page(random, 100, 10);
    const ListPage pages[] = {ten.page()};
    for (uint32_t list = 0; list < 3; ++list)
        ASSERT_TRUE(mirror.put(key_a, list, {1, list, 10, 0}, pages));
    Asked zero(key_a, near(model, 0), 1, 1);
    Asked two(key_a, near(model, 2), 1, 1);
    run(mirror, {&zero});
    run(mirror, {&two});
    ASSERT_TRUE(mirror.put(key_a, 5, {1, 5, 10, 0}, pages));
    EXPECT_EQ(mirror.use(key_a)->evictions, 1u);
    EXPECT_LE(mirror.bytes(), budget);
    Asked all(key_a, near(model, 0), 100, 8);
    run(mirror, {&all});
    std::map<uint32_t, uint32_t> resident;
    for (const MirrorProbe& probe : all.probed) resident[probe.list] = probe.version.resident;
    EXPECT_EQ(resident[0], 1u);
    EXPECT_EQ(resident[1], 0u) << "the one without a search";
    EXPECT_EQ(resident[2], 1u);
    EXPECT_EQ(resident[5], 1u);

    const PageData hundred = make_page(random, 100, 100);
    const ListPage large[] = {hundred.page()};
    EXPECT_FALSE(mirror.put(key_a, 7, {1, 7, 100, 0}, large)) << "larger than all room";
    EXPECT_LE(mirror.bytes(), budget);
}

// An index that is loaded whole drives others out, but not itself.
TEST_F(MirrorTest, KeepsAnIndexThatIsLoadedWhole) {
    Mirror mirror(*device, 6 * 4 * entry_bytes);
    mirror.add(key_a, model.quantizer());
    mirror.add(key_b, model.quantizer());
    const PageData page = make_page(random, 100, 4);
    const ListPage pages[] = {page.page()};
    for (uint32_t list = 0; list < 3; ++list)
        ASSERT_TRUE(mirror.put(key_b, list, {1, list, 4, 0}, pages));
    uint32_t taken = 0;
    for (uint32_t list = 0; list < 8; ++list)
        taken += mirror.put(key_a, list, {1, list, 4, 0}, pages, Mirror::Victims::other_indexes);
    EXPECT_EQ(taken, 6u);
    EXPECT_EQ(mirror.use(key_a)->resident_lists, 6u);
    EXPECT_EQ(mirror.use(key_a)->evictions, 0u);
    EXPECT_EQ(mirror.use(key_b)->resident_lists, 0u);
    EXPECT_TRUE(mirror.put(key_a, 7, {1, 7, 4, 0}, pages));
    EXPECT_GT(mirror.use(key_a)->evictions, 0u);
}

TEST_F(MirrorTest, HoldsWhatASearchInFlightSees) {
    Mirror mirror(*device, size_t{1} << 30);
    mirror.add(key_a, model.quantizer());
    const PageData old_page = make_page(random, 100, 4);
    const PageData new_page = make_page(random, 200, 6);
    const ListPage old_pages[] = {old_page.page()};
    const ListPage new_pages[] = {new_page.page()};
    mirror.put(key_a, 3, {1, 3, 4, 0}, old_pages);
    Asked first(key_a, near(model, 3), 50, 1);
    Asked second(key_a, near(model, 3), 50, 1);
    submit(mirror, {&first});
    EXPECT_FALSE(mirror.busy());
    EXPECT_TRUE(mirror.start_next(10));
    EXPECT_TRUE(mirror.busy());
    mirror.put(key_a, 3, {2, 3, 6, 0}, new_pages);
    submit(mirror, {&second});
    EXPECT_TRUE(mirror.start_next(10));
    mirror.forget(1, 10);
    EXPECT_EQ(collect(mirror).size(), 2u);
    EXPECT_FALSE(mirror.busy());
    // Versions and contents belong together, whatever came between.
    EXPECT_EQ(first.ids(), (std::set<uint64_t>{100, 101, 102, 103}));
    EXPECT_EQ(first.probed[0].version.generation, 1u);
    EXPECT_EQ(second.search.found_count, 6u);
    EXPECT_EQ(second.probed[0].version.generation, 2u);
    EXPECT_EQ(device->memory().used, 0u);
}

TEST_F(MirrorTest, DropsAListThatAnotherDeviceHas) {
    Mirror mirror(*device, size_t{1} << 30);
    mirror.add(key_a, model.quantizer());
    const PageData one = make_page(random, 100, 4);
    const PageData two = make_page(random, 200, 6);
    const ListPage pages_of_one[] = {one.page()};
    const ListPage pages_of_two[] = {two.page()};
    mirror.put(key_a, 3, {1, 3, 4, 0}, pages_of_one);
    mirror.put(key_a, 4, {1, 4, 6, 0}, pages_of_two);
    Asked before(key_a, near(model, 3), 50, model.shape.lists);
    submit(mirror, {&before});
    EXPECT_TRUE(mirror.start_next(10));
    mirror.drop(key_a, 3);
    // None of these is there.
    mirror.drop(key_a, 3);
    mirror.drop(key_a, 5);
    mirror.drop(key_a, model.shape.lists);
    mirror.drop(key_b, 4);
    EXPECT_EQ(collect(mirror).size(), 1u);
    EXPECT_EQ(before.search.found_count, 10u);
    Asked after(key_a, near(model, 3), 50, model.shape.lists);
    run(mirror, {&after});
    EXPECT_EQ(after.ids(), (std::set<uint64_t>{200, 201, 202, 203, 204, 205}));
    ASSERT_EQ(after.probed[0].list, 3u);
    EXPECT_EQ(after.probed[0].version.resident, 0u);
    EXPECT_EQ(mirror.use(key_a)->resident_lists, 1u);
    EXPECT_EQ(mirror.use(key_a)->bytes, 6 * entry_bytes);
    EXPECT_EQ(mirror.bytes(), 6 * entry_bytes);
    EXPECT_EQ(mirror.use(key_a)->evictions, 0u);
    ASSERT_TRUE(mirror.put(key_a, 3, {1, 3, 4, 0}, pages_of_one));
    EXPECT_EQ(mirror.bytes(), 10 * entry_bytes);
}

TEST_F(MirrorTest, AppendsToTheVersionItIsToldOf) {
    Mirror mirror(*device, size_t{1} << 30);
    mirror.add(key_a, model.quantizer());
    const PageData start = make_page(random, 100, 4);
    const PageData more = make_page(random, 200, 3);
    const PageData rest = make_page(random, 300, 2);
    const ListPage first[] = {start.page()};
    const ListPage second[] = {more.page(), rest.page()};
    const MirrorVersion before{1, 7, 4, 1};
    const MirrorVersion after{1, 8, 2, 1};
    const auto search = [&] {
        Asked asked(key_a, near(model, 3), 50, 1);
        run(mirror, {&asked});
        return std::pair(asked.ids(), asked.probed[0].version);
    };
    EXPECT_TRUE(mirror.append(key_a, 3, before, after, second));
    EXPECT_EQ(search().second.resident, 0u) << "nothing to append to";
    ASSERT_TRUE(mirror.put(key_a, 3, before, first));
    const std::set<uint64_t> four{100, 101, 102, 103};
    // Another generation, page, or number of entries on it; another life of the index.
    for (const MirrorVersion& other :
         {MirrorVersion{2, 7, 4, 1}, MirrorVersion{1, 6, 4, 1}, MirrorVersion{1, 7, 3, 1}}) {
        EXPECT_TRUE(mirror.append(key_a, 3, other, after, second));
        EXPECT_EQ(search(), std::pair(four, before));
    }
    EXPECT_TRUE(mirror.append({1, 10, 5, 100, 76}, 3, before, after, second));
    EXPECT_EQ(search(), std::pair(four, before));

    // A search in flight has contents and version of its start.
    Asked in_flight(key_a, near(model, 3), 50, 1);
    submit(mirror, {&in_flight});
    EXPECT_TRUE(mirror.start_next(10));
    EXPECT_TRUE(mirror.append(key_a, 3, before, after, second));
    EXPECT_EQ(collect(mirror).size(), 1u);
    EXPECT_EQ(in_flight.ids(), four);
    EXPECT_EQ(in_flight.probed[0].version, before);
    const std::set<uint64_t> nine{100, 101, 102, 103, 200, 201, 202, 300, 301};
    EXPECT_EQ(search(), std::pair(nine, after));
    EXPECT_TRUE(mirror.append(key_a, 3, before, after, second)) << "the same from another backend";
    EXPECT_EQ(search(), std::pair(nine, after));
    EXPECT_EQ(mirror.use(key_a)->appends, 1u);
    EXPECT_EQ(mirror.use(key_a)->reloads, 0u);
    EXPECT_EQ(mirror.use(key_a)->received, 9 * entry_bytes);
    EXPECT_EQ(mirror.use(key_a)->bytes, 9 * entry_bytes);
    EXPECT_EQ(mirror.bytes(), 9 * entry_bytes);
}

// An append that finds no room leaves the list at its version, or without one.
TEST_F(MirrorTest, AppendsWithinItsBudget) {
    Mirror mirror(*device, 32 * entry_bytes);
    mirror.add(key_a, model.quantizer());
    const PageData ten = make_page(random, 100, 10);
    const PageData hundred = make_page(random, 1000, 100);
    const ListPage pages[] = {ten.page()};
    const ListPage many[] = {hundred.page()};
    for (uint32_t list = 0; list < 2; ++list)
        ASSERT_TRUE(mirror.put(key_a, list, {1, list, 10, 0}, pages));
    const PageData second_ten = make_page(random, 200, 10);
    const PageData third_ten = make_page(random, 300, 10);
    const ListPage second[] = {second_ten.page()};
    const ListPage third[] = {third_ten.page()};
    ASSERT_TRUE(mirror.append(key_a, 0, {1, 0, 10, 0}, {1, 0, 20, 0}, second));
    EXPECT_EQ(mirror.use(key_a)->resident_lists, 2u);
    EXPECT_FALSE(mirror.append(key_a, 0, {1, 0, 20, 0}, {1, 9, 20, 0}, many));
    ASSERT_TRUE(mirror.append(key_a, 0, {1, 0, 20, 0}, {1, 0, 30, 0}, third));
    EXPECT_EQ(mirror.use(key_a)->resident_lists, 1u) << "the other list gave way";
    EXPECT_EQ(mirror.bytes(), 30 * entry_bytes);
    Asked asked(key_a, near(model, 0), 50, 1);
    run(mirror, {&asked});
    EXPECT_EQ(asked.search.found_count, 30u);
    EXPECT_EQ(asked.probed[0].version, (MirrorVersion{1, 0, 30, 1}));
    EXPECT_FALSE(mirror.append(key_a, 0, {1, 0, 30, 0}, {1, 0, 40, 0}, pages));
    EXPECT_EQ(mirror.bytes(), 30 * entry_bytes);
}

TEST_F(MirrorTest, AsksOneBackendForAList) {
    Mirror mirror(*device, size_t{1} << 30);
    mirror.add(key_a, model.quantizer());
    Asked one(key_a, near(model, 3), 5, 1);
    Asked two(key_a, near(model, 3), 5, 1);
    run(mirror, {&one, &two});
    EXPECT_EQ(one.probed[0].wanted + two.probed[0].wanted, 1u);
    int asked = 0;
    for (int i = 0; i < 1000; ++i) {
        Asked again(key_a, near(model, 3), 5, 1);
        run(mirror, {&again});
        asked += static_cast<int>(again.probed[0].wanted);
    }
    EXPECT_GE(asked, 1) << "the backend asked first may never send it";
    EXPECT_LE(asked, 20);
}

TEST_F(MirrorTest, NamesListsThatItLacks) {
    Mirror mirror(*device, size_t{1} << 30);
    mirror.add(key_a, model.quantizer());
    const PageData data = make_page(random, 1, 10);
    const ListPage pages[] = {data.page()};
    ASSERT_TRUE(mirror.put(key_a, 2, {1, 1, 1, 0}, pages));
    const uint32_t lists = model.shape.lists;
    const auto named = [&](const ListRange& range, size_t most) {
        std::vector<uint32_t> missing(most);
        missing.resize(mirror.name_missing(key_a, range, missing));
        return missing;
    };
    EXPECT_TRUE(named({}, 0).empty());
    // Each call the next ones.
    std::set<uint32_t> all;
    for (size_t left = lists - 1; left > 0;) {
        const std::vector<uint32_t> some = named({}, std::min<size_t>(left, 3));
        EXPECT_EQ(some.size(), std::min<size_t>(left, 3));
        all.insert(some.begin(), some.end());
        left -= some.size();
    }
    EXPECT_EQ(all.size(), lists - 1) << "each list once";
    EXPECT_FALSE(all.contains(2)) << "it is resident";
    // Those of a range.
    const ListRange half{0, hash_of_list(5)};
    const std::vector<uint32_t> some = named(half, lists);
    EXPECT_TRUE(std::all_of(some.begin(), some.end(),
                            [&](uint32_t list) { return half.includes(list) && list != 2; }));
    size_t expected = 0;
    for (uint32_t list = 0; list < lists; ++list) expected += half.includes(list) && list != 2;
    EXPECT_EQ(some.size(), expected);
    EXPECT_TRUE(named({1, 0}, lists).empty()) << "no list belongs there";
    std::vector<uint32_t> none(lists);
    EXPECT_EQ(mirror.name_missing(key_b, {}, none), 0u) << "an index that it does not know";

    // Not where lists would have to give way.
    Mirror full(*device, 16 * entry_bytes);
    full.add(key_a, model.quantizer());
    const PageData large = make_page(random, 1, 16);
    const ListPage whole[] = {large.page()};
    ASSERT_TRUE(full.put(key_a, 2, {1, 1, 1, 0}, whole));
    uint32_t missing[64];
    EXPECT_EQ(full.name_missing(key_a, {}, missing), 0u);
}

TEST_F(MirrorTest, NamesALargeListOnceThereIsRoom) {
    Mirror mirror(*device, 32 * entry_bytes);
    mirror.add(key_a, model.quantizer());
    const PageData large = make_page(random, 1, 20);
    const PageData small = make_page(random, 1, 16);
    const ListPage whole[] = {large.page()};
    const ListPage part[] = {small.page()};
    const auto names = [&](uint32_t list) {
        std::vector<uint32_t> missing(model.shape.lists);
        missing.resize(mirror.name_missing(key_a, {}, missing));
        return std::find(missing.begin(), missing.end(), list) != missing.end();
    };
    ASSERT_TRUE(mirror.put(key_a, 2, {1, 1, 1, 0}, part, Mirror::Victims::none));
    EXPECT_TRUE(names(3));
    EXPECT_FALSE(mirror.put(key_a, 3, {1, 1, 1, 0}, whole, Mirror::Victims::none));
    EXPECT_FALSE(names(3)) << "it would be sent in vain again";
    EXPECT_TRUE(names(4)) << "others may be smaller";
    mirror.drop(key_a, 2);
    EXPECT_TRUE(names(3));
    EXPECT_TRUE(mirror.put(key_a, 3, {1, 1, 1, 0}, whole, Mirror::Victims::none));
}

TEST_F(MirrorTest, EvictsNothingForWhatMayStayAway) {
    Mirror mirror(*device, 30 * entry_bytes);
    mirror.add(key_a, model.quantizer());
    mirror.add(key_b, model.quantizer());
    const PageData data = make_page(random, 1, 10);
    const ListPage pages[] = {data.page()};
    const auto put = [&](const MirrorKey& key, uint32_t list) {
        return mirror.put(key, list, {1, 1, 1, 0}, pages, Mirror::Victims::none);
    };
    EXPECT_TRUE(put(key_a, 0));
    EXPECT_TRUE(put(key_b, 0));
    EXPECT_TRUE(put(key_a, 1));
    EXPECT_FALSE(put(key_a, 2)) << "there is no room";
    EXPECT_FALSE(put(key_b, 1));
    EXPECT_EQ(mirror.use(key_a)->resident_lists, 2u);
    EXPECT_EQ(mirror.use(key_b)->resident_lists, 1u);
    EXPECT_EQ(mirror.use(key_a)->evictions + mirror.use(key_b)->evictions, 0u);
}

TEST_F(MirrorTest, GivesUpIndexesForOthers) {
    ToldDevice told;
    told.room = 3;
    told.probed = {0};
    Mirror mirror(told, size_t{1} << 30);
    const auto key = [](uint32_t index) { return MirrorKey{1, index, 2, index, 7}; };
    const auto known = [&] {
        std::set<uint32_t> indexes;
        for (uint32_t i = 1; i < 10; ++i)
            if (mirror.knows(key(i))) indexes.insert(i);
        return indexes;
    };
    for (uint32_t i = 1; i <= 3; ++i) mirror.add(key(i), model.quantizer());
    Asked asked(key(1), near(model, 3), 5, 1);
    run(mirror, {&asked});
    EXPECT_EQ(asked.search.outcome, Outcome::found);
    mirror.add(key(4), model.quantizer());
    EXPECT_EQ(known(), (std::set<uint32_t>{1, 3, 4}));
    mirror.add(key(5), model.quantizer());
    EXPECT_EQ(known(), (std::set<uint32_t>{1, 4, 5}));
    told.room = 0;
    mirror.forget(1, 0);
    told.room = 0;
    EXPECT_THROW(mirror.add(key(6), model.quantizer()), OutOfDeviceMemory);
    EXPECT_EQ(known(), std::set<uint32_t>{});
}

TEST_F(MirrorTest, GivesUpNothingForAModelThatNeverFits) {
    ToldDevice told;
    told.room = 2;
    told.budget = model_floats(model.shape) * sizeof(float);
    Mirror mirror(told, size_t{1} << 30);
    mirror.add(key_a, model.quantizer());
    mirror.add(key_b, model.quantizer());
    const Model large = make_model(random, model.shape.lists + 1);
    EXPECT_TRUE(mirror.can_hold(model.shape));
    EXPECT_FALSE(mirror.can_hold(large.shape));
    constexpr MirrorKey later_a{1, 10, 5, 103, 80};
    constexpr MirrorKey key_c{1, 12, 5, 102, 79};
    for (const MirrorKey& key : {later_a, key_c})
        EXPECT_THROW(mirror.add(key, large.quantizer()), OutOfDeviceMemory);
    EXPECT_TRUE(mirror.knows(key_a));
    EXPECT_TRUE(mirror.knows(key_b));
}

TEST_F(MirrorTest, DatabasesOfOneNumberAreApart) {
    Mirror mirror(*device, size_t{1} << 30);
    MirrorKey first = key_a, second = key_a;
    first.incarnation = 700;
    second.incarnation = 701;
    mirror.add(first, model.quantizer());
    EXPECT_TRUE(mirror.knows(first));
    EXPECT_FALSE(mirror.knows(second));
    Asked asked(second, near(model, 3), 5, 1);
    run(mirror, {&asked});
    EXPECT_EQ(asked.search.outcome, Outcome::unknown);
}

// What lists take is an estimate. Where they left too little for searches, they give way, and do
// not come back at once.
TEST_F(MirrorTest, ListsGiveWayToSearches) {
    ToldDevice told;
    told.probed = {3};
    told.searchable_lists = 5;
    Mirror mirror(told, 8 * 4 * entry_bytes);
    mirror.add(key_a, model.quantizer());
    const PageData page = make_page(random, 100, 4);
    const ListPage pages[] = {page.page()};
    const auto put_all = [&] {
        for (uint32_t list = 0; list < 8; ++list) mirror.put(key_a, list, {1, list, 4, 0}, pages);
    };
    const auto failures_of = [&](int searches) {
        int failures = 0;
        for (int i = 0; i < searches; ++i) {
            Asked asked(key_a, near(model, 3), 5, 1);
            run(mirror, {&asked});
            failures += asked.search.outcome == Outcome::failed;
        }
        return failures;
    };
    put_all();
    EXPECT_EQ(mirror.use(key_a)->resident_lists, 8u);
    EXPECT_LE(failures_of(10), 3);
    EXPECT_LE(mirror.use(key_a)->resident_lists, 5u);
    put_all();
    EXPECT_EQ(failures_of(10), 0) << "what was given up has come back at once";
    // In the end there may be more room again.
    told.searchable_lists = 8;
    EXPECT_EQ(failures_of(20000), 0);
    put_all();
    EXPECT_EQ(mirror.use(key_a)->resident_lists, 8u);
}

// An index that was taken in counts before any of its lists is there, and then with all of them.
TEST_F(MirrorTest, CountsWhatItWasGiven) {
    Mirror mirror(*device, size_t{1} << 30);
    EXPECT_EQ(mirror.load().indexes, 0u);
    EXPECT_EQ(mirror.load().assigned, 0u);
    mirror.add(key_a, model.quantizer());
    const size_t of_model = mirror.load().assigned;
    EXPECT_GE(of_model, model.centroids.size() * sizeof(float));
    EXPECT_EQ(mirror.load().indexes, 1u);
    const PageData page = make_page(random, 100, 4);
    const ListPage pages[] = {page.page()};
    ASSERT_TRUE(mirror.put(key_a, 3, {1, 3, 4, 0}, pages));
    EXPECT_EQ(mirror.load().assigned, of_model + 8 * 4 * entry_bytes);
    mirror.add(key_b, model.quantizer());
    EXPECT_EQ(mirror.load().indexes, 2u);
    mirror.forget(1, 0);
    EXPECT_EQ(mirror.load().assigned, 0u);
}

// The mirror reports an index that lost lists to another one.
TEST_F(MirrorTest, TellsWhoLostLists) {
    ToldDevice told;
    Mirror mirror(told, 8 * 4 * entry_bytes);
    mirror.add(key_a, model.quantizer());
    mirror.add(key_b, model.quantizer());
    const PageData page = make_page(random, 100, 4);
    const ListPage pages[] = {page.page()};
    for (uint32_t list = 0; list < 8; ++list)
        ASSERT_TRUE(mirror.put(key_a, list, {1, list, 4, 0}, pages));
    EXPECT_TRUE(mirror.take_changes().empty());
    for (uint32_t list = 0; list < 3; ++list)
        ASSERT_TRUE(mirror.put(key_b, list, {1, list, 4, 0}, pages));
    std::vector<MirrorChange> changes = mirror.take_changes();
    ASSERT_EQ(changes.size(), 1u);
    EXPECT_EQ(changes[0].key, key_a);
    EXPECT_LE(changes[0].use.resident_lists, 5u);
    EXPECT_EQ(changes[0].use.resident_lists + changes[0].use.evictions, 8u);
    EXPECT_EQ(changes[0].use.bytes, changes[0].use.resident_lists * 4 * entry_bytes);
    EXPECT_TRUE(mirror.take_changes().empty());
    // One that is given up whole for a third.
    told.room = 0;
    constexpr MirrorKey key_c{1, 12, 5, 102, 79};
    const uint64_t before = mirror.use(key_a)->evictions + mirror.use(key_a)->resident_lists;
    mirror.add(key_c, model.quantizer());
    ASSERT_FALSE(mirror.knows(key_a));
    changes = mirror.take_changes();
    ASSERT_EQ(changes.size(), 1u);
    EXPECT_EQ(changes[0].key, key_a);
    EXPECT_EQ(changes[0].use.resident_lists, 0u);
    EXPECT_EQ(changes[0].use.lists, 0u);
    EXPECT_EQ(changes[0].use.bytes, 0u);
    EXPECT_EQ(changes[0].use.evictions, before);
}

}  // namespace
}  // namespace pgwarp
