// Memory of a batch of list searches on the device, and of what it reads of the store.
#pragma once

#include "kernels/cuda/base/small_copy.h"
#include "kernels/cuda/lists/list_search.h"
#include "kernels/list_store.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace pgwarp::gpu {

class CudaListStore;

// The lists of a store, as they were when it was made.
struct Directory {
    Buffer<DeviceList> lists;
    Buffer<const uint8_t*> refinements;  // (lists): see refine.h
    Milestone uploaded;
    uint32_t longest_list = 0;
    uint64_t entries = 0;
};

// Short searches get a stream of higher priority, so that they do not wait for all thread blocks of
// a long search that was started before.
inline bool is_short(const ListBatchShape& shape) {
    return shape.k <= 128 && shape.probes <= 64;
}

struct CudaListBatch final : ListBatch {
    CudaListBatch(const ListBatchShape& wanted_shape, uint32_t dims, uint32_t lists)
        : space(is_short(wanted_shape) ? Stream::Priority::urgent : Stream::Priority::ordinary),
          input(input_bytes(wanted_shape, dims)),
          answers(wanted_shape.queries * wanted_shape.k),
          counts(wanted_shape.queries),
          probed_lists(wanted_shape.queries * std::min(wanted_shape.probes, lists)),
          taken_lists(wanted_shape.queries),
          searched_lists(wanted_shape.filtered ? wanted_shape.queries : 0),
          left_out_distances(wanted_shape.refined ? wanted_shape.queries : 0) {
        shape = wanted_shape;
        shape.probes = std::min(shape.probes, lists);
        // Adjacent, so that one copy takes all to the device, and one more the values if any.
        wanted = reinterpret_cast<ListQuery*>(input.data());
        conditions = reinterpret_cast<PackedCondition*>(input.data() + conditions_at(shape));
        values = reinterpret_cast<uint64_t*>(input.data() + values_at(shape, dims));
        queries = reinterpret_cast<float*>(input.data() + queries_at(shape));
        store_views = reinterpret_cast<StoreView*>(input.data() + stores_at(shape));
        searched = searched_lists.data();
        left_out = left_out_distances.data();
        found = answers.data();
        found_counts = counts.data();
        probed = probed_lists.data();
        taken = taken_lists.data();
    }
    ~CudaListBatch() override { finish(); }
    // Waits for all work of this batch.
    void finish() noexcept {
        cudaStreamSynchronize(space.stream);
        cudaStreamSynchronize(space.copies);
    }

    // Places in the input.
    static size_t conditions_at(const ListBatchShape& shape) {
        static_assert(sizeof(ListQuery) % 8 == 0 && sizeof(PackedCondition) % 8 == 0);
        return shape.queries * sizeof(ListQuery);
    }
    static size_t queries_at(const ListBatchShape& shape) {
        static_assert(sizeof(StoreView) % 8 == 0);
        return stores_at(shape) + (shape.mixed ? shape.queries * sizeof(StoreView) : 0);
    }
    static size_t stores_at(const ListBatchShape& shape) {
        return conditions_at(shape) + shape.queries * shape.conditions * sizeof(PackedCondition);
    }
    static size_t values_at(const ListBatchShape& shape, uint32_t dims) {
        return queries_at(shape) + (shape.queries * dims + 1) / 2 * 2 * sizeof(float);
    }
    static size_t input_bytes(const ListBatchShape& shape, uint32_t dims) {
        const size_t bytes =
            values_at(shape, dims) + shape.queries * shape.values * sizeof(uint64_t);
        return (bytes + small_copy_unit - 1) / small_copy_unit * small_copy_unit;
    }

    ListSearchSpace space;
    StoreView* store_views;  // (queries), if mixed: part of the input
    PinnedBuffer<char> input;
    PinnedBuffer<Neighbor> answers;
    PinnedBuffer<uint32_t> counts;
    PinnedBuffer<uint32_t> probed_lists;
    PinnedBuffer<uint32_t> taken_lists;
    PinnedBuffer<SearchedLists> searched_lists;
    PinnedBuffer<float> left_out_distances;
    Buffer<char> device_input;
    // If refined, and queries are moved (far_lists.h): (queries)(dims), as given.
    Buffer<float> given_queries;
    Event finished;
    bool running = false;
    // The lists that the batch reads while it runs.
    struct InUse {
        CudaListStore* store;
        uint64_t serial;
        std::shared_ptr<const Directory> directory;
    };
    std::vector<InUse> in_use;
};

}  // namespace pgwarp::gpu
