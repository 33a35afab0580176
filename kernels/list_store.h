// Inverted lists of one index, kept in host memory or on a device, where whole batches of queries
// search them. See quantizer.h for the model.
//
// One thread uses a store. Batches may overlap: between start() and wait() of one batch, the caller
// may put, append to and drop lists, and start and wait for other batches, in any order. A batch
// sees the lists as they were at its start().
#pragma once

#include "kernels/common.h"
#include "kernels/conditions.h"
#include "kernels/executor.h"
#include "kernels/host_device.h"
#include "kernels/list_plan.h"
#include "kernels/quantizer.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

namespace pgwarp {

// The limit of k-selection in registers and shared memory; the service asks for no more.
inline constexpr uint32_t max_list_k = 2048;
// CUDA selects this many candidates with its smallest selection, which is the fastest.
inline constexpr uint32_t fast_list_k = 112;

// Some entries of a list, laid out as on an index page. Read during put() and append() only.
struct ListPage {
    const uint8_t* codes;  // (m)(stride): byte l of row j is sub-quantizer j of entry l
    uint32_t stride;       // at least count
    uint32_t count;
    const float* offsets;  // (count)
    const uint8_t* tids;   // (count)(6): three 16-bit words, the most significant first
    // Columns as in AttributeColumns, with the stride of the codes; null: there are no attributes.
    const uint8_t* attributes = nullptr;
    // (count)(refinement_stride(dims)), see refinement.h; null: the entries have none. A list has
    // refinements if all its pages have.
    const uint8_t* refinements = nullptr;
};
inline bool have_refinements(std::span<const ListPage> pages) {
    return std::all_of(pages.begin(), pages.end(), [](const ListPage& page) {
        return page.count == 0 || page.refinements != nullptr;
    });
}

// The TID as a 48-bit number, in the order of TIDs.
inline uint64_t packed_tid_number(const uint8_t* tid) {
    const auto word = [tid](int i) {
        uint16_t bits;
        __builtin_memcpy(&bits, tid + 2 * i, sizeof bits);
        return uint64_t{bits};
    };
    return word(0) << 32 | word(1) << 16 | word(2);
}

struct ListQuery {
    uint32_t k;       // 1 .. the batch's k
    uint32_t probes;  // 1 .. the batch's probes
    // With a threshold, the query decides how many of these lists it takes: plan.k is 1 .. k. Not
    // with a floor.
    ListPlan plan = {};
    // For filtered batches:
    uint32_t first_probe = 0;  // lists of a lower rank are not searched
    uint32_t conditions = 0;   // 0 .. the batch's conditions
    // Only what comes after this in the order of (distance, id).
    uint64_t floor_id = 0;
    float floor_distance = -std::numeric_limits<float>::infinity();
    // For refined batches: rows that are wanted, 1 .. k. See ListBatch::found.
    uint32_t refined_k = 0;
};

// What a filtered search saw in the lists that it searched.
struct SearchedLists {
    uint32_t passed;  // entries that pass the conditions
    // 1: there are entries beyond those found. Of equally far entries all or none are found: so if
    // there are many of these, fewer than k may be found, even none.
    uint32_t more;
};

// The capacity of a batch.
struct ListBatchShape {
    size_t queries;
    uint32_t k;       // at most max_list_k
    uint32_t probes;  // values above `lists` count as `lists`
    // Filtered: queries may have conditions, a floor or a first list.
    bool filtered = false;
    uint32_t conditions = 0;  // of one query
    uint32_t values = 0;      // of all its conditions
    // Refined: candidates are scored again by their refinements. Not filtered.
    bool refined = false;
    // Mixed: each query has a store of its own. Not filtered; k is at most fast_list_k, and probes
    // are at most most_mixed_probes.
    bool mixed = false;

    bool holds(const ListBatchShape& other) const {
        return filtered == other.filtered && refined == other.refined && mixed == other.mixed &&
               queries >= other.queries && k >= other.k && probes >= other.probes &&
               conditions >= other.conditions && values >= other.values;
    }
};
inline constexpr uint32_t most_mixed_probes = 256;

class ListStore;

// Reusable memory for the queries and answers of one batch. The caller fills the inputs and reads
// the outputs; between start() and wait() both belong to the store.
struct ListBatch {
    virtual ~ListBatch() = default;
    ListBatchShape shape{};

    // If mixed: the store of each query. All mix with each other, and with the one that is told to
    // start the batch, which is also asked whether it is done.
    std::vector<ListStore*> stores;

    float* queries = nullptr;               // (queries)(dims), normalised for cosine
    ListQuery* wanted = nullptr;            // (queries)
    PackedCondition* conditions = nullptr;  // query i's at i * shape.conditions
    uint64_t* values = nullptr;             // query i's at i * shape.values

    // Outputs, valid after wait(). start() sets the strides: rows are as long as this search's
    // queries need.
    // Query i's at i * found_stride, sorted by (distance, id).
    //
    // If refined: of about the k nearest entries by code, those that may be among the refined_k
    // nearest rows, in any order. `distance` is the least that the row may have, by the entry's
    // refinement; -infinity: its list has none. The others are no nearer than `left_out`.
    const Neighbor* found = nullptr;
    const float* left_out = nullptr;          // (queries), if refined; infinity: none was
    const uint32_t* found_counts = nullptr;   // (queries)
    const SearchedLists* searched = nullptr;  // (queries), if filtered
    const uint32_t* probed = nullptr;         // query i's lists at i * probed_stride, by list term,
                                              // resident or not: min(wanted, lists)
    const uint32_t* taken = nullptr;          // (queries): lists that were searched, the first of
                                              // `probed`
    size_t found_stride = 0;
    size_t probed_stride = 0;
};

class ListStore {
  public:
    virtual ~ListStore() = default;

    // Replaces a list's contents. On a throw the list is unchanged.
    virtual void put(uint32_t list, std::span<const ListPage> pages) = 0;
    // Appends entries to a list that is held. On a throw the list is unchanged.
    virtual void append(uint32_t list, std::span<const ListPage> pages) = 0;
    virtual void drop(uint32_t list) = 0;
    virtual bool holds(uint32_t list) const noexcept = 0;

    // Of all lists together, as stored.
    virtual size_t bytes() const noexcept = 0;

    // Destroy the batch before the store. A mixed batch is for all stores that mix with this one,
    // and is destroyed before their device.
    virtual std::unique_ptr<ListBatch> make_batch(const ListBatchShape& shape) = 0;

    // Whether one batch may have queries of this store and of the other, of the same device.
    virtual bool mixes_with(ListStore& /*other*/) noexcept { return false; }
    // The store that has the lists: another one where this only passes calls on.
    virtual ListStore& inner() noexcept { return *this; }

    // Searches the first `queries` queries of the batch. Lists that are not held are skipped. The
    // caller must not touch the batch between start() and wait().
    virtual void start(ListBatch& batch, size_t queries) = 0;
    virtual bool done(ListBatch& batch) = 0;
    virtual void wait(ListBatch& batch) = 0;  // rethrows a failure since start()

    void search(ListBatch& batch, size_t queries) {
        start(batch, queries);
        wait(batch);
    }

  protected:
    static void check_shape(const ListBatchShape& shape) {
        if (shape.k == 0 || shape.k > max_list_k || shape.probes == 0 || shape.queries == 0 ||
            (shape.mixed &&
             (shape.filtered || shape.k > fast_list_k || shape.probes > most_mixed_probes)))
            throw std::invalid_argument("batch out of range");
    }
    // Throw where a query exceeds the capacity of its batch.
    static void check_batch(const ListBatch& batch, size_t queries, uint32_t lists,
                            const AttributeLayout& attributes) {
        if (queries > batch.shape.queries)
            throw std::invalid_argument("more queries than the batch has room for");
        for (size_t i = 0; i < queries; ++i) check_query(batch, i, lists, attributes);
    }
    static void check_query(const ListBatch& batch, size_t query, uint32_t lists,
                            const AttributeLayout& attributes) {
        const ListQuery& wanted = batch.wanted[query];
        if (wanted.k == 0 || wanted.k > batch.shape.k)
            throw std::invalid_argument("k of a query is out of range");
        if (wanted.probes == 0 || std::min(wanted.probes, lists) > batch.shape.probes)
            throw std::invalid_argument("probes of a query are out of range");
        if (wanted.plan.threshold > 0 && (wanted.plan.k == 0 || wanted.plan.k > wanted.k))
            throw std::invalid_argument("effort of a query is out of range");
        if (batch.shape.refined &&
            (batch.shape.filtered || wanted.refined_k == 0 || wanted.refined_k > wanted.k))
            throw std::invalid_argument("refined rows of a query are out of range");
        if (wanted.conditions > batch.shape.conditions)
            throw std::invalid_argument("conditions of a query are out of range");
        for (uint32_t c = 0; c < wanted.conditions; ++c) {
            const PackedCondition& condition = batch.conditions[query * batch.shape.conditions + c];
            if (condition.attribute >= attributes.count ||
                condition.value_count > batch.shape.values ||
                condition.first_value > batch.shape.values - condition.value_count)
                throw std::invalid_argument("a condition is out of range");
        }
    }
    // The store of each query of a mixed batch, with its own type. Throws where one does not mix
    // with this store.
    template <class Store>
    std::vector<Store*> stores_of(const ListBatch& batch, size_t queries) {
        if (queries > batch.shape.queries || queries > batch.stores.size())
            throw std::invalid_argument("more queries than the batch has room for");
        std::vector<Store*> stores(queries);
        for (size_t i = 0; i < queries; ++i) {
            stores[i] = dynamic_cast<Store*>(&batch.stores[i]->inner());
            if (!stores[i] || !mixes_with(*stores[i]))
                throw std::invalid_argument("a store does not mix with others of its batch");
        }
        return stores;
    }
};

// In host memory; start() searches synchronously. Interrupts as in make_cpu_executor().
std::unique_ptr<ListStore> make_cpu_list_store(const Quantizer& quantizer,
                                               const AttributeLayout& attributes, int threads,
                                               const Interrupts& interrupts);
// The same by threads that stores share: one of them searches at a time.
std::unique_ptr<ListStore> make_cpu_list_store(const Quantizer& quantizer,
                                               const AttributeLayout& attributes,
                                               std::shared_ptr<Workers> workers,
                                               const Interrupts& interrupts);

// Bytes that a search there takes for each query of a batch, beside the batch itself.
size_t cpu_query_bytes(const QuantizerShape& shape, uint32_t k, uint32_t probes);

}  // namespace pgwarp
