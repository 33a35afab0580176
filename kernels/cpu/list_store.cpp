#include "kernels/list_store.h"

#include "kernels/candidates.h"
#include "kernels/distance.h"
#include "kernels/list_scan.h"
#include "kernels/workers.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace pgwarp {

namespace {

// One list, in columns as on its pages, all of them in one block.
struct HostList {
    bool held = false;
    uint32_t count = 0;
    uint32_t stride = 0;         // count rounded up to 8
    std::vector<uint8_t> codes;  // (m)(stride), and what a scan may read behind
    std::vector<float> offsets;  // (count)
    std::vector<uint64_t> ids;   // (count)

    size_t bytes() const {
        return codes.size() + offsets.size() * sizeof(float) + ids.size() * sizeof(uint64_t);
    }
};

struct HostBatch final : ListBatch {
    HostBatch(const ListBatchShape& wanted_shape, uint32_t dims)
        : query_room(wanted_shape.queries * dims),
          wanted_room(wanted_shape.queries),
          found_room(wanted_shape.queries * wanted_shape.k),
          count_room(wanted_shape.queries),
          probed_room(wanted_shape.queries * wanted_shape.probes) {
        shape = wanted_shape;
        queries = query_room.data();
        wanted = wanted_room.data();
        found = found_room.data();
        found_counts = count_room.data();
        probed = probed_room.data();
    }
    std::vector<float> query_room;
    std::vector<ListQuery> wanted_room;
    std::vector<Neighbor> found_room;
    std::vector<uint32_t> count_room;
    std::vector<uint32_t> probed_room;
};

class HostListStore final : public ListStore {
  public:
    HostListStore(const Quantizer& quantizer, int threads,
                  const volatile std::sig_atomic_t* interrupt)
        : workers_(threads, interrupt),
          shape_(quantizer.shape),
          centroids_(quantizer.centroids, quantizer.centroids + size_t{shape_.lists} * shape_.dims),
          codebook_(quantizer.codebook, quantizer.codebook + size_t{shape_.dims} * codewords),
          lists_(shape_.lists) {}

    void put(uint32_t list, std::span<const ListPage> pages) override;
    void drop(uint32_t list) override {
        bytes_ -= lists_.at(list).bytes();
        lists_[list] = {};
    }
    bool holds(uint32_t list) const noexcept override {
        return list < lists_.size() && lists_[list].held;
    }
    size_t bytes() const noexcept override { return bytes_; }

    std::unique_ptr<ListBatch> make_batch(const ListBatchShape& shape) override {
        if (shape.k == 0 || shape.k > max_list_k || shape.probes == 0 || shape.queries == 0)
            throw std::invalid_argument("batch out of range");
        ListBatchShape bounded = shape;
        bounded.probes = std::min(shape.probes, shape_.lists);
        return std::make_unique<HostBatch>(bounded, shape_.dims);
    }
    void start(ListBatch& batch, size_t queries) override;
    bool done(ListBatch&) override { return true; }
    void wait(ListBatch&) override {}

  private:
    // What one thread needs for one query.
    struct Room {
        std::vector<float> terms, table, distances;
        std::vector<uint32_t> order;
        std::vector<Candidate> candidates;
    };
    void search_one(HostBatch& batch, size_t query, Room& room) const;

    Workers workers_;
    QuantizerShape shape_;
    std::vector<float> centroids_, codebook_;
    std::vector<HostList> lists_;
    size_t bytes_ = 0;
};

void HostListStore::put(uint32_t number, std::span<const ListPage> pages) {
    HostList& before = lists_.at(number);
    HostList list;
    list.held = true;
    for (const ListPage& page : pages) list.count += page.count;
    list.stride = (list.count + 7) / 8 * 8;
    list.codes.resize(size_t{shape_.m} * list.stride + 8);
    list.offsets.resize(list.count);
    list.ids.resize(list.count);
    uint32_t first = 0;
    for (const ListPage& page : pages) {
        if (page.count == 0) continue;
        for (uint32_t j = 0; j < shape_.m; ++j)
            std::memcpy(list.codes.data() + size_t{j} * list.stride + first,
                        page.codes + size_t{j} * page.stride, page.count);
        std::copy_n(page.offsets, page.count, list.offsets.begin() + first);
        for (uint32_t i = 0; i < page.count; ++i)
            list.ids[first + i] = tid_number(page.tids + size_t{i} * 6);
        first += page.count;
    }
    bytes_ += list.bytes();
    bytes_ -= before.bytes();
    before = std::move(list);
}

void HostListStore::search_one(HostBatch& batch, size_t query, Room& room) const {
    const float* vector = batch.queries + query * shape_.dims;
    const ListQuery& wanted = batch.wanted[query];
    const uint32_t probes = std::min(wanted.probes, shape_.lists);
    room.terms.resize(shape_.lists);
    room.order.resize(shape_.lists);
    const Rows centroids{centroids_.data(), shape_.dims, shape_.lists};
    if (shape_.metric == Metric::inner_product) {
        dot_products(vector, centroids, shape_.dims, room.terms.data());
        for (float& term : room.terms) term = -term;
    } else {
        squared_l2_distances(vector, centroids, shape_.dims, room.terms.data());
    }
    // Products that overflowed are far away.
    for (float& term : room.terms)
        if (term != term) term = std::numeric_limits<float>::infinity();
    std::iota(room.order.begin(), room.order.end(), 0u);
    std::partial_sort(room.order.begin(), room.order.begin() + probes, room.order.end(),
                      [&](uint32_t a, uint32_t b) {
                          return room.terms[a] < room.terms[b] ||
                                 (room.terms[a] == room.terms[b] && a < b);
                      });
    std::copy_n(room.order.begin(), probes,
                batch.probed_room.begin() + query * batch.probed_stride);

    room.table.resize(size_t{shape_.m} * codewords);
    build_table({shape_, centroids_.data(), codebook_.data()}, vector, room.table.data());
    room.candidates.resize(CandidateSelection::room_for(wanted.k));
    CandidateSelection selection(room.candidates.data(), wanted.k, no_floor);
    for (uint32_t i = 0; i < probes; ++i) {
        const HostList& list = lists_[room.order[i]];
        room.distances.resize(list.stride);
        scan_codes(room.table.data(), shape_.m,
                   {list.codes.data(), list.stride, list.count, list.offsets.data()},
                   room.terms[room.order[i]], room.distances.data());
        for (uint32_t l = 0; l < list.count; ++l)
            if (!(room.distances[l] > selection.bound()))
                selection.offer(room.distances[l], list.ids[l]);
    }
    const size_t count = selection.finish().count;
    Neighbor* found = batch.found_room.data() + query * batch.found_stride;
    for (size_t i = 0; i < count; ++i)
        found[i] = {static_cast<float>(room.candidates[i].distance), room.candidates[i].id};
    batch.count_room[query] = static_cast<uint32_t>(count);
}

void HostListStore::start(ListBatch& base, size_t queries) {
    auto& batch = static_cast<HostBatch&>(base);
    check_batch(batch, queries, shape_.lists);
    batch.found_stride = batch.shape.k;
    batch.probed_stride = batch.shape.probes;
    std::vector<Room> rooms(static_cast<size_t>(workers_.threads()));
    workers_.run(queries,
                 [&](size_t query, int thread) { search_one(batch, query, rooms[thread]); });
}

}  // namespace

std::unique_ptr<ListStore> make_cpu_list_store(const Quantizer& quantizer, int threads,
                                               const volatile std::sig_atomic_t* interrupt) {
    return std::make_unique<HostListStore>(quantizer, threads, interrupt);
}

}  // namespace pgwarp
