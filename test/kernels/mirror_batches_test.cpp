// Searches of a mirror: batches, answers that cannot be, failures.
#include "kernels/failing_device.h"
#include "test/kernels/mirror_check.h"

namespace pgwarp {
namespace {

using namespace mirror_check;

// A device with two indexes, whose batches end when they are told to.
struct MirrorBatchTest : MirrorTest {
    ToldDevice told;
    Mirror mirror{told, size_t{1} << 30};
    using Started = ToldDevice::Started;

    void SetUp() override {
        told.probed = {0};
        mirror.add(key_a, model.quantizer());
        mirror.add(key_b, model.quantizer());
    }
    std::unique_ptr<Asked> ask(const MirrorKey& key, uint32_t k) {
        auto asked = std::make_unique<Asked>(key, near(model, 0), k, 1);
        mirror.submit(&asked->search);
        return asked;
    }
    void start_all() {
        while (mirror.start_next(1000)) {
        }
    }
};

// A slow batch keeps neither searches of another shape nor another index waiting.
TEST_F(MirrorBatchTest, EndsBatchesOneByOne) {
    bool slow = true;
    told.done = [&](const ListQuery& wanted) { return !slow || wanted.k < 1000; };
    const auto large = ask(key_a, 2000);
    const auto small = ask(key_a, 10), other = ask(key_b, 10);
    start_all();
    EXPECT_EQ(told.started, (std::vector<Started>{{1, 2000, 1}, {1, 10, 1}, {1, 10, 1}}));
    EXPECT_EQ(collect(mirror), (std::vector<MirrorSearch*>{&small->search, &other->search}));
    EXPECT_EQ(small->search.outcome, Outcome::found);
    EXPECT_EQ(other->search.outcome, Outcome::found);
    EXPECT_TRUE(mirror.busy());
    for (int i = 0; i < 5; ++i) {
        const auto next = ask(key_a, 10);
        start_all();
        EXPECT_EQ(collect(mirror), std::vector<MirrorSearch*>{&next->search});
    }
    slow = false;
    EXPECT_EQ(collect(mirror), std::vector<MirrorSearch*>{&large->search});
    EXPECT_EQ(large->search.outcome, Outcome::found);
    EXPECT_FALSE(mirror.busy());
}

// While batches run, searches gather; the one that has waited longest comes first.
TEST_F(MirrorBatchTest, GathersWhileBatchesRun) {
    bool done = false;
    told.done = [&](const ListQuery&) { return done; };
    std::vector<std::unique_ptr<Asked>> asked;
    const auto ask_many = [&](const MirrorKey& key, int searches) {
        for (int i = 0; i < searches; ++i) asked.push_back(ask(key, 10));
    };
    ask_many(key_a, 40);
    start_all();
    ask_many(key_a, 9);
    start_all();
    EXPECT_EQ(told.started, (std::vector<Started>{{40, 10, 1}})) << "few wait for more";
    ask_many(key_a, 1);
    start_all();
    ask_many(key_a, 30);
    ask_many(key_b, 1);
    ask_many(key_a, 30);
    start_all();
    EXPECT_EQ(told.started, (std::vector<Started>{{40, 10, 1}, {10, 10, 1}, {1, 10, 1}}));
    EXPECT_TRUE(collect(mirror).empty());
    ask_many(key_b, 1);
    done = true;
    EXPECT_EQ(collect(mirror).size(), 51u);
    told.started.clear();
    EXPECT_TRUE(mirror.start_next(44)) << "as many as are allowed";
    EXPECT_TRUE(mirror.start_next(44));
    EXPECT_TRUE(mirror.start_next(44));
    EXPECT_FALSE(mirror.start_next(44));
    EXPECT_EQ(told.started, (std::vector<Started>{{44, 10, 1}, {16, 10, 1}, {1, 10, 1}}));
    EXPECT_EQ(collect(mirror).size(), 61u);
    for (const auto& one : asked) EXPECT_EQ(one->search.outcome, Outcome::found);
}

TEST_F(MirrorBatchTest, BoundsWhatRunsAtOnce) {
    told.done = [](const ListQuery&) { return false; };
    std::vector<std::unique_ptr<Asked>> asked;
    const auto ask_shapes = [&](const MirrorKey& key) {
        for (int i = 0; i < 20; ++i)
            for (const uint32_t k : {10u, 200u, 2000u}) {
                asked.push_back(ask(key, k));
                start_all();
            }
    };
    ask_shapes(key_a);
    EXPECT_EQ(told.started.size(), Mirror::most_of_index);
    EXPECT_EQ(told.batches, static_cast<int>(Mirror::most_of_index));
    ask_shapes(key_b);
    EXPECT_EQ(told.started.size(), 2 * Mirror::most_of_index) << "an index does not starve another";
    for (uint32_t i = 0; i < 10; ++i) {
        const MirrorKey key{2, i + 1, 2, i, 7};
        mirror.add(key, model.quantizer());
        ask_shapes(key);
    }
    EXPECT_EQ(told.started.size(), Mirror::most_batches);
    told.done = [](const ListQuery&) { return true; };
    size_t answered = 0;
    for (int i = 0; i < 1000 && answered < asked.size(); ++i) {
        start_all();
        answered += collect(mirror).size();
    }
    EXPECT_EQ(answered, asked.size());
    // Batches of shapes that are not asked for any more give their memory back.
    for (int i = 0; i < 20000; ++i) {
        const auto one = ask(key_a, 10);
        start_all();
        collect(mirror);
    }
    EXPECT_LE(told.batches, 12 * static_cast<int>(Mirror::most_of_index) - 4);
}

// Searches of an index that is forgotten before they start are answered, too.
TEST_F(MirrorBatchTest, AnswersForAForgottenIndex) {
    told.done = [](const ListQuery&) { return false; };
    const auto first = ask(key_a, 10), second = ask(key_a, 10);
    start_all();
    std::vector<std::unique_ptr<Asked>> asked;
    for (int i = 0; i < 3; ++i) asked.push_back(ask(key_a, 2000));
    mirror.forget(1, 10);
    EXPECT_EQ(collect(mirror).size(), 3u);
    for (const auto& one : asked) EXPECT_EQ(one->search.outcome, Outcome::unknown);
    EXPECT_FALSE(mirror.start_next(10));
    told.done = [](const ListQuery&) { return true; };
    EXPECT_EQ(collect(mirror).size(), 2u);
    EXPECT_EQ(first->search.outcome, Outcome::found);
    EXPECT_EQ(second->search.outcome, Outcome::found);
}

// Few searches of several indexes share a batch, many do not.
TEST_F(MirrorBatchTest, MixesIndexes) {
    told.mixes = true;
    bool done = false;
    told.done = [&](const ListQuery&) { return done; };
    std::vector<MirrorKey> keys;
    for (uint32_t i = 0; i < 40; ++i) {
        keys.push_back({3, i + 1, 2, i, 7});
        mirror.add(keys.back(), model.quantizer());
    }
    std::vector<std::unique_ptr<Asked>> asked;
    const auto ask_each = [&](size_t first, size_t count, int searches, uint32_t k = 10) {
        for (size_t i = first; i < first + count; ++i)
            for (int n = 0; n < searches; ++n) asked.push_back(ask(keys[i], k));
    };
    ask_each(0, 1, 1);
    start_all();
    ask_each(1, 30, 1);
    start_all();
    EXPECT_EQ(told.started, (std::vector<Started>{{1, 10, 1}, {30, 10, 1}}));
    ask_each(31, 3, 2);
    start_all();
    EXPECT_EQ(told.started.size(), 2u) << "few wait for more";
    ask_each(0, 1, 2);
    start_all();
    EXPECT_EQ(told.started.back(), (Started{8, 10, 1}));
    ask_each(0, 40, 3);
    start_all();
    EXPECT_EQ(told.started.size(), Mirror::most_of_family);
    // Those that are many, need many candidates, or are of an index that does not mix.
    ask_each(5, 1, static_cast<int>(Mirror::least_alone) - 3);
    ask_each(6, 2, 1, 200);
    asked.push_back(ask(key_a, 10));
    start_all();
    EXPECT_EQ(told.started.size(), Mirror::most_of_family + 4);
    done = true;
    EXPECT_EQ(collect(mirror).size(), 39u + Mirror::least_alone + 3);
    told.started.clear();
    ask_each(0, 40, 10);
    EXPECT_TRUE(mirror.start_next(3)) << "no more than are allowed";
    EXPECT_EQ(told.started, (std::vector<Started>{{3, 10, 1}}));
    EXPECT_EQ(collect(mirror).size(), 3u);
    told.started.clear();
    start_all();
    const Started most{Mirror::most_mixed, 10, 1};
    EXPECT_EQ(told.started, (std::vector<Started>{most, most}));
    EXPECT_EQ(collect(mirror).size(), 2 * Mirror::most_mixed);
    for (int i = 0; i < 10; ++i) start_all(), collect(mirror);
    for (const auto& one : asked) EXPECT_EQ(one->search.outcome, Outcome::found);
    EXPECT_FALSE(mirror.busy());
    for (const MirrorKey& key : keys) EXPECT_GE(mirror.use(key)->batch_queries, 13u);

    // Indexes that are forgotten, and a device that fails, while one runs.
    asked.clear();
    done = false;
    ask_each(0, 4, 1);
    start_all();
    for (int i = 1; i <= 40; ++i) mirror.forget(3, i);
    done = true;
    EXPECT_EQ(collect(mirror).size(), 4u);
    for (const auto& one : asked) EXPECT_EQ(one->search.outcome, Outcome::found);
    keys.resize(3);
    for (const MirrorKey& key : keys) mirror.add(key, model.quantizer());
    asked.clear();
    told.searchable_lists = 0;
    const PageData page = make_page(random, 100, 4);
    const ListPage pages[] = {page.page()};
    ASSERT_TRUE(mirror.put(keys[0], 3, {1, 3, 4, 0}, pages));
    ask_each(0, 3, 1);
    start_all();
    EXPECT_EQ(collect(mirror).size(), 3u);
    for (const auto& one : asked) EXPECT_EQ(one->search.outcome, Outcome::failed);
    for (const MirrorKey& key : keys) EXPECT_EQ(mirror.use(key)->errors, 1u);
    // Memory of mixed batches is given back, too.
    told.searchable_lists = 1000;
    for (int i = 0; i < 20000; ++i) {
        const auto one = ask(keys[0], 10);
        start_all();
        collect(mirror);
    }
    EXPECT_LE(told.batches, 4);
}

// An index that is searched all the time keeps no other one waiting, however small batches are.
TEST_F(MirrorBatchTest, MixedIndexesStarveNoOther) {
    told.mixes = true;
    // Of the batches that run, the first is done.
    int looked = 0;
    bool all = false;
    told.done = [&](const ListQuery&) { return looked++ == 0 || all; };
    for (const MirrorKey& key : {key_a, key_b}) {
        mirror.forget(key.database, key.index);
        mirror.add(key, model.quantizer());
    }
    for (const size_t waiting : {200, 50}) {
        told.started.clear();
        std::vector<std::unique_ptr<Asked>> asked;
        const auto turn = [&] {
            size_t started = 0;
            for (const Started& one : told.started) started += one.searches;
            while (asked.size() < started + waiting) asked.push_back(ask(key_a, 10));
            while (mirror.start_next(20)) {
            }
            looked = 0;
            return collect(mirror);
        };
        for (int i = 0; i < 5; ++i) turn();
        const auto other = ask(key_b, 10);
        size_t turns = 0;
        for (bool answered = false; !answered && turns < 50; ++turns) {
            const std::vector<MirrorSearch*> now = turn();
            answered = std::find(now.begin(), now.end(), &other->search) != now.end();
        }
        EXPECT_LE(turns, waiting / 20 + 5) << waiting << " wait";
        all = true;
        while (mirror.start_next(1000) || mirror.busy()) collect(mirror);
        all = false;
        EXPECT_EQ(other->search.outcome, Outcome::found);
    }
}

struct MirrorSearchTest : MirrorTest {};

// One batch of searches in several indexes gives each what its own gives.
TEST_F(MirrorSearchTest, AnswersForEachIndexOfABatch) {
    Mirror mirror(*device, size_t{1} << 30);
    std::vector<Model> models;
    std::vector<MirrorKey> keys;
    for (uint32_t i = 0; i < 5; ++i) {
        models.push_back(make_model(random, 3 + 4 * i));
        keys.push_back({1, 20 + i, 5, i, i});
        mirror.add(keys[i], models[i].quantizer());
        for (uint32_t list = 0; list < models[i].shape.lists; ++list) {
            if ((list + i) % 5 == 4) continue;
            const PageData page = make_page(random, 1000 * i + 20 * list, 1 + list);
            const ListPage pages[] = {page.page()};
            ASSERT_TRUE(mirror.put(keys[i], list, {i + 1, list, 1 + list, 0}, pages));
        }
    }
    std::vector<std::unique_ptr<Asked>> together, alone;
    for (uint32_t i = 0; i < 5; ++i)
        for (uint32_t n = 0; n <= i; ++n)
            for (auto* asked : {&together, &alone})
                asked->push_back(
                    std::make_unique<Asked>(keys[i], near(models[i], n), 5 + 26 * n, 1 + 2 * n));
    for (const auto& one : together) mirror.submit(&one->search);
    EXPECT_TRUE(mirror.start_next(1000));
    EXPECT_FALSE(mirror.start_next(1000)) << "all are in one batch";
    EXPECT_EQ(collect(mirror).size(), together.size());
    for (size_t i = 0; i < together.size(); ++i) {
        run(mirror, {alone[i].get()});
        const MirrorSearch &a = together[i]->search, &b = alone[i]->search;
        EXPECT_EQ(a.outcome, Outcome::found);
        EXPECT_EQ(together[i]->ids(), alone[i]->ids());
        ASSERT_EQ(a.probed_count, b.probed_count);
        EXPECT_EQ(a.taken, b.taken);
        for (uint32_t p = 0; p < a.probed_count; ++p) {
            EXPECT_EQ(a.probed[p].list, b.probed[p].list);
            EXPECT_EQ(a.probed[p].version, b.probed[p].version);
        }
    }
}

TEST_F(MirrorSearchTest, OthersEndBeforeASlowBatch) {
    volatile int fault = static_cast<int>(Fault::slow_large);
    const std::unique_ptr<Device> failing = make_failing_device(std::move(device), &fault);
    Mirror mirror(*failing, size_t{1} << 30);
    mirror.add(key_a, model.quantizer());
    Asked large(key_a, near(model, 3), 2000, 1);
    Asked small(key_a, near(model, 3), 5, 1);
    submit(mirror, {&large, &small});
    while (mirror.start_next(10)) {
    }
    EXPECT_EQ(collect(mirror), std::vector<MirrorSearch*>{&small.search});
    EXPECT_TRUE(mirror.busy());
    std::vector<MirrorSearch*> rest;
    while (rest.empty()) rest = collect(mirror);
    EXPECT_EQ(rest, std::vector<MirrorSearch*>{&large.search});
    EXPECT_EQ(large.search.outcome, Outcome::found);
}

TEST_F(MirrorSearchTest, BelievesNoAnswerThatCannotBe) {
    ToldDevice told;
    Mirror mirror(told, size_t{1} << 30);
    mirror.add(key_a, model.quantizer());
    const auto outcome = [&](const std::vector<uint32_t>& probed, uint32_t found) {
        told.probed = probed;
        told.found = found;
        Asked asked(key_a, near(model, 3), 5, 3);
        run(mirror, {&asked});
        return asked.search.outcome;
    };
    EXPECT_EQ(outcome({3, 1, 2}, 0), Outcome::found);
    EXPECT_EQ(outcome({3, 1, 3}, 0), Outcome::failed) << "a list twice";
    EXPECT_EQ(outcome({3, 1, 2}, 5), Outcome::found);
    EXPECT_EQ(outcome({3, model.shape.lists, 2}, 5), Outcome::failed) << "no such list";
    EXPECT_EQ(outcome({3, 1, 2}, 6), Outcome::failed) << "more than were wanted";
    EXPECT_EQ(outcome({1, 3, 2}, 5), Outcome::found);
    EXPECT_EQ(mirror.use(key_a)->errors, 3u);
}

TEST_F(MirrorSearchTest, MarksWhatFails) {
    volatile int fault = static_cast<int>(Fault::none);
    const std::unique_ptr<Device> failing = make_failing_device(std::move(device), &fault);
    Mirror mirror(*failing, size_t{1} << 30);
    mirror.add(key_a, model.quantizer());
    const PageData page = make_page(random, 100, 4);
    const ListPage pages[] = {page.page()};
    ASSERT_TRUE(mirror.put(key_a, 3, {1, 3, 4, 0}, pages));
    const auto outcome = [&](Fault now) {
        fault = static_cast<int>(now);
        Asked asked(key_a, near(model, 3), 5, 1);
        try {
            run(mirror, {&asked});
        } catch (const DeviceFailure& failure) {
            EXPECT_EQ(now, Fault::failed);
            EXPECT_FALSE(failure.lost);
        }
        return asked.search.outcome;
    };
    EXPECT_EQ(outcome(Fault::failed), Outcome::failed);
    EXPECT_EQ(outcome(Fault::none), Outcome::found);
    EXPECT_EQ(outcome(Fault::out_of_memory), Outcome::failed);
    EXPECT_FALSE(mirror.put(key_a, 4, {1, 4, 4, 0}, pages));
    EXPECT_EQ(outcome(Fault::none), Outcome::found);
    EXPECT_EQ(mirror.use(key_a)->errors, 2u);

    Asked asked(key_a, near(model, 3), 5, 1);
    fault = static_cast<int>(Fault::lost);
    EXPECT_THROW(run(mirror, {&asked}), DeviceFailure);
    EXPECT_EQ(asked.search.outcome, Outcome::failed);
    fault = static_cast<int>(Fault::unknown);
    Asked unknown(key_a, near(model, 3), 5, 1);
    EXPECT_ANY_THROW(run(mirror, {&unknown}));
    EXPECT_EQ(unknown.search.outcome, Outcome::failed);
    fault = static_cast<int>(Fault::none);
    EXPECT_FALSE(mirror.busy());
    EXPECT_EQ(outcome(Fault::none), Outcome::found);

    // Of two indexes in one turn, both are through with it, and both are served again.
    mirror.add(key_b, model.quantizer());
    Asked one(key_a, near(model, 3), 5, 1);
    Asked two(key_b, near(model, 3), 5, 1);
    fault = static_cast<int>(Fault::unknown);
    EXPECT_ANY_THROW(run(mirror, {&one, &two}));
    fault = static_cast<int>(Fault::none);
    run(mirror, {&one, &two});
    EXPECT_EQ(one.search.outcome, Outcome::found);
    EXPECT_EQ(two.search.outcome, Outcome::found);

    // The host's memory may be short for long: that is no failure of the device.
    fault = static_cast<int>(Fault::no_host_memory);
    for (int i = 0; i < 100; ++i) {
        Asked starved(key_a, near(model, 3), 5, 1);
        EXPECT_THROW(run(mirror, {&starved}), std::bad_alloc);
        EXPECT_EQ(starved.search.outcome, Outcome::failed);
    }
    EXPECT_EQ(outcome(Fault::none), Outcome::found);

    // A device that does nothing but fail is lost, whatever it throws.
    for (const Fault thrown : {Fault::failed, Fault::unknown}) {
        EXPECT_EQ(outcome(Fault::none), Outcome::found);
        fault = static_cast<int>(thrown);
        int failures = 0;
        for (bool lost = false; !lost && failures < 100; ++failures) {
            Asked again(key_a, near(model, 3), 5, 1);
            try {
                run(mirror, {&again});
            } catch (const DeviceFailure& failure) {
                lost = failure.lost;
            }
        }
        EXPECT_EQ(failures, 16);
    }
    fault = static_cast<int>(Fault::none);
}

}  // namespace
}  // namespace pgwarp
