#include "kernels/list_store.h"

#include "kernels/candidates.h"
#include "kernels/cpu/group_scan.h"
#include "kernels/distance.h"
#include "kernels/list_scan.h"
#include "kernels/nibble_scan.h"
#include "kernels/workers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <tuple>
#include <vector>

namespace pgwarp {

namespace {

// Entries of a list that are scanned before bounds are read again. A multiple of eight.
constexpr uint32_t part_entries = 1024;

// One list, in columns as on its pages, in one allocation for all pages.
struct HostList {
    bool held = false;
    uint32_t count = 0;
    uint32_t stride = 0;         // a multiple of 8, at least count: the capacity of a column
    std::vector<uint8_t> codes;  // (m)(stride), and padding that a scan may read
    std::vector<uint8_t> rows;   // (count)(m): the same by entry, for reading single entries
    std::vector<float> offsets;  // (count)
    std::vector<uint64_t> ids;   // (count)

    size_t bytes() const {
        return codes.capacity() + rows.capacity() + offsets.capacity() * sizeof(float) +
               ids.capacity() * sizeof(uint64_t);
    }

    // Allocates columns for at least `total` entries. On a throw the list is unchanged.
    void reserve(uint32_t m, uint32_t total) {
        const uint32_t wider = (total + 7) / 8 * 8;
        rows.reserve(size_t{m} * wider);
        offsets.reserve(wider);
        ids.reserve(wider);
        std::vector<uint8_t> columns(size_t{m} * wider + 16);
        for (uint32_t j = 0; j < m && count > 0; ++j)
            std::memcpy(columns.data() + size_t{j} * wider, codes.data() + size_t{j} * stride,
                        count);
        codes = std::move(columns);
        stride = wider;
    }
    // The caller has reserved room.
    void add(const ListPage& page, uint32_t m) {
        if (page.count == 0) return;
        for (uint32_t j = 0; j < m; ++j)
            std::memcpy(codes.data() + size_t{j} * stride + count,
                        page.codes + size_t{j} * page.stride, page.count);
        offsets.insert(offsets.end(), page.offsets, page.offsets + page.count);
        for (uint32_t i = 0; i < page.count; ++i)
            ids.push_back(tid_number(page.tids + size_t{i} * 6));
        rows.resize(size_t{m} * (count + page.count));
        for (uint32_t i = count; i < count + page.count; ++i)
            for (uint32_t j = 0; j < m; ++j)
                rows[size_t{i} * m + j] = codes[size_t{j} * stride + i];
        count += page.count;
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
    HostListStore(const Quantizer& quantizer, int threads, const Interrupts& interrupts)
        : workers_(threads, interrupts),
          interrupts_(interrupts),
          shape_(quantizer.shape),
          centroids_(quantizer.centroids, quantizer.centroids + size_t{shape_.lists} * shape_.dims),
          codebook_(quantizer.codebook,
                    quantizer.codebook + size_t{shape_.codebook_rows()} * codewords),
          lists_(shape_.lists) {
        if (shape_.bits != 4) return;
        nibble_words_.resize(size_t{shape_.dims} * nibble_words);
        nibble_words_of(shape_, codebook_.data(), nibble_words_.data());
    }

    void put(uint32_t list, std::span<const ListPage> pages) override;
    void append(uint32_t list, std::span<const ListPage> pages) override;
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
    // A thread's scratch for one query.
    struct Room {
        std::vector<float> terms, table, distances;
        std::vector<float> half_table;   // with four bits
        std::vector<uint8_t> low_table;  // likewise
        std::vector<NibbleHit> hits;
        std::vector<uint32_t> order;
        std::vector<Candidate> candidates;
    };
    uint32_t rank_lists(HostBatch& batch, size_t query, Room& room) const;
    void search_one(HostBatch& batch, size_t query, Room& room) const;
    void scan_bytes(const float* vector, const ListQuery& wanted, Room& room,
                    CandidateSelection& selection) const;
    void scan_halves(const float* vector, const ListQuery& wanted, Room& room,
                     CandidateSelection& selection) const;

    // A list that a query probes, and its term of the distance.
    struct Visit {
        bool late;  // one of the query's farther lists
        uint32_t list;
        uint32_t query;
        float term;

        friend bool operator<(const Visit& a, const Visit& b) {
            return std::tie(a.late, a.list, a.query) < std::tie(b.late, b.list, b.query);
        }
    };
    // A thread's scratch for many queries.
    struct SharedRoom {
        std::vector<Visit> visits;
        std::vector<ByteTable> tables;
        std::vector<uint8_t> bytes;  // (queries)(m)(256)
        std::vector<uint8_t> interleaved;
        std::vector<uint16_t> sums, passed;
        std::vector<Candidate> candidates;  // (queries)(room of a selection)
        std::vector<CandidateSelection> selections;
        std::vector<float> terms;    // (queries)(probes), as in the batch's `probed`
        std::vector<float> largest;  // by query: the largest magnitude of a term of its distances
        Room single;
    };
    void search_together(HostBatch& batch, size_t begin, size_t end, SharedRoom& room) const;
    void scan_visits(const Visit* visits, uint32_t count, SharedRoom& room) const;
    void score(const Room& room, Candidate* candidates, size_t count) const;
    bool finish_shared(HostBatch& batch, size_t query, size_t in_room, SharedRoom& room) const;
    size_t together_tasks(size_t queries) const;
    bool worth_sharing(const HostBatch& batch, size_t queries) const;

    Workers workers_;
    // Also polled within a task, because a task of many queries may take long.
    Interrupts interrupts_;
    QuantizerShape shape_;
    std::vector<float> centroids_, codebook_;
    std::vector<float> nibble_words_;  // (dims)(16), with four bits
    std::vector<HostList> lists_;
    size_t bytes_ = 0;
};

uint32_t entries_of(std::span<const ListPage> pages) {
    uint32_t entries = 0;
    for (const ListPage& page : pages) entries += page.count;
    return entries;
}

void HostListStore::put(uint32_t number, std::span<const ListPage> pages) {
    HostList& before = lists_.at(number);
    HostList list;
    list.held = true;
    list.reserve(shape_.m, entries_of(pages));
    for (const ListPage& page : pages) list.add(page, shape_.m);
    bytes_ += list.bytes();
    bytes_ -= before.bytes();
    before = std::move(list);
}

// In place: start() runs a batch synchronously, so no batch is running.
void HostListStore::append(uint32_t number, std::span<const ListPage> pages) {
    HostList& list = lists_.at(number);
    if (!list.held) throw std::logic_error("list is not held");
    const uint32_t total = list.count + entries_of(pages);
    bytes_ -= list.bytes();
    try {
        // Spare capacity, so that a list that grows entry by entry is rarely copied.
        if (total > list.stride) list.reserve(shape_.m, total + total / 4);
    } catch (...) {
        bytes_ += list.bytes();
        throw;
    }
    for (const ListPage& page : pages) list.add(page, shape_.m);
    bytes_ += list.bytes();
}

// Computes the terms of all lists, and the batch's `probed`; returns the number of probes.
uint32_t HostListStore::rank_lists(HostBatch& batch, size_t query, Room& room) const {
    const float* vector = batch.queries + query * shape_.dims;
    const ListQuery& wanted = batch.wanted[query];
    const uint32_t probes = std::min(wanted.probes, shape_.lists);
    room.terms.resize(shape_.lists);
    room.order.resize(shape_.lists);
    const Rows centroids{centroids_.data(), shape_.dims, shape_.lists};
    if (!has_norms(shape_.metric)) {
        dot_products(vector, centroids, shape_.dims, room.terms.data());
        for (float& term : room.terms) term = -term;
    } else {
        squared_l2_distances(vector, centroids, shape_.dims, room.terms.data());
    }
    // A NaN product comes from an overflow and counts as infinitely far.
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

    return probes;
}

// scan_bytes() and scan_halves() take the ranked lists from the room.
void HostListStore::scan_bytes(const float* vector, const ListQuery& wanted, Room& room,
                               CandidateSelection& selection) const {
    room.table.resize(size_t{shape_.m} * codewords);
    build_table({shape_, centroids_.data(), codebook_.data()}, vector, room.table.data());
    const uint32_t probes = std::min(wanted.probes, shape_.lists);
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
}

// Byte tables in registers find the entries that can be within the bound. These entries get the
// same distance as in a search of many queries.
void HostListStore::scan_halves(const float* vector, const ListQuery& wanted, Room& room,
                                CandidateSelection& selection) const {
    const uint32_t parts = shape_.parts();
    std::vector<float> factors(shape_.dims);
    for (uint32_t d = 0; d < shape_.dims; ++d)
        factors[d] = product_factor(shape_.metric) * vector[d];
    room.half_table.assign(size_t{parts} * nibble_words, 0.0f);
    for (uint32_t p = 0; p < parts; ++p) {
        const uint32_t begin = shape_.part_begin(p);
        add_nibble_rows(factors.data() + begin, nibble_words_.data() + size_t{begin} * nibble_words,
                        shape_.part_begin(p + 1) - begin,
                        room.half_table.data() + size_t{p} * nibble_words);
    }
    room.low_table.resize(room.half_table.size());
    const NibbleTable halves =
        make_nibble_table(room.half_table.data(), shape_.m, room.low_table.data());
    room.table.resize(size_t{shape_.m} * codewords);
    build_table({shape_, centroids_.data(), codebook_.data()}, vector, room.table.data());
    room.hits.resize(part_entries);
    const uint32_t probes = std::min(wanted.probes, shape_.lists);
    for (uint32_t i = 0; i < probes; ++i) {
        const HostList& list = lists_[room.order[i]];
        const float term = room.terms[room.order[i]];
        // In parts: the bound after the first parts rejects most entries of the others.
        for (uint32_t first = 0; first < list.count; first += part_entries) {
            const CodeColumns columns{list.codes.data() + first, list.stride,
                                      std::min(part_entries, list.count - first),
                                      list.offsets.data() + first};
            // The same sums in another order differ by less than this.
            const double bound = selection.bound() + 0x1p-18 * double{halves.magnitude};
            const uint32_t found = scan_nibbles(halves, columns, term, bound, room.hits.data());
            for (uint32_t h = 0; h < found; ++h) {
                const uint32_t entry = first + room.hits[h].entry;
                const uint8_t* code = list.rows.data() + size_t{entry} * shape_.m;
                float distance = term + list.offsets[entry];
                for (uint32_t j = 0; j < shape_.m; ++j)
                    distance += room.table[size_t{j} * codewords + code[j]];
                if (!(distance > selection.bound())) selection.offer(distance, list.ids[entry]);
            }
        }
    }
}

void HostListStore::search_one(HostBatch& batch, size_t query, Room& room) const {
    rank_lists(batch, query, room);
    const float* vector = batch.queries + query * shape_.dims;
    const ListQuery& wanted = batch.wanted[query];
    room.candidates.resize(CandidateSelection::room_for(wanted.k));
    CandidateSelection selection(room.candidates.data(), wanted.k, no_floor);
    if (shape_.bits == 4)
        scan_halves(vector, wanted, room, selection);
    else
        scan_bytes(vector, wanted, room, selection);
    const size_t count = selection.finish().count;
    Neighbor* found = batch.found_room.data() + query * batch.found_stride;
    for (size_t i = 0; i < count; ++i)
        found[i] = {static_cast<float>(room.candidates[i].distance), room.candidates[i].id};
    batch.count_room[query] = static_cast<uint32_t>(count);
}

// --- many queries sharing one scan

// Candidates to keep by lower bound, more than wanted: enough to contain the nearest by distance.
uint32_t candidates_for(uint32_t wanted) {
    return 2 * wanted;
}

// Queries that share a scan of one thread. Their tables are interleaved for each list, so each list
// should have several of them.
constexpr size_t most_together = 1024;
constexpr size_t least_together = 384;  // even if some threads are idle then

// Answers do not depend on which queries share a scan, so the number of tasks may depend on
// threads.
size_t HostListStore::together_tasks(size_t queries) const {
    const size_t needed = (queries + most_together - 1) / most_together;
    return std::max(needed,
                    std::min(static_cast<size_t>(workers_.threads()), queries / least_together));
}

bool HostListStore::worth_sharing(const HostBatch& batch, size_t queries) const {
    if (shape_.m > most_group_m) return false;
    size_t visits = 0;
    for (size_t i = 0; i < queries; ++i) visits += std::min(batch.wanted[i].probes, shape_.lists);
    constexpr size_t least_visits = 8;  // of a list
    return visits >= least_visits * shape_.lists * together_tasks(queries);
}

// Offers the entries of one list to the queries that probe it.
void HostListStore::scan_visits(const Visit* visits, uint32_t count, SharedRoom& room) const {
    const HostList& list = lists_[visits[0].list];
    const size_t table_bytes = size_t{shape_.m} * codewords;
    float largest_offset = 0;
    for (const float offset : list.offsets)
        largest_offset = std::max(largest_offset, std::fabs(offset));
    for (uint32_t first = 0; first < count; first += group_size) {
        const uint32_t here = std::min(group_size, count - first);
        const uint8_t* tables[group_size];
        float steps[group_size], bases[group_size], bounds[group_size];
        for (uint32_t i = 0; i < group_size; ++i) {
            // Padding repeats the first query, with a bound that nothing passes.
            const Visit& visit = visits[first + (i < here ? i : 0)];
            tables[i] = room.bytes.data() + visit.query * table_bytes;
            steps[i] = room.tables[visit.query].step;
            bases[i] = room.tables[visit.query].base + visit.term;
            float& largest = room.largest[visit.query];
            largest = std::max(largest, largest_offset + std::fabs(visit.term));
        }
        interleave_tables(tables, shape_.m, room.interleaved.data());
        for (uint32_t begin = 0; begin < list.count; begin += part_entries) {
            for (uint32_t i = 0; i < group_size; ++i)
                bounds[i] =
                    i < here ? static_cast<float>(room.selections[visits[first + i].query].bound())
                             : -std::numeric_limits<float>::infinity();
            const uint32_t entries = std::min(part_entries, list.count - begin);
            scan_group(
                {room.interleaved.data(),
                 shape_.m,
                 {list.codes.data() + begin, list.stride, entries, list.offsets.data() + begin},
                 steps,
                 bases,
                 bounds,
                 room.sums.data(),
                 room.passed.data()});
            for (uint32_t l = 0; l < entries; ++l)
                for (uint32_t bits = room.passed[l]; bits != 0; bits &= bits - 1) {
                    const auto i = static_cast<uint32_t>(std::countr_zero(bits));
                    const float low = bases[i] + steps[i] * room.sums[size_t{l} * group_size + i] +
                                      list.offsets[begin + l];
                    room.selections[visits[first + i].query].offer(
                        low, uint64_t{visits[first].list} << 32 | (begin + l));
                }
        }
    }
}

// Replaces entry positions by TIDs, and lower bounds by distances, summed as scan_codes() does.
// Four at a time, because each sum is a chain of additions.
void HostListStore::score(const Room& room, Candidate* candidates, size_t count) const {
    for (size_t first = 0; first < count; first += 4) {
        const size_t here = std::min<size_t>(4, count - first);
        const uint8_t* codes[4];
        float sums[4];
        for (size_t i = 0; i < 4; ++i) {
            const uint64_t id = candidates[first + (i < here ? i : 0)].id;
            const HostList& list = lists_[id >> 32];
            const auto entry = static_cast<uint32_t>(id);
            codes[i] = list.rows.data() + size_t{entry} * shape_.m;
            sums[i] = room.terms[id >> 32] + list.offsets[entry];
        }
        const float* table = room.table.data();
        for (uint32_t j = 0; j < shape_.m; ++j, table += codewords)
            for (size_t i = 0; i < 4; ++i) sums[i] += table[codes[i][j]];
        for (size_t i = 0; i < here; ++i) {
            const uint64_t id = candidates[first + i].id;
            const double distance =
                sums[i] != sums[i] ? std::numeric_limits<double>::infinity() : sums[i];
            candidates[first + i] = {distance, lists_[id >> 32].ids[static_cast<uint32_t>(id)]};
        }
    }
}

// Computes the distances of a query's candidates. False where a dropped entry may be nearer than
// one of them.
bool HostListStore::finish_shared(HostBatch& batch, size_t query, size_t in_room,
                                  SharedRoom& room) const {
    const ByteTable& bytes = room.tables[in_room];
    if (!bytes.sound) return false;
    const uint32_t wanted = batch.wanted[query].k;
    const size_t selection_room = CandidateSelection::room_for(candidates_for(batch.shape.k));
    Candidate* kept = room.candidates.data() + in_room * selection_room;
    const CandidateSelection::Result result = room.selections[in_room].finish();
    const double farthest = result.count > 0 ? kept[result.count - 1].distance : 0;

    const float* vector = batch.queries + query * shape_.dims;
    const uint32_t probes = std::min(batch.wanted[query].probes, shape_.lists);
    const uint32_t* probed = batch.probed_room.data() + query * batch.probed_stride;
    Room& single = room.single;
    single.table.resize(size_t{shape_.m} * codewords);
    build_table({shape_, centroids_.data(), codebook_.data()}, vector, single.table.data());
    single.terms.resize(shape_.lists);
    for (uint32_t i = 0; i < probes; ++i)
        single.terms[probed[i]] = room.terms[in_room * batch.probed_stride + i];
    score(single, kept, result.count);
    std::sort(kept, kept + result.count);
    const size_t count = std::min<size_t>(result.count, wanted);
    if (!result.complete) {
        // Dropped entries have a lower bound of `farthest` or more. Sums of floats are off by less
        // than this share of their terms.
        const double off = 0x1p-18 * (std::fabs(bytes.base) + bytes.step * 255.0f * shape_.m +
                                      room.largest[in_room]);
        if (count < wanted || !(kept[count - 1].distance + off < farthest)) return false;
    }
    Neighbor* found = batch.found_room.data() + query * batch.found_stride;
    for (size_t i = 0; i < count; ++i)
        found[i] = {static_cast<float>(kept[i].distance), kept[i].id};
    batch.count_room[query] = static_cast<uint32_t>(count);
    return true;
}

void HostListStore::search_together(HostBatch& batch, size_t begin, size_t end,
                                    SharedRoom& room) const {
    const size_t queries = end - begin;
    const size_t table_bytes = size_t{shape_.m} * codewords;
    const size_t selection_room = CandidateSelection::room_for(candidates_for(batch.shape.k));
    room.visits.clear();
    room.tables.resize(queries);
    room.bytes.resize(queries * table_bytes);
    room.interleaved.resize(table_bytes * group_size);
    room.sums.resize(size_t{part_entries} * group_size);
    room.passed.resize(part_entries);
    room.candidates.resize(queries * selection_room);
    room.terms.resize(queries * batch.probed_stride);
    room.largest.assign(queries, 0);
    room.selections.clear();
    room.single.table.resize(table_bytes);
    for (size_t i = 0; i < queries; ++i) {
        const uint32_t probes = rank_lists(batch, begin + i, room.single);
        const float* vector = batch.queries + (begin + i) * shape_.dims;
        build_table({shape_, centroids_.data(), codebook_.data()}, vector,
                    room.single.table.data());
        room.tables[i] = make_byte_table(room.single.table.data(), shape_.m,
                                         room.bytes.data() + i * table_bytes);
        room.selections.emplace_back(room.candidates.data() + i * selection_room,
                                     candidates_for(batch.wanted[begin + i].k), no_floor);
        const uint32_t* probed = batch.probed_room.data() + (begin + i) * batch.probed_stride;
        for (uint32_t p = 0; p < probes && room.tables[i].sound; ++p) {
            const float term = room.single.terms[probed[p]];
            room.terms[i * batch.probed_stride + p] = term;
            if (lists_[probed[p]].count > 0)
                room.visits.push_back({p > probes / 4, probed[p], static_cast<uint32_t>(i), term});
        }
    }
    // Nearer lists first: the bounds they give reject most entries of the others.
    std::sort(room.visits.begin(), room.visits.end());
    for (size_t first = 0; first < room.visits.size();) {
        interrupts_.check();
        size_t next = first;
        while (next < room.visits.size() && room.visits[next].list == room.visits[first].list &&
               room.visits[next].late == room.visits[first].late)
            ++next;
        scan_visits(room.visits.data() + first, static_cast<uint32_t>(next - first), room);
        first = next;
    }
    for (size_t i = 0; i < queries; ++i) {
        interrupts_.check();
        if (!finish_shared(batch, begin + i, i, room)) search_one(batch, begin + i, room.single);
    }
}

void HostListStore::start(ListBatch& base, size_t queries) {
    auto& batch = static_cast<HostBatch&>(base);
    check_batch(batch, queries, shape_.lists);
    batch.found_stride = batch.shape.k;
    batch.probed_stride = batch.shape.probes;
    if (worth_sharing(batch, queries)) {
        // Tasks of nearly equal size.
        const size_t tasks = together_tasks(queries);
        std::vector<SharedRoom> rooms(static_cast<size_t>(workers_.threads()));
        workers_.run(tasks, [&](size_t task, int thread) {
            search_together(batch, queries * task / tasks, queries * (task + 1) / tasks,
                            rooms[thread]);
        });
        return;
    }
    std::vector<Room> rooms(static_cast<size_t>(workers_.threads()));
    workers_.run(queries,
                 [&](size_t query, int thread) { search_one(batch, query, rooms[thread]); });
}

}  // namespace

size_t cpu_query_bytes(const QuantizerShape& shape, uint32_t k, uint32_t probes) {
    return size_t{shape.m} * codewords +
           CandidateSelection::room_for(candidates_for(k)) * sizeof(Candidate) +
           size_t{std::min(probes, shape.lists)} * 24 + sizeof(CandidateSelection) + 64;
}

std::unique_ptr<ListStore> make_cpu_list_store(const Quantizer& quantizer, int threads,
                                               const Interrupts& interrupts) {
    return std::make_unique<HostListStore>(quantizer, threads, interrupts);
}

}  // namespace pgwarp
