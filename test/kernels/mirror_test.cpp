#include "kernels/mirror.h"

#include "kernels/failing_device.h"
#include "kernels/stand_in_device.h"
#include "kernels/random.h"
#include "test/kernels/seed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <set>

namespace pgwarp {
namespace {

constexpr uint32_t dims = 6;
constexpr uint32_t m = 3;
constexpr size_t entry_bytes = m + sizeof(float) + sizeof(uint64_t);

struct Model {
    std::vector<float> centroids, codebook;
    QuantizerShape shape;
    Quantizer quantizer() const { return {shape, centroids.data(), codebook.data()}; }
};

Model make_model(Random& random, uint32_t lists, Metric metric = Metric::l2) {
    Model model{{}, {}, {dims, lists, m, metric}};
    for (size_t i = 0; i < size_t{lists} * dims; ++i)
        model.centroids.push_back(static_cast<float>(random.below(1000)) / 10);
    for (size_t i = 0; i < size_t{dims} * codewords; ++i)
        model.codebook.push_back(static_cast<float>(random.below(1000)) / 500 - 1);
    return model;
}

// A page of entries with ids from `first` on.
struct PageData {
    std::vector<uint8_t> codes, tids;
    std::vector<float> offsets;
    ListPage page() const {
        const auto count = static_cast<uint32_t>(offsets.size());
        return {codes.data(), count, count, offsets.data(), tids.data()};
    }
};

PageData make_page(Random& random, uint64_t first, uint32_t count) {
    PageData data;
    data.codes.resize(size_t{m} * count + 8);
    for (uint8_t& byte : data.codes) byte = static_cast<uint8_t>(random.below(256));
    for (uint32_t i = 0; i < count; ++i) {
        data.offsets.push_back(static_cast<float>(random.below(100)) / 100);
        const uint64_t id = first + i;
        const uint16_t words[3] = {static_cast<uint16_t>(id >> 32), static_cast<uint16_t>(id >> 16),
                                   static_cast<uint16_t>(id)};
        const auto* bytes = reinterpret_cast<const uint8_t*>(words);
        data.tids.insert(data.tids.end(), bytes, bytes + 6);
    }
    return data;
}

// A search with memory of its own.
struct Asked {
    std::vector<float> query;
    std::vector<Neighbor> found;
    std::vector<MirrorProbe> probed;
    MirrorSearch search{};

    Asked(const MirrorKey& key, std::vector<float> vector, uint32_t k, uint32_t probes)
        : query(std::move(vector)), found(k), probed(probes) {
        search.key = key;
        search.query = query.data();
        search.dims = static_cast<uint32_t>(query.size());
        search.k = k;
        search.probes = probes;
        search.found = found.data();
        search.probed = probed.data();
    }
    Asked(const Asked&) = delete;

    std::set<uint64_t> ids() const {
        std::set<uint64_t> ids;
        for (uint32_t i = 0; i < search.found_count; ++i) ids.insert(found[i].id);
        return ids;
    }
};

void submit(Mirror& mirror, std::initializer_list<Asked*> asked) {
    for (Asked* one : asked) mirror.submit(&one->search);
}

std::vector<MirrorSearch*> collect(Mirror& mirror) {
    std::vector<MirrorSearch*> answered;
    mirror.collect(&answered);
    return answered;
}

// Until all are answered; then it throws the last failure.
void run(Mirror& mirror, std::initializer_list<Asked*> asked) {
    submit(mirror, asked);
    std::vector<MirrorSearch*> answered;
    std::exception_ptr failure;
    while (answered.size() < asked.size()) try {
            while (mirror.start_next(1000)) {
            }
            mirror.collect(&answered);
        } catch (...) {
            failure = std::current_exception();
        }
    if (failure) std::rethrow_exception(failure);
}

std::vector<float> near(const Model& model, uint32_t list) {
    return {model.centroids.begin() + list * dims, model.centroids.begin() + (list + 1) * dims};
}

constexpr MirrorKey key_a{1, 10, 5, 100, 77};
constexpr MirrorKey key_b{1, 11, 5, 101, 78};
using Outcome = MirrorSearch::Outcome;

struct MirrorTest : testing::Test {
    Random random{test_seed()};
    std::unique_ptr<Device> device = make_stand_in_device(1, size_t{1} << 30);
    Model model = make_model(random, 8);
};

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
    EXPECT_EQ(resident[1], 0u) << "the one that nobody asked for";
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

TEST_F(MirrorTest, HoldsWhatASearchUnderWaySees) {
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

    // A search under way has contents and version of its start.
    Asked under_way(key_a, near(model, 3), 50, 1);
    submit(mirror, {&under_way});
    EXPECT_TRUE(mirror.start_next(10));
    EXPECT_TRUE(mirror.append(key_a, 3, before, after, second));
    EXPECT_EQ(collect(mirror).size(), 1u);
    EXPECT_EQ(under_way.ids(), four);
    EXPECT_EQ(under_way.probed[0].version, before);
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

TEST_F(MirrorTest, AsksOnePersonForAList) {
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
    EXPECT_GE(asked, 1) << "whoever was asked may have forgotten";
    EXPECT_LE(asked, 20);
}

// A device that answers with what it is told to.
class ToldDevice final : public Device {
  public:
    std::vector<uint32_t> probed;
    uint32_t found = 0;
    int room = 1000;  // for so many stores
    // Searches find no room beside more lists than these.
    size_t searchable_lists = 1000;
    // Whether a batch is done, by what its searches want; the batches started, and those there are.
    std::function<bool(const ListQuery&)> done = [](const ListQuery&) { return true; };
    struct Started {
        size_t searches;
        uint32_t k, probes;
        friend bool operator==(const Started&, const Started&) = default;
    };
    std::vector<Started> started;
    int batches = 0;

    const char* name() const noexcept override { return "told"; }
    DeviceMemoryUse memory() const noexcept override { return {}; }
    std::unique_ptr<Executor> make_executor() override { return nullptr; }
    std::unique_ptr<GraphBuilder> make_graph_builder() override { return nullptr; }
    std::unique_ptr<ListStore> make_list_store(const Quantizer&) override {
        return std::make_unique<Store>(*this);
    }

  private:
    struct Batch final : ListBatch {
        explicit Batch(ToldDevice& of) : device(of) { ++device.batches; }
        ~Batch() override { --device.batches; }
        ToldDevice& device;
        std::vector<float> room;
        std::vector<ListQuery> asked;
        std::vector<Neighbor> answer;
        std::vector<uint32_t> counts;
    };
    struct Store final : ListStore {
        explicit Store(ToldDevice& of) : device(of) {
            if (device.room == 0) throw OutOfDeviceMemory(1, 1, 1);
            --device.room;
        }
        ~Store() override { ++device.room; }
        void put(uint32_t list, std::span<const ListPage>) override { held.insert(list); }
        void append(uint32_t, std::span<const ListPage>) override {}
        void drop(uint32_t list) override { held.erase(list); }
        bool holds(uint32_t) const noexcept override { return true; }
        size_t bytes() const noexcept override { return 0; }
        std::unique_ptr<ListBatch> make_batch(const ListBatchShape& shape) override {
            auto batch = std::make_unique<Batch>(device);
            batch->shape = shape;
            batch->room.resize(shape.queries * dims);
            batch->asked.resize(shape.queries);
            batch->answer.resize(shape.k);
            batch->queries = batch->room.data();
            batch->wanted = batch->asked.data();
            return batch;
        }
        void start(ListBatch& batch, size_t queries) override {
            if (held.size() > device.searchable_lists) throw OutOfDeviceMemory(1, 1, 1);
            device.started.push_back({queries, batch.wanted[0].k, batch.wanted[0].probes});
            auto& told = static_cast<Batch&>(batch);
            told.counts.assign(queries, device.found);
            batch.found = told.answer.data();
            batch.found_counts = told.counts.data();
            batch.probed = device.probed.data();
        }
        bool done(ListBatch& batch) override { return device.done(batch.wanted[0]); }
        void wait(ListBatch&) override {}
        ToldDevice& device;
        std::set<uint32_t> held;
    };
};

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

TEST_F(MirrorTest, OthersEndBeforeASlowBatch) {
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

TEST_F(MirrorTest, BelievesNoAnswerThatCannotBe) {
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

// Whoever shows the numbers of an index hears that others have taken its room.
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

TEST_F(MirrorTest, MarksWhatFails) {
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
