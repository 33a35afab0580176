#include "kernels/list_store.h"

#include "kernels/cpu/list_search.h"
#include "kernels/cpu/shared_search.h"
#include "kernels/cpu/stored_lists.h"
#include "kernels/workers.h"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

namespace pgwarp {

namespace {

class CpuListStore final : public ListStore {
  public:
    CpuListStore(const Quantizer& quantizer, const AttributeLayout& attributes,
                 std::shared_ptr<Workers> workers, const Interrupts& interrupts)
        : workers_(std::move(workers)), interrupts_(interrupts), stored_(quantizer, attributes) {}

    void put(uint32_t list, std::span<const ListPage> pages) override;
    void append(uint32_t list, std::span<const ListPage> pages) override;
    void drop(uint32_t list) override {
        bytes_ -= stored_.lists.at(list).bytes();
        stored_.lists[list] = {};
    }
    bool holds(uint32_t list) const noexcept override {
        return list < stored_.lists.size() && stored_.lists[list].held;
    }
    size_t bytes() const noexcept override { return bytes_; }

    std::unique_ptr<ListBatch> make_batch(const ListBatchShape& shape) override {
        check_shape(shape);
        ListBatchShape bounded = shape;
        bounded.probes =
            std::min(shape.probes, shape.mixed ? most_mixed_probes : stored_.shape.lists);
        return std::make_unique<CpuBatch>(bounded, stored_.shape.dims);
    }
    bool mixes_with(ListStore& other) noexcept override {
        const auto* store = dynamic_cast<CpuListStore*>(&other.inner());
        return store && store->stored_.shape.dims == stored_.shape.dims;
    }
    void start(ListBatch& batch, size_t queries) override;
    bool done(ListBatch&) override { return true; }
    void wait(ListBatch&) override {}

  private:
    void start_mixed(CpuBatch& batch, size_t queries);
    void add(std::span<const ListPage> pages, StoredList* list) const;

    const std::shared_ptr<Workers> workers_;
    // Also polled within a task, because a task of many queries may take long.
    Interrupts interrupts_;
    StoredLists stored_;
    size_t bytes_ = 0;
};

uint32_t entries_of(std::span<const ListPage> pages) {
    uint32_t entries = 0;
    for (const ListPage& page : pages) entries += page.count;
    return entries;
}

// The list has room for these entries.
void CpuListStore::add(std::span<const ListPage> pages, StoredList* list) const {
    for (const ListPage& page : pages) {
        list->add(page, stored_.shape.m, stored_.attributes);
        if (list->refined && page.count > 0) list->add_refinements(page, stored_.shape.dims);
    }
}

void CpuListStore::put(uint32_t number, std::span<const ListPage> pages) {
    StoredList& before = stored_.lists.at(number);
    StoredList list;
    list.held = true;
    list.reserve(stored_.shape.m, stored_.attributes, entries_of(pages));
    list.refined = have_refinements(pages);
    if (list.refined) list.reserve_refinements(stored_.shape.dims, list.stride);
    add(pages, &list);
    bytes_ += list.bytes();
    bytes_ -= before.bytes();
    before = std::move(list);
}

// In place: start() runs a batch synchronously, so no batch is running.
void CpuListStore::append(uint32_t number, std::span<const ListPage> pages) {
    StoredList& list = stored_.lists.at(number);
    if (!list.held) throw std::logic_error("list is not held");
    const uint32_t total = list.count + entries_of(pages);
    bytes_ -= list.bytes();
    try {
        // Spare capacity, so that a list that grows entry by entry is rarely copied.
        if (total > list.stride) {
            list.reserve(stored_.shape.m, stored_.attributes, total + total / 4);
            if (list.refined) list.reserve_refinements(stored_.shape.dims, list.stride);
        }
    } catch (...) {
        bytes_ += list.bytes();
        throw;
    }
    if (list.refined && !have_refinements(pages)) {
        list.refined = false;
        std::vector<uint8_t>().swap(list.refinements);
    }
    add(pages, &list);
    bytes_ += list.bytes();
}

// By the threads of this store.
void CpuListStore::start_mixed(CpuBatch& batch, size_t queries) {
    const std::vector<CpuListStore*> stores = stores_of<CpuListStore>(batch, queries);
    for (size_t i = 0; i < queries; ++i)
        check_query(batch, i, stores[i]->stored_.shape.lists, stores[i]->stored_.attributes);
    batch.found_stride = batch.shape.k;
    batch.probed_stride = batch.shape.probes;
    std::vector<SearchScratch> scratch(static_cast<size_t>(workers_->threads()));
    workers_->run(queries, [&](size_t query, int thread) {
        search_one(stores[query]->stored_, batch, query, scratch[thread]);
    });
}

void CpuListStore::start(ListBatch& base, size_t queries) {
    auto& batch = static_cast<CpuBatch&>(base);
    if (batch.shape.mixed) return start_mixed(batch, queries);
    check_batch(batch, queries, stored_.shape.lists, stored_.attributes);
    batch.found_stride = batch.shape.k;
    batch.probed_stride = batch.shape.probes;
    const auto threads = static_cast<size_t>(workers_->threads());
    if (const size_t tasks = shared_tasks(stored_, batch, queries, workers_->threads())) {
        // Tasks of nearly equal size.
        std::vector<SharedScratch> scratch(threads);
        workers_->run(tasks, [&](size_t task, int thread) {
            search_together(stored_, batch, queries * task / tasks, queries * (task + 1) / tasks,
                            interrupts_, scratch[thread]);
        });
        return;
    }
    std::vector<SearchScratch> scratch(threads);
    workers_->run(queries, [&](size_t query, int thread) {
        search_one(stored_, batch, query, scratch[thread]);
    });
}

}  // namespace

std::unique_ptr<ListStore> make_cpu_list_store(const Quantizer& quantizer,
                                               const AttributeLayout& attributes,
                                               std::shared_ptr<Workers> workers,
                                               const Interrupts& interrupts) {
    return std::make_unique<CpuListStore>(quantizer, attributes, std::move(workers), interrupts);
}

std::unique_ptr<ListStore> make_cpu_list_store(const Quantizer& quantizer,
                                               const AttributeLayout& attributes, int threads,
                                               const Interrupts& interrupts) {
    return make_cpu_list_store(quantizer, attributes,
                               std::make_shared<Workers>(threads, interrupts), interrupts);
}

}  // namespace pgwarp
