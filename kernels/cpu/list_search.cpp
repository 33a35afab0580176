#include "kernels/cpu/list_search.h"

#include "kernels/distance.h"
#include "kernels/list_levels.h"
#include "kernels/list_plan.h"
#include "kernels/list_scan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace pgwarp {

namespace {

// The terms of some rows, (count): distances or negative products.
void row_terms(const QuantizerShape& shape, const float* vector, const float* rows, size_t count,
               float* terms) {
    const Rows matrix{rows, shape.dims, count};
    if (!has_norms(shape.metric)) {
        dot_products(vector, matrix, shape.dims, terms);
        for (size_t i = 0; i < count; ++i) terms[i] = -terms[i];
    } else {
        squared_l2_distances(vector, matrix, shape.dims, terms);
    }
    // A NaN product comes from an overflow and counts as infinitely far.
    for (size_t i = 0; i < count; ++i)
        if (terms[i] != terms[i]) terms[i] = std::numeric_limits<float>::infinity();
}

// Sorts the keys by buckets of equal width, as many as keys: terms of lists are spread enough
// for few to share one.
void sort_by_buckets(const std::vector<float>& terms, const std::vector<uint32_t>& order,
                     SearchScratch& scratch) {
    std::vector<uint64_t>& keys = scratch.keys;
    float least = terms[order[0]], greatest = least;
    for (const uint32_t list : order) {
        least = std::min(least, terms[list]);
        greatest = std::max(greatest, terms[list]);
    }
    const size_t buckets = keys.size();
    const float scale = static_cast<float>(buckets - 1) / (greatest - least);
    if (!(scale > 0) || std::isinf(scale)) {
        std::sort(keys.begin(), keys.end());
        return;
    }
    scratch.buckets.resize(keys.size());
    scratch.bucket_ends.assign(buckets + 1, 0);
    for (size_t i = 0; i < keys.size(); ++i) {
        const auto bucket = static_cast<size_t>((terms[order[i]] - least) * scale);
        scratch.buckets[i] = static_cast<uint32_t>(std::min(bucket, buckets - 1));
        ++scratch.bucket_ends[scratch.buckets[i] + 1];
    }
    // Begins of buckets first, which move to their ends.
    for (size_t b = 0; b < buckets; ++b) scratch.bucket_ends[b + 1] += scratch.bucket_ends[b];
    scratch.sorted_keys.resize(keys.size());
    for (size_t i = 0; i < keys.size(); ++i)
        scratch.sorted_keys[scratch.bucket_ends[scratch.buckets[i]]++] = keys[i];
    const auto begin = scratch.sorted_keys.begin();
    uint32_t first = 0;
    for (size_t b = 0; b < buckets; ++b) {
        const uint32_t end = scratch.bucket_ends[b];
        if (end - first > 1) std::sort(begin + first, begin + end);
        first = end;
    }
    keys.swap(scratch.sorted_keys);
}

// Sorts the first `count` to their places: by term, then by number. A term is no NaN.
void sort_by_terms(const std::vector<float>& terms, std::vector<uint32_t>& order, size_t count,
                   SearchScratch& scratch) {
    constexpr uint32_t sign = 1u << 31;
    constexpr size_t few = 8;  // a part of all
    std::vector<uint64_t>& keys = scratch.keys;
    keys.resize(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
        const auto bits = std::bit_cast<uint32_t>(terms[order[i]] + 0.0f);  // -0 is 0
        keys[i] = uint64_t{bits & sign ? ~bits : bits | sign} << 32 | order[i];
    }
    if (count < keys.size() / few) {
        const auto end = keys.begin() + static_cast<std::ptrdiff_t>(count);
        std::nth_element(keys.begin(), end, keys.end());
        std::sort(keys.begin(), end);
    } else if (!keys.empty()) {
        sort_by_buckets(terms, order, scratch);
    }
    for (size_t i = 0; i < keys.size(); ++i) order[i] = static_cast<uint32_t>(keys[i]);
}

// Puts the lists of the nearest parents into scratch.order, with their terms.
void compare_by_parents(const StoredLists& stored, const float* vector, uint32_t probes,
                        SearchScratch& scratch) {
    const size_t parents = stored.parent_first.size() - 1;
    const uint64_t wanted = lists_to_compare(probes, stored.shape.lists);
    scratch.parent_terms.resize(parents);
    scratch.parent_order.resize(parents);
    row_terms(stored.shape, vector, stored.parent_centroids.data(), parents,
              scratch.parent_terms.data());
    std::iota(scratch.parent_order.begin(), scratch.parent_order.end(), 0u);
    sort_by_terms(scratch.parent_terms, scratch.parent_order, parents, scratch);
    scratch.order.clear();
    for (size_t i = 0; i < parents && scratch.order.size() < wanted; ++i) {
        const uint32_t first = stored.parent_first[scratch.parent_order[i]];
        const uint32_t end = stored.parent_first[scratch.parent_order[i] + 1];
        row_terms(stored.shape, vector, stored.centroids.data() + size_t{first} * stored.shape.dims,
                  end - first, scratch.terms.data() + first);
        for (uint32_t list = first; list < end; ++list) scratch.order.push_back(list);
    }
}

}  // namespace

uint32_t rank_lists(const StoredLists& stored, CpuBatch& batch, size_t query,
                    SearchScratch& scratch) {
    const float* vector = batch.queries + query * stored.shape.dims;
    const ListQuery& wanted = batch.wanted[query];
    const uint32_t probes = std::min(wanted.probes, stored.shape.lists);
    scratch.terms.resize(stored.shape.lists);
    if (!stored.parent_first.empty()) {
        compare_by_parents(stored, vector, probes, scratch);
    } else {
        scratch.order.resize(stored.shape.lists);
        row_terms(stored.shape, vector, stored.centroids.data(), stored.shape.lists,
                  scratch.terms.data());
        std::iota(scratch.order.begin(), scratch.order.end(), 0u);
    }
    sort_by_terms(scratch.terms, scratch.order, probes, scratch);
    std::copy_n(scratch.order.begin(), probes,
                batch.probed_room.begin() + query * batch.probed_stride);
    batch.taken_room[query] = probes;
    return probes;
}

namespace {

// As scan_codes() computes it.
float row_distance(const StoredLists& stored, const float* table, const StoredList& list,
                   float term, uint32_t entry) {
    const uint8_t* code = list.rows.data() + size_t{entry} * stored.shape.m;
    float distance = term + list.offsets[entry];
    for (uint32_t j = 0; j < stored.shape.m; ++j)
        distance += table[size_t{j} * codewords + code[j]];
    return distance;
}

// The lists that a query takes, in the order of their ranks.
class TakenLists {
  public:
    TakenLists(const StoredLists& stored, const ListQuery& wanted, const SearchScratch& scratch)
        : walk_(wanted.plan) {
        if (wanted.first_probe == 0) return;
        for (uint32_t rank = 0; rank < wanted.first_probe; ++rank)
            entries_ += stored.lists[scratch.order[rank]].count;
        passed_ = before_ = wanted.plan.entries;
        walk_ =
            ListWalk(wanted.plan, wanted.first_probe, entries_, scratch.terms[scratch.order[0]]);
    }

    // Whether the query takes the list, too; if so, its entries count for the next ones.
    bool take(const StoredList& list, float term, CandidateSelection& selection) {
        if (!walk_.takes(term, entries_, passed_, selection)) return false;
        entries_ += list.count;
        passed_ += list.count;
        return true;
    }
    // Of the list taken last, entries that do not pass the query's conditions.
    void leave_out(uint32_t entries) { passed_ -= entries; }
    uint32_t count() const { return walk_.taken(); }
    // In the lists that were taken here.
    double passed() const { return passed_ - before_; }

  private:
    ListWalk walk_;
    double entries_ = 0;
    double passed_ = 0;
    double before_ = 0;
};

// The id of a candidate: its TID, or where its entry lies.
enum class Ids { tids, places };
uint64_t id_of(Ids ids, const StoredList& list, uint32_t number, uint32_t entry) {
    return ids == Ids::tids ? list.ids[entry] : uint64_t{number} << 32 | entry;
}

// scan_bytes() and scan_halves() take the ranked lists from the scratch, and return how many they
// took.
uint32_t scan_bytes(const StoredLists& stored, const float* vector, const ListQuery& wanted,
                    Ids ids, SearchScratch& scratch, CandidateSelection& selection) {
    scratch.table.resize(size_t{stored.shape.m} * codewords);
    build_table(stored.quantizer(), vector, scratch.table.data());
    const uint32_t probes = std::min(wanted.probes, stored.shape.lists);
    TakenLists taken(stored, wanted, scratch);
    for (uint32_t i = 0; i < probes; ++i) {
        const StoredList& list = stored.lists[scratch.order[i]];
        if (!taken.take(list, scratch.terms[scratch.order[i]], selection)) break;
        scratch.distances.resize(list.stride);
        scan_codes(scratch.table.data(), stored.shape.m,
                   {list.codes.data(), list.stride, list.count, list.offsets.data()},
                   scratch.terms[scratch.order[i]], scratch.distances.data());
        for (uint32_t l = 0; l < list.count; ++l)
            if (!(scratch.distances[l] > selection.bound()))
                selection.offer(scratch.distances[l], id_of(ids, list, scratch.order[i], l));
    }
    return taken.count();
}

// Byte tables in registers find the entries that can be within the bound. These entries get the
// same distance as in a search of many queries.
uint32_t scan_halves(const StoredLists& stored, const float* vector, const ListQuery& wanted,
                     Ids ids, SearchScratch& scratch, CandidateSelection& selection) {
    const uint32_t parts = stored.shape.parts();
    std::vector<float> factors(stored.shape.dims);
    for (uint32_t d = 0; d < stored.shape.dims; ++d)
        factors[d] = product_factor(stored.shape.metric) * vector[d];
    scratch.half_table.assign(size_t{parts} * nibble_words, 0.0f);
    for (uint32_t p = 0; p < parts; ++p) {
        const uint32_t begin = stored.shape.part_begin(p);
        add_nibble_rows(factors.data() + begin,
                        stored.half_codebook.data() + size_t{begin} * nibble_words,
                        stored.shape.part_begin(p + 1) - begin,
                        scratch.half_table.data() + size_t{p} * nibble_words);
    }
    scratch.low_table.resize(scratch.half_table.size());
    const NibbleTable halves =
        make_nibble_table(scratch.half_table.data(), stored.shape.m, scratch.low_table.data());
    scratch.table.resize(size_t{stored.shape.m} * codewords);
    build_table(stored.quantizer(), vector, scratch.table.data());
    scratch.hits.resize(part_entries);
    const uint32_t probes = std::min(wanted.probes, stored.shape.lists);
    TakenLists taken(stored, wanted, scratch);
    for (uint32_t i = 0; i < probes; ++i) {
        const StoredList& list = stored.lists[scratch.order[i]];
        const float term = scratch.terms[scratch.order[i]];
        if (!taken.take(list, term, selection)) break;
        // In parts: the bound after the first parts rejects most entries of the others.
        for (uint32_t first = 0; first < list.count; first += part_entries) {
            const CodeColumns columns{list.codes.data() + first, list.stride,
                                      std::min(part_entries, list.count - first),
                                      list.offsets.data() + first};
            // The same sums in another order differ by less than this.
            const double bound = selection.bound() + 0x1p-18 * double{halves.magnitude};
            const uint32_t found = scan_nibbles(halves, columns, term, bound, scratch.hits.data());
            for (uint32_t h = 0; h < found; ++h) {
                const uint32_t entry = first + scratch.hits[h].entry;
                const float distance =
                    row_distance(stored, scratch.table.data(), list, term, entry);
                if (!(distance > selection.bound()))
                    selection.offer(distance, id_of(ids, list, scratch.order[i], entry));
            }
        }
    }
    return taken.count();
}

// Entries that pass the query's conditions. Sets the batch's `searched` and `taken`.
void scan_passing(const StoredLists& stored, CpuBatch& batch, size_t query, SearchScratch& scratch,
                  CandidateSelection& selection) {
    const ListQuery& wanted = batch.wanted[query];
    scratch.conditions.resize(wanted.conditions);
    unpack_conditions({batch.conditions + query * batch.shape.conditions, wanted.conditions,
                       batch.values + query * batch.shape.values, batch.shape.values},
                      scratch.conditions.data());
    scratch.table.resize(size_t{stored.shape.m} * codewords);
    build_table(stored.quantizer(), batch.queries + query * stored.shape.dims,
                scratch.table.data());
    const uint32_t probes = std::min(wanted.probes, stored.shape.lists);
    // Looking up one entry alone takes this many times as long as with its list.
    constexpr uint32_t alone = 4;
    TakenLists taken(stored, wanted, scratch);
    for (uint32_t rank = wanted.first_probe; rank < probes; ++rank) {
        const uint32_t number = scratch.order[rank];
        const StoredList& list = stored.lists[number];
        const float term = scratch.terms[number];
        if (!taken.take(list, term, selection)) break;
        scratch.passing.resize(passing_words(list.count));
        const uint32_t here = check_conditions(list.attribute_columns(stored.attributes),
                                               scratch.conditions, scratch.passing.data());
        taken.leave_out(list.count - here);
        if (here == 0) continue;
        const bool all = here * alone >= list.count;
        if (all) {
            scratch.distances.resize(list.stride);
            scan_codes(scratch.table.data(), stored.shape.m, list.code_columns(), term,
                       scratch.distances.data());
        }
        for (uint32_t w = 0; w < passing_words(list.count); ++w)
            for (uint64_t left = scratch.passing[w]; left != 0; left &= left - 1) {
                const uint32_t entry = w * 64 + static_cast<uint32_t>(__builtin_ctzll(left));
                const float distance =
                    all ? scratch.distances[entry]
                        : row_distance(stored, scratch.table.data(), list, term, entry);
                if (!(distance > selection.bound())) selection.offer(distance, list.ids[entry]);
            }
    }
    batch.taken_room[query] = taken.count();
    batch.searched_room[query] = {static_cast<uint32_t>(taken.passed()), 0};
}

}  // namespace

uint32_t limit_lists(const StoredLists& stored, const ListQuery& wanted, SearchScratch& scratch) {
    const uint32_t probes = std::min(wanted.probes, stored.shape.lists);
    if (!(wanted.plan.threshold > 0)) return probes;
    scratch.candidates.resize(CandidateSelection::room_for(wanted.plan.k));
    CandidateSelection selection(scratch.candidates.data(), wanted.plan.k, no_floor);
    TakenLists taken(stored, wanted, scratch);
    for (uint32_t i = 0; i < probes; ++i) {
        const StoredList& list = stored.lists[scratch.order[i]];
        const float term = scratch.terms[scratch.order[i]];
        if (!taken.take(list, term, selection)) break;
        scratch.distances.resize(list.stride);
        scan_codes(scratch.table.data(), stored.shape.m, list.code_columns(), term,
                   scratch.distances.data());
        for (uint32_t l = 0; l < list.count; ++l)
            if (!(scratch.distances[l] > selection.bound()))
                selection.offer(scratch.distances[l], list.ids[l]);
    }
    return taken.count();
}

namespace {

// Scores `count` candidates, whose ids are places, by their refinements, and puts those into the
// answer that may be among the wanted rows.
void put_refined(const StoredLists& stored, CpuBatch& batch, size_t query, size_t count,
                 SearchScratch& scratch) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const uint32_t dims = stored.shape.dims;
    const uint32_t wanted = batch.wanted[query].refined_k;
    scratch.values.resize(dims);
    const RefinementQuery refined = make_refinement_query(
        stored.shape.metric, batch.queries + query * dims, dims, scratch.values.data());
    scratch.ranges.resize(count);
    scratch.mosts.resize(count);
    for (size_t i = 0; i < count; ++i) {
        const uint64_t place = scratch.candidates[i].id;
        const StoredList& list = stored.lists[place >> 32];
        scratch.ranges[i] = {-infinity, infinity};
        if (list.refined) {
            const uint8_t* record = list.refinement(static_cast<uint32_t>(place), dims);
            RefinementHead head;
            std::memcpy(&head, record, sizeof(head));
            scratch.ranges[i] = refined_range(
                refined_distance(refined, scratch.terms[place >> 32], head,
                                 reinterpret_cast<const int8_t*>(record + sizeof(head))));
        }
        scratch.mosts[i] = scratch.ranges[i].most;
    }
    float limit = infinity;
    if (count >= wanted) {
        std::nth_element(scratch.mosts.begin(), scratch.mosts.begin() + (wanted - 1),
                         scratch.mosts.end());
        limit = scratch.mosts[wanted - 1];
    }
    Neighbor* found = batch.found_room.data() + query * batch.found_stride;
    uint32_t kept = 0;
    float left_out = infinity;
    for (size_t i = 0; i < count; ++i) {
        const float least = scratch.ranges[i].least;
        const uint64_t place = scratch.candidates[i].id;
        if (least <= limit)
            found[kept++] = {least, stored.lists[place >> 32].ids[static_cast<uint32_t>(place)]};
        else
            left_out = std::min(left_out, least);
    }
    batch.count_room[query] = kept;
    batch.left_out_room[query] = left_out;
}

}  // namespace

void search_one(const StoredLists& stored, CpuBatch& batch, size_t query, SearchScratch& scratch) {
    rank_lists(stored, batch, query, scratch);
    const float* vector = batch.queries + query * stored.shape.dims;
    const ListQuery& wanted = batch.wanted[query];
    scratch.candidates.resize(CandidateSelection::room_for(wanted.k));
    const Ids ids = batch.shape.refined ? Ids::places : Ids::tids;
    const Candidate floor{wanted.floor_distance, wanted.floor_id};
    CandidateSelection selection(scratch.candidates.data(), wanted.k,
                                 batch.shape.filtered ? floor : no_floor);
    if (batch.shape.filtered)
        scan_passing(stored, batch, query, scratch, selection);
    else if (stored.shape.bits == 4)
        batch.taken_room[query] = scan_halves(stored, vector, wanted, ids, scratch, selection);
    else
        batch.taken_room[query] = scan_bytes(stored, vector, wanted, ids, scratch, selection);
    const CandidateSelection::Result result = selection.finish();
    const size_t count = result.count;
    if (batch.shape.refined) return put_refined(stored, batch, query, count, scratch);
    Neighbor* found = batch.found_room.data() + query * batch.found_stride;
    for (size_t i = 0; i < count; ++i)
        found[i] = {static_cast<float>(scratch.candidates[i].distance), scratch.candidates[i].id};
    batch.count_room[query] = static_cast<uint32_t>(count);
    if (batch.shape.filtered) batch.searched_room[query].more = !result.complete;
}

}  // namespace pgwarp
