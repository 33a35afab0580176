// A search of m queries over n parts: an index, or the indexes of a table's partitions.
//
// A row is among the k nearest whatever part it is in. So the candidates of all parts are ranked in
// one order, by code: their number is that of one search, however many parts there are. A query is
// searched for in the part of its nearest list first. What it finds there tells how far it has to
// look into the others: its radius (kernels/list_plan.h).
//
// Memory holds the candidates of a block of queries. Where all that were kept of a query are within
// the reach of codes, it is searched for again, with more room. Where too few rows remain, because
// candidates are not visible or do not pass the check, an ordinary scan goes on.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "extension/index/model.h"
#include "extension/knn/batch_state.h"
#include "extension/knn/device.h"
#include "extension/service/client.h"
#include "extension/settings.h"

extern "C" {
#include "miscadmin.h"
#include "pgstat.h"
}

namespace pgwarp {

namespace {

// How the rows of a part are found.
enum class Way : uint8 {
    by_lists,   // candidates by code, from lists in memory
    served,     // the same from the service
    all_rows,   // all are compared with all queries: an exact search, or an index without lists
    by_scans,   // a scan for each query: lists are not worth reading, or do not fit into memory
    by_queries  // an SQL query for each
};

struct Part {
    KnnBatch* batch;
    Way way;
};

// A candidate of any part.
struct PartCandidate {
    float distance;  // by code
    uint32 part;
    uint64 tid;

    friend bool operator<(const PartCandidate& a, const PartCandidate& b) {
        if (a.distance != b.distance) return a.distance < b.distance;
        return a.part < b.part || (a.part == b.part && a.tid < b.tid);
    }
};

struct Search {
    NearestRows* found;
    Part* parts;
    uint32 part_count;
    uint32 limit;             // KnnBatch::limit
    const MetaPage* largest;  // of the indexes with lists
    Effort effort;            // for `limit` rows of that
    Size memory;              // of a block
    bool* few;                // (queries): too few rows were found
    bool* left;               // (queries): left to scans in any case
};

// An entry that was appended to a list: its code was not read.
struct AppendedEntry {
    uint32 place;  // of the query
    uint32 part;
    uint64 tid;
};

// Queries whose candidates are in memory.
struct Block {
    const uint32* queries;  // (count): numbers in the search
    uint32 count;
    uint32 room;            // for candidates of a query
    PartCandidate* found;   // (count)(room), nearest first
    uint32* counts;         // (count)
    PartCandidate* merged;  // (room)
    float* forms;           // (count)(code_dims)
    uint32* chosen;         // (count), places of queries that a part is searched for
    float* radii;           // (count), of these
    uint32* nearest;        // (count): the part of the query's nearest list
    bool* answered;         // (count): no part lacks something
    AppendedEntry* appended;
    Size appended_count;
    Size appended_room;
};

bool has_candidates(const Part& part) {
    return part.way == Way::by_lists || part.way == Way::served;
}

// Calls with(number, batch) for the parts with candidates by code.
template <typename With>
void for_each_with_lists(const Search& search, With&& with) {
    for (uint32 i = 0; i < search.part_count; ++i)
        if (has_candidates(search.parts[i])) with(i, search.parts[i].batch);
}

Size bytes_of_query(const Search& search, uint32 room) {
    const Size dims = search.parts[0].batch->index->dims;
    return room * (sizeof(PartCandidate) + 2 * sizeof(CandidateRow)) + 2 * dims * sizeof(float) +
           5 * sizeof(uint32);
}

Block make_block(const Search& search, const uint32* queries, uint32 count, uint32 room) {
    Size dims = 0;
    for_each_with_lists(search, [&dims](uint32, const KnnBatch* batch) {
        dims = std::max<Size>(dims, batch->meta.code_dims);
    });
    return {queries,
            count,
            room,
            alloc_array<PartCandidate>(Size{count} * room),
            alloc_array<uint32>(count),
            alloc_array<PartCandidate>(room),
            alloc_array<float>(count * dims),
            alloc_array<uint32>(count),
            alloc_array<float>(count),
            alloc_array<uint32>(count),
            alloc_array<bool>(count),
            nullptr,
            0,
            0};
}

// --- candidates

void merge_part(const Block& block, uint32 place, uint32 part, const Neighbor* found,
                uint32 count) {
    PartCandidate* mine = block.found + Size{place} * block.room;
    const uint32 before = block.counts[place];
    if (count == 0 || (before == block.room && found[0].distance > mine[before - 1].distance))
        return;
    uint32 old = 0, added = 0, merged = 0;
    while (merged < block.room && (old < before || added < count)) {
        const PartCandidate next = {added < count ? found[added].distance : 0, part,
                                    added < count ? found[added].id : 0};
        const bool takes_old = old < before && (added == count || mine[old] < next);
        block.merged[merged++] = takes_old ? mine[old++] : next;
        if (!takes_old) ++added;
    }
    memcpy(mine, block.merged, merged * sizeof(PartCandidate));
    block.counts[place] = merged;
}

void add_appended(Block* block, const AppendedEntry& entry) {
    if (block->appended_count == block->appended_room) {
        const Size room = std::max<Size>(64, 2 * block->appended_room);
        AppendedEntry* grown = alloc_array<AppendedEntry>(room);
        std::copy_n(block->appended, block->appended_count, grown);
        block->appended = grown;
        block->appended_room = room;
    }
    block->appended[block->appended_count++] = entry;
}

struct PartSink {
    Block* block;
    uint32 part;
    bool* whole;  // (chosen) queries that have an answer
};

// The queries of a block of which this is true are chosen; returns their number.
template <typename Wanted>
uint32 choose(const Block& block, Wanted&& wanted) {
    uint32 chosen = 0;
    for (uint32 place = 0; place < block.count; ++place)
        if (wanted(place)) block.chosen[chosen++] = place;
    return chosen;
}

void find_nearest_parts(const Search& search, const Block& block) {
    if (search.part_count == 1) {
        std::fill_n(block.nearest, block.count, 0);
        return;
    }
    float* least = block.radii;
    std::fill_n(block.nearest, block.count, search.part_count);
    for_each_with_lists(search, [&](uint32 number, KnnBatch* batch) {
        for (uint32 place = 0; place < block.count; ++place) {
            form_query(batch, block.queries[place], block.forms, 0);
            // The lists are in the service: which is nearest is unknown, and any part will do.
            const float term = batch->lists ? nearest_list(batch->lists, block.forms)
                                            : std::numeric_limits<float>::infinity();
            if (block.nearest[place] < search.part_count && !(term < least[place])) continue;
            block.nearest[place] = number;
            least[place] = term;
        }
    });
}

// The radius of a query by the candidates found so far; infinity: none.
float radius_of(const Search& search, const Block& block, uint32 place) {
    return block.counts[place] < search.limit
               ? std::numeric_limits<float>::infinity()
               : block.found[Size{place} * block.room + search.limit - 1].distance;
}

// Asks the service for candidates of the chosen queries of a block. False: it had hardly any.
bool ask_for_part(const KnnBatch* batch, Block* block, uint32 number, const ListWants& wants) {
    bool* whole = alloc_array<bool>(wants.count);
    memset(whole, 0, wants.count * sizeof(bool));
    const auto put = [](void* state, uint32 query, const Neighbor* found, uint32 count,
                        const uint64* appended, uint32 appended_count) {
        const auto* sink = static_cast<const PartSink*>(state);
        const uint32 place = sink->block->chosen[query];
        merge_part(*sink->block, place, sink->part, found, count);
        for (uint32 i = 0; i < appended_count; ++i)
            add_appended(sink->block, {place, sink->part, appended[i]});
        sink->whole[query] = true;
    };
    PartSink sink{block, number, whole};
    const bool useful = search_service(batch, wants, {put, &sink});
    for (uint32 i = 0; i < wants.count; ++i)
        block->answered[block->chosen[i]] &= whole[i] || !useful;
    pfree(whole);
    return useful;
}

// For a part whose index the service does not have, or not yet: reads the lists, if that pays and
// the user does not insist on the service.
void give_up_service(const Search& search, Part* part) {
    KnnBatch* batch = part->batch;
    batch->by_service = false;
    const bool by_lists = !insists_on_service() && open_lists(batch, search.found->count) &&
                          (search.part_count == 1 || queries_decide(batch));
    part->way = by_lists ? Way::by_lists : Way::by_scans;
}

// Finds candidates of a part for the chosen queries of a block.
void search_part(const Search& search, Block* block, uint32 number, uint32 chosen,
                 ListRound round) {
    if (chosen == 0) return;
    Part& part = search.parts[number];
    KnnBatch* batch = part.batch;
    for (uint32 i = 0; i < chosen; ++i) {
        form_query(batch, block->queries[block->chosen[i]], block->forms, i);
        block->radii[i] = radius_of(search, *block, block->chosen[i]);
    }
    const auto wanted = [&] {
        ListWants wants = wants_of(batch, block->forms, chosen);
        wants.candidates = block->room;
        wants.radii = block->radii;
        return wants;
    };
    if (part.way == Way::served) {
        if (ask_for_part(batch, block, number, wanted())) return;
        give_up_service(search, &part);
    }
    if (part.way == Way::by_scans) {
        for (uint32 i = 0; i < chosen; ++i) block->answered[block->chosen[i]] = false;
        return;
    }
    const ListWants wants = wanted();
    const auto put = [](void* state, uint32 query, const Neighbor* found, uint32 count) {
        const auto* sink = static_cast<const PartSink*>(state);
        merge_part(*sink->block, sink->block->chosen[query], sink->part, found, count);
    };
    PartSink sink{block, number, nullptr};
    search_lists(batch->lists, wants, {put, &sink}, round);
}

void find_candidates(const Search& search, Block* block, ListRound round) {
    memset(block->counts, 0, block->count * sizeof(uint32));
    std::fill_n(block->answered, block->count, true);
    find_nearest_parts(search, *block);
    for (const bool nearest : {true, false})
        for_each_with_lists(search, [&](uint32 number, const KnnBatch* batch) {
            // A scan compares other queries with all rows.
            const uint32 chosen = choose(*block, [&](uint32 place) {
                return (block->nearest[place] == number) == nearest &&
                       has_codes_for(batch, block->queries[place]);
            });
            search_part(search, block, number, chosen, round);
        });
}

// --- rows

float shift_of(const Search& search, uint32 query) {
    const KnnBatch* first = search.parts[0].batch;
    return code_shift(*search.largest, first->queries + Size{query} * first->index->dims);
}

// The exact distance of the k-th row that was found in any part; infinity: there are fewer.
double kth_distance(const NearestRows& found, uint32 query) {
    return found.counts[query] < found.k ? std::numeric_limits<double>::infinity()
                                         : found.rows[Size{query} * found.k].distance;
}

// Of a query with candidates, by the rows found so far.
double reach_of(const Search& search, uint32 query) {
    const NearestRows& found = *search.found;
    return ranking_reach(
        search.effort, search.largest->metric, found.k, kth_distance(found, query),
        [&](Size i) { return found.rows[Size{query} * found.k + i].distance; },
        shift_of(search, query));
}

// Adds candidates [ranked, worth) of each query, and visits their rows.
void rank_between(const Search& search, const Block& block, const Size* ranked, const Size* worth) {
    for (uint32 place = 0; place < block.count; ++place) {
        const PartCandidate* mine = block.found + Size{place} * block.room;
        for (Size i = ranked[place]; i < worth[place]; ++i)
            // VACUUM may have moved an entry during a walk, which then meets the entry twice; they
            // are sorted by distance, part and TID.
            if (i == 0 || mine[i - 1].tid != mine[i].tid || mine[i - 1].part != mine[i].part)
                add_candidate(search.parts[mine[i].part].batch, block.queries[place], mine[i].tid,
                              true);
    }
    for_each_with_lists(search, [](uint32, KnnBatch* batch) { rank_rows(batch); });
}

// Entries that were appended to lists since the service got them.
void add_appended(const Search& search, const Block& block) {
    for (Size i = 0; i < block.appended_count; ++i) {
        const AppendedEntry& entry = block.appended[i];
        if (!block.answered[entry.place]) continue;
        add_candidate(search.parts[entry.part].batch, block.queries[entry.place], entry.tid, false);
    }
}

// Ranks the candidates of a block, `first` of each query at once. Queries that want more are added
// to `unsure`, to begin anew; if that is null, they are left to scans. So are queries that the
// service did not answer.
void rank_block(const Search& search, const Block& block, Size first, uint32* unsure,
                uint32* unsure_count) {
    Size* ranked = alloc_array<Size>(block.count);
    Size* ends = alloc_array<Size>(block.count);
    for (uint32 place = 0; place < block.count; ++place) {
        ranked[place] = 0;
        ends[place] = block.answered[place] ? std::min<Size>(block.counts[place], first) : 0;
        search.left[block.queries[place]] |= !block.answered[place];
    }
    add_appended(search, block);
    bool more = true;
    while (more) {
        rank_between(search, block, ranked, ends);
        more = false;
        for (uint32 place = 0; place < block.count; ++place) {
            const PartCandidate* mine = block.found + Size{place} * block.room;
            // The query has no candidate, or none in the last portion.
            if (ranked[place] == ends[place]) continue;
            ranked[place] = ends[place];
            const double reach = reach_of(search, block.queries[place]);
            ends[place] = next_portion(ranked[place], block.counts[place], search.limit, reach,
                                       [mine](Size i) { return double{mine[i].distance}; });
            more |= ends[place] > ranked[place];
            if (ranked[place] < block.room || !reaches_beyond(reach, mine[block.room - 1].distance))
                continue;
            const uint32 query = block.queries[place];
            if (unsure) {
                search.found->dropped[query] = 0;
                unsure[(*unsure_count)++] = query;
            } else {
                search.few[query] = true;
            }
        }
    }
}

// Finds the candidates of these queries, with this room for each, and ranks them, block by block.
void search_blocks(const Search& search, const uint32* queries, uint32 count, uint32 room,
                   Size first_ranked, ListRound round, uint32* unsure, uint32* unsure_count) {
    const auto step = static_cast<uint32>(std::clamp<Size>(
        search.memory / bytes_of_query(search, room), 1, std::max<Size>(count, 1)));
    const MemoryContext before = CurrentMemoryContext;
    const MemoryContext context =
        AllocSetContextCreate(before, "knn candidates", ALLOCSET_DEFAULT_SIZES);
    MemoryContextSwitchTo(context);
    for (uint32 first = 0; first < count; first += step) {
        Block block = make_block(search, queries + first, std::min(step, count - first), room);
        find_candidates(search, &block, round);
        rank_block(search, block, first_ranked, unsure, unsure_count);
        MemoryContextReset(context);
    }
    MemoryContextSwitchTo(before);
    MemoryContextDelete(context);
}

// Whether the k nearest rows of a query are among those that it was searched for. Candidates
// without a wanted row may all be nearer than those that have one.
bool has_enough(const Search& search, uint32 query) {
    const Size visited = Size{search.found->k} + search.found->dropped[query];
    return search.found->counts[query] >= search.found->k &&
           (settings.probes > 0 || static_cast<double>(visited) <= tolerated_spread(search.limit));
}

void search_lists_of_parts(const Search& search) {
    constexpr Size times = 4;
    const Size kept = std::max<Size>(kept_candidates(search.effort), search.limit);
    const auto room = static_cast<uint32>(std::min<Size>(kept, max_list_k));
    const auto more = static_cast<uint32>(std::min<Size>(times * kept, max_list_k));
    uint32* queries = alloc_array<uint32>(search.found->count);
    uint32* unsure = alloc_array<uint32>(search.found->count);
    uint32 unsure_count = 0;
    for (uint32 i = 0; i < search.found->count; ++i) queries[i] = i;
    const Size first = search.effort.by_error ? search.limit : search.effort.candidates;
    search_blocks(search, queries, search.found->count, room, first, ListRound::first,
                  more > room ? unsure : nullptr, &unsure_count);
    search.found->again = unsure_count > 0;
    // They rank at once what they have ranked before, which tells how many have no row.
    search_blocks(search, unsure, unsure_count, more, room, ListRound::more, nullptr, nullptr);
    search.found->again = false;
    // Before pending rows are ranked: these say nothing of rows in lists.
    for (uint32 query = 0; query < search.found->count; ++query)
        search.few[query] |= !has_enough(search, query);
}

// Finds the rows of a query that are still missing.
void scan_parts(const Search& search, uint32 query) {
    for (uint32 i = 0; i < search.part_count; ++i) {
        const Part& part = search.parts[i];
        KnnBatch* batch = part.batch;
        if (part.way == Way::all_rows) continue;
        const bool left =
            !has_candidates(part) || search.left[query] || !has_codes_for(batch, query);
        if (!left && !search.few[query]) continue;
        batch->few[query] = true;
        // Where rows are checked, the caller's scan goes on.
        if (!batch->index->check.passes && (left || scans_go_on(batch))) scan_for(batch, query);
    }
}

// Ranks rows that are compared with all queries: all, or those that are pending.
void rank_for_all_queries(const Part& part) {
    KnnBatch* batch = part.batch;
    if (batch->pending.tids && part.way != Way::by_scans) rank_for_all(batch, batch->pending.tids);
}

void find_rows(const Search& search) {
    if (std::any_of(search.parts, search.parts + search.part_count, has_candidates))
        search_lists_of_parts(search);
    for (uint32 i = 0; i < search.part_count; ++i) rank_for_all_queries(search.parts[i]);
    for (uint32 query = 0; query < search.found->count; ++query) {
        CHECK_FOR_INTERRUPTS();
        scan_parts(search, query);
    }
}

// --- by SQL queries

void search_by_query(KnnBatch* batch, const KnnValues& equal) {
    const KnnIndex& index = *batch->index;
    NearestRows* found = batch->found;
    for (uint32 i = 0; i < found->count; ++i) {
        CHECK_FOR_INTERRUPTS();
        const Size first = Size{i} * static_cast<Size>(index.equal_count);
        found->counts[i] = run_knn_query(batch->query, batch->queries + Size{i} * index.dims,
                                         {equal.values + first, equal.nulls + first},
                                         found->rows + Size{i} * found->k);
    }
}

// --- parts

Way way_of(KnnBatch* batch, uint32 queries) {
    if (batch->query) return Way::by_queries;
    if (batch->exact || batch->meta.lists == 0) return Way::all_rows;
    batch->by_service = asks_service(batch, queries);
    if (batch->by_service) return Way::served;
    return open_lists(batch, queries) ? Way::by_lists : Way::by_scans;
}

// Whether candidates of all parts can be ranked in one order, for one number of rows.
bool are_comparable(const Part* parts, int count) {
    if (count == 1) return true;
    if (settings.probes > 0 || settings.candidates > 0) return false;
    const MetaPage* first = nullptr;
    for (int i = 0; i < count; ++i) {
        const KnnBatch* batch = parts[i].batch;
        if (parts[i].way == Way::by_queries) return false;
        if (!has_candidates(parts[i])) continue;
        if (!queries_decide(batch) || (first && !has_like_codes(*first, batch->meta))) return false;
        first = &batch->meta;
    }
    return true;
}

void search_as_one(Part* parts, int count, NearestRows* found) {
    begin_parts(found);
    Search search = {};
    search.found = found;
    search.parts = parts;
    search.part_count = static_cast<uint32>(count);
    search.limit = parts[0].batch->limit;
    search.memory = parts[0].batch->memory.queries;
    search.few = static_cast<bool*>(palloc0(found->count * sizeof(bool)));
    search.left = static_cast<bool*>(palloc0(found->count * sizeof(bool)));
    for_each_with_lists(search, [&](uint32, const KnnBatch* batch) {
        if (search.largest && measured_rows(*search.largest) >= measured_rows(batch->meta)) return;
        search.largest = &batch->meta;
        search.effort = batch->effort;
    });
    find_rows(search);
}

}  // namespace

void search_batches(KnnBatch* const* batches, int count, const float* queries, NearestRows* found,
                    const KnnValues& equal) {
    const MemoryContext before = CurrentMemoryContext;
    const MemoryContext context =
        AllocSetContextCreate(before, "knn search", ALLOCSET_DEFAULT_SIZES);
    MemoryContextSwitchTo(context);
    Part* parts = alloc_array<Part>(static_cast<Size>(count));
    for (int i = 0; i < count; ++i) {
        parts[i] = {batches[i], way_of(batches[i], found->count)};
        begin_search(batches[i], queries, found);
        for (uint32 query = 0; query < found->count && !batches[i]->query; ++query)
            pgstat_count_index_scan(batches[i]->index->index);
    }
    const int at_once = are_comparable(parts, count) ? count : 1;
    for (int first = 0; first < count; first += at_once) {
        if (parts[first].way == Way::by_queries)
            search_by_query(batches[first], equal);
        else
            search_as_one(parts + first, at_once, found);
        for (int i = first; i < first + at_once; ++i) {
            if (parts[i].way != Way::by_queries) check_batch_snapshot(batches[i]);
            end_search(batches[i]);
        }
    }
    MemoryContextSwitchTo(before);
    MemoryContextDelete(context);
}

namespace {

void rank_places(KnnBatch* batch, const FoundPlaces& near) {
    for (uint32 query = 0; query < batch->found->count; ++query)
        for (uint32 i = 0; i < near.found[query]; ++i) {
            const uint64 place = near.places[Size{query} * near.most + i];
            if (leaf_of_place(place) == batch->index->part)
                add_candidate(batch, query, tid_of_place(place), true);
        }
    RootFinder roots{batch->index->heap};
    batch->roots = &roots;
    rank_rows(batch);
    batch->roots = nullptr;
    end_root_finder(&roots);
}

}  // namespace

void rank_batch(KnnBatch* batch, const float* queries, const FoundPlaces& near,
                NearestRows* found) {
    const MemoryContext before = CurrentMemoryContext;
    begin_search(batch, queries, found);
    begin_parts(found);
    for (uint32 i = 0; i < found->count; ++i) pgstat_count_index_scan(batch->index->index);
    MemoryContextSwitchTo(batch->batch_context);
    rank_places(batch, near);
    // Cannot happen under one snapshot; a guard.
    for (uint32 i = 0; i < found->count; ++i)
        if (found->dropped[i] > 0) scan_for(batch, i);
    end_search(batch);
    MemoryContextSwitchTo(before);
}

}  // namespace pgwarp
