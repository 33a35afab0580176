// A model, pages and searches for tests of the mirror, and a device that answers as it is told.
#pragma once

#include "kernels/mirror.h"
#include "kernels/random.h"
#include "kernels/stand_in_device.h"
#include "test/kernels/seed.h"

#include <functional>
#include <memory>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace pgwarp::mirror_check {

inline constexpr uint32_t dims = 6;
inline constexpr uint32_t m = 3;
inline constexpr size_t entry_bytes = m + sizeof(float) + sizeof(uint64_t);

struct Model {
    std::vector<float> centroids, codebook;
    QuantizerShape shape;
    Quantizer quantizer() const { return {shape, centroids.data(), codebook.data()}; }
};

inline Model make_model(Random& random, uint32_t lists, Metric metric = Metric::l2) {
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

inline PageData make_page(Random& random, uint64_t first, uint32_t count) {
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

inline void submit(Mirror& mirror, std::initializer_list<Asked*> asked) {
    for (Asked* one : asked) mirror.submit(&one->search);
}

inline std::vector<MirrorSearch*> collect(Mirror& mirror) {
    std::vector<MirrorSearch*> answered;
    mirror.collect(&answered);
    return answered;
}

// Until all are answered; then it throws the last failure.
inline void run(Mirror& mirror, std::initializer_list<Asked*> asked) {
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

inline std::vector<float> near(const Model& model, uint32_t list) {
    return {model.centroids.begin() + list * dims, model.centroids.begin() + (list + 1) * dims};
}

inline constexpr MirrorKey key_a{1, 10, 5, 100, 77};
inline constexpr MirrorKey key_b{1, 11, 5, 101, 78};
using Outcome = MirrorSearch::Outcome;

// A device that answers with what it is told to.
class ToldDevice final : public Device {
  public:
    std::vector<uint32_t> probed;
    uint32_t found = 0;
    int room = 1000;  // stores that it can make
    size_t budget = size_t{1} << 40;
    bool mixes = false;
    // Searches find no room beside more lists than this.
    size_t searchable_lists = 1000;
    // Whether a batch is done, by what its first search wants.
    std::function<bool(const ListQuery&)> done = [](const ListQuery&) { return true; };
    struct Started {
        size_t searches;
        uint32_t k, probes;
        friend bool operator==(const Started&, const Started&) = default;
    };
    std::vector<Started> started;
    int batches = 0;  // that exist

    const char* name() const noexcept override { return "told"; }
    DeviceMemoryUse memory() const noexcept override { return {0, 0, 0, budget}; }
    std::unique_ptr<Executor> make_executor() override { return nullptr; }
    std::unique_ptr<GraphBuilder> make_graph_builder() override { return nullptr; }
    std::unique_ptr<ListStore> make_list_store(const Quantizer&, const AttributeLayout&) override {
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
        std::vector<uint32_t> counts, lists;
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
        bool mixes_with(ListStore&) noexcept override { return device.mixes; }
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
            told.lists.clear();
            for (size_t i = 0; i < queries; ++i) told.lists.push_back(batch.wanted[i].probes);
            batch.taken = told.lists.data();
            batch.probed = device.probed.data();
        }
        bool done(ListBatch& batch) override { return device.done(batch.wanted[0]); }
        void wait(ListBatch&) override {}
        ToldDevice& device;
        std::set<uint32_t> held;
    };
};

struct MirrorTest : testing::Test {
    Random random{test_seed()};
    std::unique_ptr<Device> device = make_stand_in_device(1, size_t{1} << 30);
    Model model = make_model(random, 8);
};

}  // namespace pgwarp::mirror_check
