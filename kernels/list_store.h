// Inverted lists of one index, kept where an executor can search them for whole batches: in host
// memory, or on a device. See quantizer.h for the model.
//
// A store belongs to one thread. Batches may overlap: between start() and wait() of one, lists may
// be put, appended to and dropped, and other batches started and waited for, in any order; a batch
// sees the lists as they were at its start().
#pragma once

#include "kernels/common.h"
#include "kernels/executor.h"
#include "kernels/quantizer.h"

#include <algorithm>
#include <memory>
#include <span>
#include <stdexcept>

namespace pgwarp {

// k-selection in registers and shared memory ends here; the service asks for no more.
inline constexpr uint32_t max_list_k = 2048;

// Some entries of a list, as a page of an index holds them. Read during put() and append() only.
struct ListPage {
    const uint8_t* codes;  // (m)(stride): byte l of row j is sub-quantizer j of entry l
    uint32_t stride;       // at least count
    uint32_t count;
    const float* offsets;  // (count)
    const uint8_t* tids;   // (count)(6): three 16-bit words, the most significant first
};

// 48 bits, ordered as TIDs are.
inline uint64_t tid_number(const uint8_t* tid) {
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
};

// What a batch has room for.
struct ListBatchShape {
    size_t queries;
    uint32_t k;       // at most max_list_k
    uint32_t probes;  // more than lists is as good as lists
};

// Memory for the queries and answers of one batch, used again and again. The caller fills the
// first part and reads the second; in between both belong to the store.
struct ListBatch {
    virtual ~ListBatch() = default;
    ListBatchShape shape{};

    float* queries = nullptr;     // (queries)(dims), normalised for cosine
    ListQuery* wanted = nullptr;  // (queries)

    // Valid from wait() on. Rows are as long as the queries of this search need: the strides are
    // set by start().
    const Neighbor* found = nullptr;  // query i's at i * found_stride, sorted by (distance, id)
    const uint32_t* found_counts = nullptr;  // (queries): how many there are
    const uint32_t* probed = nullptr;        // query i's lists at i * probed_stride, in the order
                                             // of their terms, resident or not: min(wanted, lists)
    size_t found_stride = 0;
    size_t probed_stride = 0;
};

class ListStore {
  public:
    virtual ~ListStore() = default;

    // Replaces a list's contents. Where it throws, the list is as it was.
    virtual void put(uint32_t list, std::span<const ListPage> pages) = 0;
    // Adds entries behind those of a list that is held. Where it throws, the list is as it was.
    virtual void append(uint32_t list, std::span<const ListPage> pages) = 0;
    virtual void drop(uint32_t list) = 0;
    virtual bool holds(uint32_t list) const noexcept = 0;

    // Of all lists together, as they lie.
    virtual size_t bytes() const noexcept = 0;

    // Destroyed before the store.
    virtual std::unique_ptr<ListBatch> make_batch(const ListBatchShape& shape) = 0;

    // Searches for the first `queries` queries of the batch. Lists that are not held are passed
    // over. Between start() and wait() the batch must not be touched.
    virtual void start(ListBatch& batch, size_t queries) = 0;
    virtual bool done(ListBatch& batch) = 0;
    virtual void wait(ListBatch& batch) = 0;  // throws what went wrong since start()

    void search(ListBatch& batch, size_t queries) {
        start(batch, queries);
        wait(batch);
    }

  protected:
    // Throws where a query asks for more than its batch has room for.
    static void check_batch(const ListBatch& batch, size_t queries, uint32_t lists) {
        if (queries > batch.shape.queries)
            throw std::invalid_argument("batch has no room for so many queries");
        for (size_t i = 0; i < queries; ++i) {
            const ListQuery& wanted = batch.wanted[i];
            if (wanted.k == 0 || wanted.k > batch.shape.k)
                throw std::invalid_argument("k of a query is out of range");
            if (wanted.probes == 0 || std::min(wanted.probes, lists) > batch.shape.probes)
                throw std::invalid_argument("probes of a query are out of range");
        }
    }
};

// In host memory. start() does the work. `interrupt` as in make_cpu_executor().
std::unique_ptr<ListStore> make_cpu_list_store(
    const Quantizer& quantizer, int threads, const volatile std::sig_atomic_t* interrupt,
    const volatile std::sig_atomic_t* other_interrupt = nullptr);

// Memory that a search there takes for each query of a batch, beside the batch itself.
size_t cpu_query_bytes(const QuantizerShape& shape, uint32_t k, uint32_t probes);

}  // namespace pgwarp
