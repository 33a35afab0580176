#include "kernels/cpu/shared_search.h"

#include "kernels/candidates.h"
#include "kernels/list_scan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace pgwarp {

namespace {

// Candidates to keep by lower bound, more than wanted: enough to contain the nearest by distance.
uint32_t candidates_by_bound(uint32_t wanted) {
    return 2 * wanted;
}

// Queries that share a scan of one thread. Their tables are interleaved for each list, so each list
// should have several of them.
constexpr size_t max_together = 1024;
constexpr size_t min_together = 384;  // even if some threads are idle then

// Answers do not depend on which queries share a scan, so the number of tasks may depend on
// threads.
size_t tasks_for(size_t queries, int threads) {
    const size_t needed = (queries + max_together - 1) / max_together;
    return std::max(needed, std::min(static_cast<size_t>(threads), queries / min_together));
}

// Ranks the lists of the queries and makes their byte tables. Visits of the same list follow each
// other.
void rank_visits(const StoredLists& stored, CpuBatch& batch, size_t begin, size_t end,
                 SharedScratch& scratch) {
    const size_t queries = end - begin;
    const size_t table_bytes = size_t{stored.shape.m} * codewords;
    const size_t selection_room = CandidateSelection::room_for(candidates_by_bound(batch.shape.k));
    scratch.visits.clear();
    scratch.tables.resize(queries);
    scratch.bytes.resize(queries * table_bytes);
    scratch.interleaved.resize(table_bytes * group_size);
    scratch.sums.resize(size_t{part_entries} * group_size);
    scratch.passed.resize(part_entries);
    scratch.candidates.resize(queries * selection_room);
    scratch.terms.resize(queries * batch.probed_stride);
    scratch.largest.assign(queries, 0);
    scratch.selections.clear();
    scratch.single.table.resize(table_bytes);
    for (size_t i = 0; i < queries; ++i) {
        rank_lists(stored, batch, begin + i, scratch.single);
        const float* vector = batch.queries + (begin + i) * stored.shape.dims;
        build_table(stored.quantizer(), vector, scratch.single.table.data());
        const uint32_t probes = limit_lists(stored, batch.wanted[begin + i], scratch.single);
        batch.taken_room[begin + i] = probes;
        scratch.tables[i] = make_byte_table(scratch.single.table.data(), stored.shape.m,
                                            scratch.bytes.data() + i * table_bytes);
        scratch.selections.emplace_back(scratch.candidates.data() + i * selection_room,
                                        candidates_by_bound(batch.wanted[begin + i].k), no_floor);
        const uint32_t* probed = batch.probed_room.data() + (begin + i) * batch.probed_stride;
        for (uint32_t p = 0; p < probes && scratch.tables[i].sound; ++p) {
            const float term = scratch.single.terms[probed[p]];
            scratch.terms[i * batch.probed_stride + p] = term;
            if (stored.lists[probed[p]].count > 0)
                scratch.visits.push_back(
                    {p > probes / 4, probed[p], static_cast<uint32_t>(i), term});
        }
    }
    // Nearer lists first: the bounds they give reject most entries of the others.
    std::sort(scratch.visits.begin(), scratch.visits.end());
}

// Offers the entries of one list to the queries that probe it.
void scan_visits(const StoredLists& stored, const Visit* visits, uint32_t count,
                 SharedScratch& scratch) {
    const StoredList& list = stored.lists[visits[0].list];
    const size_t table_bytes = size_t{stored.shape.m} * codewords;
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
            tables[i] = scratch.bytes.data() + visit.query * table_bytes;
            steps[i] = scratch.tables[visit.query].step;
            bases[i] = scratch.tables[visit.query].base + visit.term;
            float& largest = scratch.largest[visit.query];
            largest = std::max(largest, largest_offset + std::fabs(visit.term));
        }
        interleave_tables(tables, stored.shape.m, scratch.interleaved.data());
        for (uint32_t begin = 0; begin < list.count; begin += part_entries) {
            for (uint32_t i = 0; i < group_size; ++i)
                bounds[i] =
                    i < here
                        ? static_cast<float>(scratch.selections[visits[first + i].query].bound())
                        : -std::numeric_limits<float>::infinity();
            const uint32_t entries = std::min(part_entries, list.count - begin);
            scan_group(
                {scratch.interleaved.data(),
                 stored.shape.m,
                 {list.codes.data() + begin, list.stride, entries, list.offsets.data() + begin},
                 steps,
                 bases,
                 bounds,
                 scratch.sums.data(),
                 scratch.passed.data()});
            for (uint32_t l = 0; l < entries; ++l)
                for (uint32_t bits = scratch.passed[l]; bits != 0; bits &= bits - 1) {
                    const auto i = static_cast<uint32_t>(std::countr_zero(bits));
                    const float low = bases[i] +
                                      steps[i] * scratch.sums[size_t{l} * group_size + i] +
                                      list.offsets[begin + l];
                    scratch.selections[visits[first + i].query].offer(
                        low, uint64_t{visits[first].list} << 32 | (begin + l));
                }
        }
    }
}

// Replaces entry positions by TIDs, and lower bounds by distances, summed as scan_codes() does.
// Four at a time, because each sum is a chain of additions.
void score(const StoredLists& stored, const SearchScratch& scratch, Candidate* candidates,
           size_t count) {
    for (size_t first = 0; first < count; first += 4) {
        const size_t here = std::min<size_t>(4, count - first);
        const uint8_t* codes[4];
        float sums[4];
        for (size_t i = 0; i < 4; ++i) {
            const uint64_t id = candidates[first + (i < here ? i : 0)].id;
            const StoredList& list = stored.lists[id >> 32];
            const auto entry = static_cast<uint32_t>(id);
            codes[i] = list.rows.data() + size_t{entry} * stored.shape.m;
            sums[i] = scratch.terms[id >> 32] + list.offsets[entry];
        }
        const float* table = scratch.table.data();
        for (uint32_t j = 0; j < stored.shape.m; ++j, table += codewords)
            for (size_t i = 0; i < 4; ++i) sums[i] += table[codes[i][j]];
        for (size_t i = 0; i < here; ++i) {
            const uint64_t id = candidates[first + i].id;
            const double distance =
                sums[i] != sums[i] ? std::numeric_limits<double>::infinity() : sums[i];
            candidates[first + i] = {distance,
                                     stored.lists[id >> 32].ids[static_cast<uint32_t>(id)]};
        }
    }
}

// Computes the distances of a query's candidates. False where a dropped entry may be nearer than
// one of them.
bool finish_shared(const StoredLists& stored, CpuBatch& batch, size_t query, size_t in_room,
                   SharedScratch& scratch) {
    const ByteTable& bytes = scratch.tables[in_room];
    if (!bytes.sound) return false;
    const uint32_t wanted = batch.wanted[query].k;
    const size_t selection_room = CandidateSelection::room_for(candidates_by_bound(batch.shape.k));
    Candidate* kept = scratch.candidates.data() + in_room * selection_room;
    const CandidateSelection::Result result = scratch.selections[in_room].finish();
    const double farthest = result.count > 0 ? kept[result.count - 1].distance : 0;

    const float* vector = batch.queries + query * stored.shape.dims;
    const uint32_t probes = batch.taken_room[query];
    const uint32_t* probed = batch.probed_room.data() + query * batch.probed_stride;
    SearchScratch& single = scratch.single;
    single.table.resize(size_t{stored.shape.m} * codewords);
    build_table(stored.quantizer(), vector, single.table.data());
    single.terms.resize(stored.shape.lists);
    for (uint32_t i = 0; i < probes; ++i)
        single.terms[probed[i]] = scratch.terms[in_room * batch.probed_stride + i];
    score(stored, single, kept, result.count);
    std::sort(kept, kept + result.count);
    const size_t count = std::min<size_t>(result.count, wanted);
    if (!result.complete) {
        // Dropped entries have a lower bound of `farthest` or more. Sums of floats are off by less
        // than this share of their terms.
        const double off = 0x1p-18 * (std::fabs(bytes.base) + bytes.step * 255.0f * stored.shape.m +
                                      scratch.largest[in_room]);
        if (count < wanted || !(kept[count - 1].distance + off < farthest)) return false;
    }
    Neighbor* found = batch.found_room.data() + query * batch.found_stride;
    for (size_t i = 0; i < count; ++i)
        found[i] = {static_cast<float>(kept[i].distance), kept[i].id};
    batch.count_room[query] = static_cast<uint32_t>(count);
    return true;
}

// Whether queries of `tasks` tasks gain from sharing scans, by the lists that a few of them take
// alone. A shared scan takes less of an entry. But for each list, tables have to be interleaved,
// and a query needs its tables twice, the entries that tell its radius twice, and twice the
// candidates. All measured in entries (bench/notes/joins.md).
bool pays(const StoredLists& stored, CpuBatch& batch, size_t queries, size_t tasks) {
    // Larger tables of floats than this do not fit into a first-level cache: then looking up the
    // entries of a list takes more.
    constexpr uint32_t small_m = 64;
    const double of_visit = stored.shape.m <= small_m ? 300 : 120;
    constexpr double of_candidate = 75;
    constexpr size_t most = 8;
    constexpr size_t part = 64;
    const size_t sample = std::clamp<size_t>(queries / part, 1, most);
    double entries = 0, visits = 0, candidates = 0;
    SearchScratch scratch;
    for (size_t i = 0; i < sample; ++i) {
        const size_t query = queries * i / sample;
        search_one(stored, batch, query, scratch);
        visits += batch.taken_room[query];
        candidates += batch.wanted[query].k;
        for (uint32_t rank = 0; rank < batch.taken_room[query]; ++rank)
            entries += stored.lists[scratch.order[rank]].count;
    }
    // A scan takes as long for fewer queries.
    const double visits_of_list = visits / static_cast<double>(sample) *
                                  static_cast<double>(queries) /
                                  static_cast<double>(tasks * stored.shape.lists);
    const double filled = std::clamp(visits_of_list / group_size, 1.0 / group_size, 1.0);
    return entries > of_visit / filled * visits + of_candidate * candidates;
}

bool always_shared = false;

}  // namespace

void share_always(bool always) {
    always_shared = always;
}

size_t shared_tasks(const StoredLists& stored, CpuBatch& batch, size_t queries, int threads) {
    // Filtered queries share no scan: each has conditions of its own. Refined ones need places of
    // entries, which a shared scan does not keep.
    if (stored.shape.m > most_group_m || batch.shape.filtered || batch.shape.refined) return 0;
    // One query alone looks up many entries of four bits at once.
    if (stored.shape.bits == 4 && !always_shared) return 0;
    size_t visits = 0;
    for (size_t i = 0; i < queries; ++i) {
        // Of the lists that a query may take, it takes some.
        constexpr size_t some = 8;
        const size_t probes = std::min(batch.wanted[i].probes, stored.shape.lists);
        visits += batch.wanted[i].plan.threshold > 0 ? (probes + some - 1) / some : probes;
    }
    constexpr size_t min_visits = 8;  // of a list
    const size_t tasks = tasks_for(queries, threads);
    if (visits < min_visits * stored.shape.lists * tasks) return 0;
    return always_shared || pays(stored, batch, queries, tasks) ? tasks : 0;
}

void search_together(const StoredLists& stored, CpuBatch& batch, size_t begin, size_t end,
                     const Interrupts& interrupts, SharedScratch& scratch) {
    rank_visits(stored, batch, begin, end, scratch);
    for (size_t first = 0; first < scratch.visits.size();) {
        interrupts.check();
        size_t next = first;
        while (next < scratch.visits.size() &&
               scratch.visits[next].list == scratch.visits[first].list &&
               scratch.visits[next].late == scratch.visits[first].late)
            ++next;
        scan_visits(stored, scratch.visits.data() + first, static_cast<uint32_t>(next - first),
                    scratch);
        first = next;
    }
    for (size_t i = 0; begin + i < end; ++i) {
        interrupts.check();
        if (!finish_shared(stored, batch, begin + i, i, scratch))
            search_one(stored, batch, begin + i, scratch.single);
    }
}

size_t cpu_query_bytes(const QuantizerShape& shape, uint32_t k, uint32_t probes) {
    return size_t{shape.m} * codewords +
           CandidateSelection::room_for(candidates_by_bound(k)) * sizeof(Candidate) +
           size_t{std::min(probes, shape.lists)} * 24 + sizeof(CandidateSelection) + 64;
}

}  // namespace pgwarp
