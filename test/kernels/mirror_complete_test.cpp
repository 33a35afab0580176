// When a mirror's answers are complete, and need no versions.
#include "test/kernels/mirror_check.h"

#include <map>
#include <thread>

namespace pgwarp {
namespace {

using namespace mirror_check;

// Counts as those who change lists would.
struct Counts final : ListChangeCounts {
    std::map<uint32_t, uint64_t> lists;
    uint64_t index = 0;
    mutable int compared = 0;  // lists

    void change(uint32_t list) {
        ++lists[list];
        ++index;
    }
    uint64_t of(uint32_t list) const {
        const auto at = lists.find(list);
        return at == lists.end() ? 0 : at->second;
    }
    uint64_t of_index(const MirrorKey&) const noexcept override { return index; }
    uint32_t first_changed(const MirrorKey&, std::span<const uint64_t> known,
                           uint32_t first) const noexcept override {
        for (; first < known.size(); ++first) {
            if (known[first] == counted_elsewhere) continue;
            ++compared;
            if (of(first) != known[first]) break;
        }
        return first;
    }
};

struct MirrorComplete : MirrorTest {
    Counts counts;
    Mirror mirror{*device, size_t{1} << 30, &counts};
    PageData four = make_page(random, 100, 4);
    std::vector<ListPage> pages{four.page()};
    uint32_t lists = model.shape.lists;

    void SetUp() override {
        counts.index = 1000;
        mirror.add(key_a, model.quantizer());
    }
    void put(uint32_t list, uint64_t changes, uint32_t generation = 1) {
        ASSERT_TRUE(mirror.put(key_a, list, {generation, list, 4, 0}, pages, Mirror::Victims::any,
                               changes));
    }
    void put_all() {
        for (uint32_t list = 0; list < lists; ++list) put(list, counts.of(list));
    }
    // Whether an answer is complete now; otherwise it names its lists.
    bool complete() {
        Asked asked(key_a, near(model, 3), 5, 2);
        run(mirror, {&asked});
        EXPECT_EQ(asked.search.outcome, Outcome::found);
        EXPECT_EQ(asked.search.probed_count, asked.search.complete ? 0u : 2u);
        return asked.search.complete;
    }
    // The list that a backend is asked for, and its version.
    MirrorProbe outdated() {
        Asked asked(key_a, near(model, 3), 5, 2);
        run(mirror, {&asked});
        return asked.search.outdated;
    }
};

TEST_F(MirrorComplete, NeedsEveryListAtItsCount) {
    counts.change(5);
    for (uint32_t list = 0; list < lists; ++list) {
        EXPECT_FALSE(complete()) << "without list " << list;
        put(list, counts.of(list));
    }
    EXPECT_TRUE(complete());

    // A list that has changed, whichever it is.
    for (uint32_t list = 0; list < lists; ++list) {
        counts.change(list);
        EXPECT_FALSE(complete()) << "list " << list;
        put(list, counts.of(list) - 1);
        EXPECT_FALSE(complete()) << "sent as it was before, list " << list;
        put(list, unknown_changes);
        EXPECT_FALSE(complete()) << "sent without a count, list " << list;
        put(list, counts.of(list));
        EXPECT_TRUE(complete()) << "list " << list;
    }

    // An older state that comes late.
    put(2, counts.of(2) - 1);
    EXPECT_FALSE(complete());
    put(2, counts.of(2));
    EXPECT_TRUE(complete());

    // The index's count alone: another index that shares it.
    ++counts.index;
    EXPECT_TRUE(complete());
    mirror.add({1, 10, 5, 100, 99}, model.quantizer());
    Asked other({1, 10, 5, 100, 99}, near(model, 3), 5, 2);
    run(mirror, {&other});
    EXPECT_FALSE(other.search.complete) << "a new build has no lists";
}

TEST_F(MirrorComplete, IsDecidedWhenTheBatchStarts) {
    ToldDevice told;
    told.probed = {3};
    bool done = false;
    told.done = [&](const ListQuery&) { return done; };
    Mirror slow(told, size_t{1} << 30, &counts);
    slow.add(key_a, model.quantizer());
    const auto put_slow = [&](uint32_t list) {
        slow.put(key_a, list, {1, list, 4, 0}, pages, Mirror::Victims::any, counts.of(list));
    };
    for (uint32_t list = 0; list < lists; ++list) put_slow(list);
    Asked before(key_a, near(model, 3), 5, 1);
    slow.submit(&before.search);
    ASSERT_TRUE(slow.start_next(1));
    counts.change(3);
    Asked after(key_a, near(model, 3), 5, 1);
    slow.submit(&after.search);
    ASSERT_TRUE(slow.start_next(1));
    put_slow(3);
    done = true;
    EXPECT_EQ(collect(slow).size(), 2u);
    EXPECT_TRUE(before.search.complete) << "changed later";
    EXPECT_FALSE(after.search.complete) << "sent later";
    EXPECT_EQ(after.search.probed_count, 1u);
}

// A device that has a part of the index.
TEST_F(MirrorComplete, NeedsTheListsOfItsRange) {
    std::vector<uint32_t> hashes;
    for (uint32_t list = 0; list < lists; ++list) hashes.push_back(hash_of_list(list));
    std::sort(hashes.begin(), hashes.end());
    const uint32_t border = hashes[lists / 2];
    const ListRange low{0, border}, high{border + 1, ListRange{}.last};
    const auto answer = [&](const ListRange& range) {
        Asked asked(key_a, near(model, 3), 5, 2);
        asked.search.range = range;
        run(mirror, {&asked});
        EXPECT_EQ(asked.search.probed_count, asked.search.complete ? 0u : 2u);
        return asked.search.complete;
    };
    uint32_t own = 0, other = 0;
    for (uint32_t list = 0; list < lists; ++list) {
        if (!low.includes(list)) {
            other = list;
            continue;
        }
        EXPECT_FALSE(answer(low)) << "without list " << list;
        put(own = list, counts.of(list));
    }
    ASSERT_TRUE(low.includes(own) && high.includes(other));
    EXPECT_TRUE(answer(low));
    EXPECT_FALSE(answer({})) << "not of the whole index";
    EXPECT_FALSE(answer(high));
    EXPECT_TRUE(answer(low)) << "as before";

    // Changes of lists that belong elsewhere.
    counts.change(other);
    EXPECT_TRUE(answer(low));
    counts.change(own);
    EXPECT_FALSE(answer(low));
    put(own, counts.of(own));
    EXPECT_TRUE(answer(low));
    // A list that belongs elsewhere may be in the answer of its owner, too.
    put(other, counts.of(other));
    EXPECT_FALSE(answer(low));
    mirror.drop(key_a, other);
    EXPECT_TRUE(answer(low));
    mirror.drop(key_a, own);
    EXPECT_FALSE(answer(low));
    put(own, counts.of(own));
    EXPECT_TRUE(answer(low));
    // Of two searches in one batch, each has its own range.
    Asked first(key_a, near(model, 3), 5, 2), second(key_a, near(model, 3), 5, 2);
    first.search.range = high;
    second.search.range = low;
    run(mirror, {&first, &second});
    EXPECT_FALSE(first.search.complete);
    EXPECT_TRUE(second.search.complete);
    // All lists, and the whole index is complete; a range is not.
    put_all();
    EXPECT_TRUE(answer({}));
    EXPECT_FALSE(answer(low));
    // A range without lists.
    for (uint32_t list = 0; list < lists; ++list) mirror.drop(key_a, list);
    EXPECT_TRUE(answer({1, 0}));
    EXPECT_FALSE(answer({}));
}

TEST_F(MirrorComplete, FollowsAppends) {
    put_all();
    const MirrorVersion had{1, 2, 4, 1};
    counts.change(2);
    EXPECT_FALSE(complete());
    mirror.append(key_a, 2, {1, 2, 3, 1}, {1, 2, 8, 1}, pages, counts.of(2));
    EXPECT_FALSE(complete()) << "from a version that is not there";
    const PageData later = make_page(random, 200, 4), last = make_page(random, 300, 4);
    const ListPage later_pages[] = {later.page()}, last_pages[] = {last.page()};
    mirror.append(key_a, 2, had, {1, 2, 8, 1}, later_pages, counts.of(2) - 1);
    EXPECT_FALSE(complete()) << "with an older count";
    mirror.append(key_a, 2, {1, 2, 8, 1}, {1, 2, 12, 1}, last_pages);
    EXPECT_FALSE(complete()) << "without a count";
    EXPECT_EQ(mirror.use(key_a)->appends, 2u);

    // Nothing was appended: the list is the same at a later count.
    mirror.append(key_a, 2, {1, 2, 8, 1}, {1, 2, 8, 1}, {}, counts.of(2));
    EXPECT_FALSE(complete()) << "of a version that is not there";
    mirror.append(key_a, 2, {1, 2, 12, 1}, {1, 2, 12, 1}, {}, counts.of(2));
    EXPECT_TRUE(complete());
    EXPECT_EQ(mirror.use(key_a)->appends, 2u);
    Asked all(key_a, near(model, 2), 100, 1);
    all.search.wants_versions = true;
    run(mirror, {&all});
    EXPECT_EQ(all.ids().size(), 12u);
    EXPECT_EQ(all.probed[0].version, (MirrorVersion{1, 2, 12, 1}));
}

TEST_F(MirrorComplete, EndsWithEviction) {
    Mirror small(*device, size_t{lists} * 4 * entry_bytes, &counts);
    small.add(key_a, model.quantizer());
    small.add(key_b, model.quantizer());
    const auto complete_there = [&] {
        Asked asked(key_a, near(model, 3), 5, 2);
        run(small, {&asked});
        return asked.search.complete;
    };
    for (uint32_t list = 0; list < lists; ++list)
        ASSERT_TRUE(small.put(key_a, list, {1, list, 4, 0}, pages, Mirror::Victims::any, 0));
    EXPECT_TRUE(complete_there());
    ASSERT_TRUE(small.put(key_b, 0, {1, 0, 4, 0}, pages, Mirror::Victims::any, 0));
    EXPECT_GT(small.use(key_a)->evictions, 0u);
    EXPECT_FALSE(complete_there());
    small.forget(key_b.database, key_b.index);
    for (uint32_t list = 0; list < lists; ++list)
        ASSERT_TRUE(small.put(key_a, list, {1, list, 4, 0}, pages, Mirror::Victims::any, 0));
    EXPECT_TRUE(complete_there());
}

TEST_F(MirrorComplete, LeavesVersionsAndListsToThoseWhoWantThem) {
    put_all();
    put(3, 0, 7);
    Asked plain(key_a, near(model, 3), 5, 2);
    Asked versions(key_a, near(model, 3), 5, 2);
    versions.search.wants_versions = true;
    run(mirror, {&plain, &versions});
    EXPECT_TRUE(plain.search.complete);
    EXPECT_EQ(plain.search.probed_count, 0u);
    EXPECT_EQ(plain.ids(), versions.ids());
    EXPECT_FALSE(versions.search.complete);
    ASSERT_EQ(versions.search.probed_count, 2u);
    EXPECT_EQ(versions.probed[0].list, 3u);
    EXPECT_EQ(versions.probed[0].version, (MirrorVersion{7, 3, 4, 1}));

    // A filtered search may be continued: it names its lists, with their generations.
    std::vector<uint64_t> named(4);
    Asked filtered(key_a, near(model, 3), 5, 4);
    filtered.search.filtered = true;
    filtered.search.lists = named.data();
    Asked there(key_a, near(model, 3), 5, 4);
    there.search.filtered = true;
    there.search.wants_versions = true;
    run(mirror, {&filtered, &there});
    EXPECT_TRUE(filtered.search.complete);
    ASSERT_EQ(filtered.search.probed_count, 4u);
    ASSERT_EQ(there.search.probed_count, 4u);
    for (size_t i = 0; i < 4; ++i)
        EXPECT_EQ(named[i], list_and_generation(there.probed[i].list, there.probed[i].version));
    EXPECT_EQ(named[0], uint64_t{3} << 32 | 7);
}

// A search evicts nothing that it uses, complete or not.
TEST_F(MirrorComplete, CountsAsUse) {
    Mirror small(*device, size_t{lists + 1} * 4 * entry_bytes, &counts);
    small.add(key_a, model.quantizer());
    for (uint32_t list = 0; list < lists; ++list)
        ASSERT_TRUE(small.put(key_a, list, {1, list, 4, 0}, pages, Mirror::Victims::any, 0));
    Asked first(key_a, near(model, 0), 5, 1);
    run(small, {&first});
    ASSERT_TRUE(first.search.complete);
    small.add(key_b, model.quantizer());
    for (uint32_t list = 0; list < 3; ++list)
        ASSERT_TRUE(small.put(key_b, list, {1, list, 4, 0}, pages));
    Asked all(key_a, near(model, 0), 5, lists);
    run(small, {&all});
    std::map<uint32_t, uint32_t> resident;
    for (const MirrorProbe& probe : all.probed) resident[probe.list] = probe.version.resident;
    EXPECT_EQ(resident[0], 1u);
    EXPECT_EQ(resident[1], 0u);
}

TEST_F(MirrorComplete, CostsOneComparisonWhileListsChange) {
    put_all();
    counts.change(5);
    EXPECT_FALSE(complete());
    counts.compared = 0;
    for (int i = 0; i < 10; ++i) {
        counts.change(6);
        EXPECT_FALSE(complete());
    }
    EXPECT_LE(counts.compared, 20);
    put(5, counts.of(5));
    put(6, counts.of(6));
    EXPECT_TRUE(complete());
    counts.compared = 0;
    EXPECT_TRUE(complete());
    EXPECT_EQ(counts.compared, 0);
}

TEST_F(MirrorComplete, AsksForWhatIsMissing) {
    put_all();
    EXPECT_EQ(outdated().version.resident, 0u);
    counts.change(5);
    counts.change(6);
    EXPECT_EQ(outdated().version.resident, 0u) << "the index has just changed";
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    const MirrorProbe first = outdated();
    EXPECT_EQ(first.list, 5u);
    EXPECT_EQ(first.version, (MirrorVersion{1, 5, 4, 1}));
    EXPECT_EQ(outdated().version.resident, 0u) << "asked once";
    mirror.append(key_a, 5, first.version, first.version, {}, counts.of(5));
    const MirrorProbe second = outdated();
    EXPECT_EQ(second.list, 6u);
    EXPECT_EQ(second.version, (MirrorVersion{1, 6, 4, 1}));
    int asked = 0;
    for (int i = 0; i < 250; ++i) asked += outdated().version.resident;
    EXPECT_EQ(asked, 1) << "and again, if nothing came";
    mirror.append(key_a, 6, second.version, second.version, {}, counts.of(6));
    EXPECT_TRUE(complete());
    EXPECT_EQ(outdated().version.resident, 0u);
}

}  // namespace
}  // namespace pgwarp
