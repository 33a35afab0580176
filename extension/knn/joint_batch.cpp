#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/list_effort.h"
#include "extension/index/model.h"
#include "extension/knn/batch_state.h"
#include "extension/knn/joint_batch.h"
#include "extension/settings.h"

extern "C" {
#include "miscadmin.h"
#include "pgstat.h"
}

namespace pgwarp {

namespace {

struct Part {
    KnnBatch* batch;
    bool has_lists;  // else all its rows are pending
    // Of the k nearest rows, those for which it is searched, and the most that it may have without
    // another search.
    uint32 rows;
    uint32 most_rows;
    Effort effort;        // for these rows
    uint32 candidates;    // that its first search keeps
    double list_entries;  // of a list, the mean
    uint32 first_lists;   // that a query takes however far they are
};

// A candidate of any part.
struct JointCandidate {
    float distance;  // by code
    uint32 part;
    uint64 tid;

    friend bool operator<(const JointCandidate& a, const JointCandidate& b) {
        if (a.distance != b.distance) return a.distance < b.distance;
        return a.part < b.part || (a.part == b.part && a.tid < b.tid);
    }
};

struct JointBatch {
    Part* parts;
    uint32 part_count;
    uint32 k;
    uint32 count;  // of queries
    // For k rows, by the largest index:
    Size least;  // candidates that are ranked
    uint32 most;
    double margin;
    uint32 more;  // the most candidates of a query all of whose own are within its margin
    Size memory;  // of a block
    uint32 wider_k;
    // Whether reaches are looked for, and whether queries take no more lists than these: by how
    // many they would take otherwise.
    bool by_reach;
    bool limited;
    double reached;
    double otherwise;
};

// What a query has of a part.
enum class Searched : uint8 { for_share, for_all, again };

// Queries whose candidates are in memory.
struct Block {
    const uint32* queries;  // (count): numbers in the batch
    uint32 count;
    uint32 room;             // for candidates of a query
    JointCandidate* found;   // (count)(room), nearest first
    uint32* counts;          // (count)
    JointCandidate* merged;  // (room)
    float* forms;            // (count)(code_dims)
    uint32* chosen;          // (count), places of queries that a part is searched for
    Searched* searched;      // (count)(parts)
    float* terms;            // (count)(parts): of the nearest list
    uint32* probes;          // (count)
};

Size bytes_of_query(const JointBatch& joint, uint32 room) {
    const Size dims = joint.parts[0].batch->index->dims;
    return room * (sizeof(JointCandidate) + 2 * sizeof(CandidateRow)) + 2 * dims * sizeof(float) +
           joint.part_count * (sizeof(Searched) + sizeof(float)) + 5 * sizeof(uint32);
}

Block make_block(const JointBatch& joint, const uint32* queries, uint32 count, uint32 room) {
    Size dims = 0;
    for (uint32 i = 0; i < joint.part_count; ++i)
        dims = std::max<Size>(dims, joint.parts[i].batch->meta.code_dims);
    return {queries,
            count,
            room,
            alloc_array<JointCandidate>(Size{count} * room),
            alloc_array<uint32>(count),
            alloc_array<JointCandidate>(room),
            alloc_array<float>(count * dims),
            alloc_array<uint32>(count),
            alloc_array<Searched>(Size{count} * joint.part_count),
            alloc_array<float>(Size{count} * joint.part_count),
            alloc_array<uint32>(count)};
}

void free_block(const Block& block) {
    pfree(block.found);
    pfree(block.counts);
    pfree(block.merged);
    pfree(block.forms);
    pfree(block.chosen);
    pfree(block.searched);
    pfree(block.terms);
    pfree(block.probes);
}

// --- candidates

void drop_part(const Block& block, uint32 place, uint32 part) {
    JointCandidate* mine = block.found + Size{place} * block.room;
    const JointCandidate* end =
        std::remove_if(mine, mine + block.counts[place],
                       [part](const JointCandidate& candidate) { return candidate.part == part; });
    block.counts[place] = static_cast<uint32>(end - mine);
}

void merge_part(const Block& block, uint32 place, uint32 part, const Neighbor* found,
                uint32 count) {
    JointCandidate* mine = block.found + Size{place} * block.room;
    const uint32 before = block.counts[place];
    if (count == 0 || (before == block.room && found[0].distance > mine[before - 1].distance))
        return;
    uint32 old = 0, added = 0, merged = 0;
    while (merged < block.room && (old < before || added < count)) {
        const JointCandidate next = {added < count ? found[added].distance : 0, part,
                                     added < count ? found[added].id : 0};
        const bool takes_old = old < before && (added == count || mine[old] < next);
        block.merged[merged++] = takes_old ? mine[old++] : next;
        if (!takes_old) ++added;
    }
    memcpy(mine, block.merged, merged * sizeof(JointCandidate));
    block.counts[place] = merged;
}

struct PartSink {
    const Block* block;
    uint32 part;
};

// What a search of a part is for.
struct PartSearch {
    const Effort& effort;
    uint32 k;
    uint32 candidates;
    ListRound round;
    bool by_reach = false;
};
PartSearch for_all_rows(const JointBatch& joint, const Part& part, uint32 candidates) {
    return {part.batch->own_effort, joint.k, candidates, ListRound::more};
}

Searched& searched_of(const JointBatch& joint, const Block& block, uint32 place, uint32 part) {
    return block.searched[Size{place} * joint.part_count + part];
}

// The queries of a block of which this is true are chosen; returns their number.
template <typename Wanted>
uint32 choose(const Block& block, Wanted&& wanted) {
    uint32 chosen = 0;
    for (uint32 place = 0; place < block.count; ++place)
        if (wanted(place)) block.chosen[chosen++] = place;
    return chosen;
}

// --- the reach of a query
//
// Where rows are partitioned by what is near, most partitions have none of the nearest rows. A
// query is searched for in the partition of its nearest list first, whose candidates tell its
// radius. Of other partitions it takes no more lists than score low enough by that radius (see
// kernels/list_effort.h), and the few that any search begins with.

void find_nearest_lists(const JointBatch& joint, const Block& block) {
    for (uint32 i = 0; i < joint.part_count; ++i) {
        const Part& part = joint.parts[i];
        for (uint32 place = 0; place < block.count && part.has_lists; ++place) {
            form_query(part.batch, block.queries[place], block.forms, 0);
            block.terms[Size{place} * joint.part_count + i] =
                nearest_list(part.batch->lists, block.forms);
        }
    }
}

// The radius that a query has by what it has found so far; infinity: none.
float radius_of(const JointBatch& joint, const Block& block, uint32 place) {
    // Thresholds were measured with radii of few entries, which are greater than those of all, most
    // of all where few rows are wanted.
    const uint32 k = 2 * joint.k + 2;
    const JointCandidate* mine = block.found + Size{place} * block.room;
    const uint32 count = block.counts[place];
    if (count < std::max(k, joint.wider_k)) return std::numeric_limits<float>::infinity();
    const float kth = mine[k - 1].distance;
    return joint.wider_k > k ? wider_radius(kth, mine[joint.wider_k - 1].distance) : kth;
}

// How many lists of a part a query takes by the radius that it has.
uint32 lists_in_reach(const JointBatch& joint, const Block& block, uint32 place, const Part& part,
                      const float* form) {
    const float radius = radius_of(joint, block, place);
    if (!(radius > 0) || std::isinf(radius)) return part.batch->meta.lists;
    return lists_within(part.batch->lists, form, radius, part.effort.threshold,
                        std::max(part.first_lists, part.effort.first_lists), part.list_entries);
}

// Searches the lists of a part for the chosen queries of a block. What they have of it is replaced.
void search_part(JointBatch* joint, const Block& block, uint32 number, uint32 chosen,
                 const PartSearch& search) {
    if (chosen == 0) return;
    const Part& part = joint->parts[number];
    for (uint32 i = 0; i < chosen; ++i)
        form_query(part.batch, block.queries[block.chosen[i]], block.forms, i);
    ListWants wants = wants_by_query(part.batch, search.effort, search.k, block.forms, chosen);
    wants.candidates = search.candidates;
    if (search.by_reach) {
        for (uint32 i = 0; i < chosen; ++i) {
            const float* form = block.forms + Size{i} * part.batch->meta.code_dims;
            const uint32 lists = lists_in_reach(*joint, block, block.chosen[i], part, form);
            block.probes[i] = std::min(lists, wants.probes);
            joint->reached += std::min(lists, part.effort.probes);
            joint->otherwise += part.effort.probes;
        }
        if (joint->limited) wants.own_probes = block.probes;
    }
    const auto put = [](void* state, uint32 query, const Neighbor* found, uint32 count) {
        const auto* sink = static_cast<const PartSink*>(state);
        const uint32 place = sink->block->chosen[query];
        drop_part(*sink->block, place, sink->part);
        merge_part(*sink->block, place, sink->part, found, count);
    };
    PartSink sink{&block, number};
    search_lists(part.batch->lists, wants, {nullptr, &sink, nullptr, put}, search.round);
}

void search_nearest_parts(JointBatch* joint, const Block& block) {
    for (uint32 place = 0; place < block.count; ++place) {
        const float* terms = block.terms + Size{place} * joint->part_count;
        uint32 nearest = joint->part_count;
        for (uint32 i = 0; i < joint->part_count; ++i)
            if (joint->parts[i].has_lists &&
                (nearest == joint->part_count || terms[i] < terms[nearest]))
                nearest = i;
        searched_of(*joint, block, place, nearest) = Searched::for_all;
    }
    for (uint32 i = 0; i < joint->part_count; ++i)
        search_part(joint, block, i,
                    choose(block,
                           [&](uint32 place) {
                               return searched_of(*joint, block, place, i) == Searched::for_all;
                           }),
                    for_all_rows(*joint, joint->parts[i], joint->most));
}

Size worth_ranking(const JointBatch& joint, const Block& block, uint32 place) {
    const JointCandidate* mine = block.found + Size{place} * block.room;
    return count_worth_ranking(block.counts[place], joint.least, joint.k, joint.margin,
                               [mine](Size i) { return double{mine[i].distance}; });
}

// Marks the parts that may have more of the query's nearest rows than their search was for.
// `tally`: (parts), for the nearest of the query's candidates, and for all that are ranked.
struct Tally {
    uint32 near;
    uint32 ranked;
};
void mark_parts(const JointBatch& joint, const Block& block, uint32 place, Tally* tally) {
    const JointCandidate* mine = block.found + Size{place} * block.room;
    const Size worth = worth_ranking(joint, block, place);
    std::fill_n(tally, joint.part_count, Tally{});
    for (Size i = 0; i < worth; ++i) {
        tally[mine[i].part].near += i < joint.k;
        ++tally[mine[i].part].ranked;
    }
    for (uint32 i = 0; i < joint.part_count; ++i) {
        const Part& part = joint.parts[i];
        Searched& searched = searched_of(joint, block, place, i);
        // By the reach of a query, what it has elsewhere decides how many lists it takes here.
        const bool all = part.rows == joint.k && part.candidates == joint.most && !joint.limited;
        const bool many = tally[i].near > part.most_rows ||
                          (joint.limited && tally[i].near == std::min<Size>(worth, joint.k));
        if (part.has_lists && !all && searched != Searched::for_all &&
            (worth < joint.k || many || tally[i].ranked >= part.candidates))
            searched = Searched::again;
    }
}

// Finds the candidates of a block, all of them at once.
void find_candidates(JointBatch* joint, const Block& block) {
    memset(block.counts, 0, block.count * sizeof(uint32));
    std::fill_n(block.searched, Size{block.count} * joint->part_count, Searched::for_share);
    if (joint->by_reach) {
        find_nearest_lists(*joint, block);
        search_nearest_parts(joint, block);
    }
    for (uint32 i = 0; i < joint->part_count; ++i) {
        const Part& part = joint->parts[i];
        if (part.has_lists)
            search_part(
                joint, block, i,
                choose(block,
                       [&](uint32 place) {
                           return searched_of(*joint, block, place, i) == Searched::for_share;
                       }),
                {part.effort, part.rows, part.candidates, ListRound::first, joint->by_reach});
    }
    Tally* tally = alloc_array<Tally>(joint->part_count);
    for (uint32 i = 0; i < block.count; ++i) mark_parts(*joint, block, i, tally);
    pfree(tally);
    for (uint32 i = 0; i < joint->part_count; ++i)
        search_part(joint, block, i,
                    choose(block,
                           [&](uint32 place) {
                               return searched_of(*joint, block, place, i) == Searched::again;
                           }),
                    for_all_rows(*joint, joint->parts[i], joint->most));
}

// The same for queries that want more candidates than others: all parts are searched for all rows.
void find_more_candidates(JointBatch* joint, const Block& block) {
    memset(block.counts, 0, block.count * sizeof(uint32));
    for (uint32 i = 0; i < joint->part_count; ++i)
        if (joint->parts[i].has_lists)
            search_part(joint, block, i, choose(block, [](uint32) { return true; }),
                        for_all_rows(*joint, joint->parts[i], block.room));
}

// --- rows

// Ranks the candidates of a block. Queries that want more are left out, and added to `unsure`.
void rank_block(const JointBatch& joint, const Block& block, uint32* unsure, uint32* unsure_count) {
    for (uint32 place = 0; place < block.count; ++place) {
        const Size worth = worth_ranking(joint, block, place);
        if (unsure && worth == block.room && joint.margin > 0 && joint.more > block.room) {
            unsure[(*unsure_count)++] = block.queries[place];
            continue;
        }
        const JointCandidate* mine = block.found + Size{place} * block.room;
        for (Size i = 0; i < worth; ++i) {
            KnnBatch* batch = joint.parts[mine[i].part].batch;
            // It was pending, and has moved to a list since: all queries are offered its row.
            if (!std::binary_search(batch->pending, batch->pending + batch->pending_count,
                                    mine[i].tid))
                add_candidate(batch, block.queries[place], mine[i].tid);
        }
    }
    for (uint32 i = 0; i < joint.part_count; ++i) {
        KnnBatch* batch = joint.parts[i].batch;
        rank_rows(batch, false);
        batch->candidate_count = 0;
    }
}

// A NaN is farther than any other distance.
double comparable(double distance) {
    return std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
}

uint32 found_rows(const JointBatch& joint, uint32 query) {
    uint32 rows = 0;
    for (uint32 i = 0; i < joint.part_count; ++i) rows += joint.parts[i].batch->counts[query];
    return rows;
}

// Keeps the k nearest rows of all parts, and those as far as the last of them.
void keep_nearest(const JointBatch& joint, uint32 query, double* distances) {
    Size count = 0;
    for (uint32 i = 0; i < joint.part_count; ++i) {
        const KnnBatch* batch = joint.parts[i].batch;
        const KnnRow* rows = batch->rows + Size{query} * joint.k;
        for (uint32 r = 0; r < batch->counts[query]; ++r)
            distances[count++] = comparable(rows[r].distance);
    }
    if (count <= joint.k) return;
    std::nth_element(distances, distances + joint.k - 1, distances + count);
    const double kth = distances[joint.k - 1];
    for (uint32 i = 0; i < joint.part_count; ++i) {
        KnnBatch* batch = joint.parts[i].batch;
        KnnRow* rows = batch->rows + Size{query} * joint.k;
        const KnnRow* end =
            std::remove_if(rows, rows + batch->counts[query],
                           [kth](const KnnRow& row) { return comparable(row.distance) > kth; });
        batch->counts[query] = static_cast<uint32>(end - rows);
    }
}

void finish(const JointBatch& joint) {
    // Before pending rows are ranked: these say nothing of rows in lists.
    bool* few = alloc_array<bool>(joint.count);
    for (uint32 query = 0; query < joint.count; ++query)
        few[query] =
            found_rows(joint, query) < joint.k || !has_codes_for(joint.parts[0].batch, query);
    for (uint32 i = 0; i < joint.part_count; ++i)
        if (joint.parts[i].batch->pending_count > 0) rank_rows(joint.parts[i].batch, true);
    double* distances = alloc_array<double>(Size{joint.part_count} * joint.k);
    for (uint32 query = 0; query < joint.count; ++query) {
        CHECK_FOR_INTERRUPTS();
        // Candidates that are not visible, or few entries in the lists.
        if (few[query])
            for (uint32 i = 0; i < joint.part_count; ++i)
                if (joint.parts[i].has_lists) scan_for(joint.parts[i].batch, query);
        keep_nearest(joint, query, distances);
    }
    pfree(distances);
    pfree(few);
}

// --- the plan

bool can_join(const KnnBatch* batch) {
    return !batch->query && !batch->all && !batch->index->check.passes && batch->pending_known &&
           (batch->meta.lists == 0 || batch->own_effort.threshold > 0);
}

bool can_search(KnnBatch* const* batches, int count, uint32 queries) {
    if (count < 2 || settings.probes > 0 || settings.candidates > 0 ||
        settings.iterative_scan == static_cast<int>(IterativeScan::off))
        return false;
    const MetaPage* first = nullptr;
    for (int i = 0; i < count; ++i) {
        const MetaPage& meta = batches[i]->meta;
        if (!can_join(batches[i]) || batches[i]->index->metric != batches[0]->index->metric)
            return false;
        if (meta.lists == 0) continue;
        if (first && !has_like_codes(*first, meta)) return false;
        first = &meta;
    }
    if (!first) return false;
    for (int i = 0; i < count; ++i)
        if (batches[i]->meta.lists > 0 &&
            (!open_lists(batches[i], queries) || !queries_decide(batches[i])))
            return false;
    return true;
}

// What a part is searched for, as one of a plain search of partitions (scan/partitions.cpp).
Part plan_part(KnnBatch* batch, double all_rows) {
    Part part = {batch, batch->meta.lists > 0, 0, 0, {}, 0, 0, 0};
    if (!part.has_lists) return part;
    constexpr double least = 2;
    const double k = batch->k;
    const double entries = first_entries(batch->k, static_cast<uint64>(all_rows));
    const double share = static_cast<double>(batch->meta.rows_at_build) / std::max(all_rows, 1.0);
    part.rows = static_cast<uint32>(std::min(k, std::max(least, std::round(k * share))));
    part.most_rows = static_cast<uint32>(rows_of_part(k, share));
    part.effort = choose_effort(batch->meta, part.rows, visiting_costs(batch->meta), ByQuery::yes);
    if (!(part.effort.threshold > 0)) {
        part.rows = part.most_rows = batch->k;
        part.effort = batch->own_effort;
    }
    part.list_entries =
        std::max(static_cast<double>(batch->meta.rows_at_build) / batch->meta.lists, 1.0);
    part.first_lists = static_cast<uint32>(std::ceil(share * entries / part.list_entries));
    return part;
}

void plan_candidates(JointBatch* joint) {
    const KnnBatch* largest = nullptr;
    double candidates = 0;
    for (uint32 i = 0; i < joint->part_count; ++i) {
        const Part& part = joint->parts[i];
        if (!part.has_lists) continue;
        candidates += part.effort.candidates;
        joint->more = std::max(joint->more, part.batch->more_candidates);
        if (!largest || part.batch->meta.rows_at_build > largest->meta.rows_at_build)
            largest = part.batch;
    }
    // An index of fewer rows needs fewer candidates, as its rows are farther apart: those of all
    // parts together tell how many this many rows need. The k nearest need no more than these.
    constexpr double most_more = 64;
    const Effort& effort = largest->own_effort;
    candidates = std::min(candidates, effort.candidates + most_more);
    joint->least =
        std::max({Size{effort.candidates}, Size{joint->k}, static_cast<Size>(candidates)});
    joint->margin = effort.margin;
    joint->wider_k = effort.wider_k;
    Size most = joint->margin > 0 ? most_ranked_of(joint->least, false, effort.wider_k) : 0;
    most = std::max({most, joint->least, Size{effort.wider_k}});
    joint->most = static_cast<uint32>(std::min<Size>(most, max_list_k));
    for (uint32 i = 0; i < joint->part_count; ++i) {
        // A part that has many of the nearest candidates is searched again.
        constexpr uint32 times = 2;
        constexpr uint32 few = 16;
        Part& part = joint->parts[i];
        const uint32 wanted =
            std::max({times * part.effort.candidates, few, part.rows, part.effort.wider_k});
        part.candidates = std::min(wanted, joint->most);
    }
}

}  // namespace

bool search_jointly(KnnBatch* const* batches, int count, const float* queries, uint32 query_count) {
    if (!can_search(batches, count, query_count)) return false;
    const MemoryContext before = CurrentMemoryContext;
    const MemoryContext context =
        AllocSetContextCreate(before, "knn of partitions", ALLOCSET_DEFAULT_SIZES);
    MemoryContextSwitchTo(context);
    JointBatch joint = {};
    joint.part_count = static_cast<uint32>(count);
    joint.parts = alloc_array<Part>(joint.part_count);
    joint.k = batches[0]->k;
    joint.count = query_count;
    joint.memory = batches[0]->memory.queries;
    double rows = 0;
    for (int i = 0; i < count; ++i)
        if (batches[i]->meta.lists > 0) rows += static_cast<double>(batches[i]->meta.rows_at_build);
    for (int i = 0; i < count; ++i) joint.parts[i] = plan_part(batches[i], rows);
    plan_candidates(&joint);
    for (int i = 0; i < count; ++i) {
        begin_search(batches[i], queries, query_count);
        for (uint32 query = 0; query < query_count; ++query)
            pgstat_count_index_scan(batches[i]->index->index);
    }
    MemoryContextSwitchTo(context);

    uint32* numbers = alloc_array<uint32>(query_count);
    uint32* unsure = alloc_array<uint32>(query_count);
    uint32 unsure_count = 0;
    for (uint32 i = 0; i < query_count; ++i) numbers[i] = i;
    const auto at_once = [&](uint32 room, uint32 all) {
        return static_cast<uint32>(
            std::clamp<Size>(joint.memory / bytes_of_query(joint, room), 1, std::max(all, 1u)));
    };
    // The first ones tell whether reaches save more than they take.
    constexpr uint32 tried = 64;
    constexpr double most_reached = 0.55;
    const uint32 step = at_once(joint.most, query_count);
    joint.by_reach = true;
    for (uint32 first = 0; first < query_count;) {
        const uint32 here =
            std::min(first == 0 ? std::min(step, tried) : step, query_count - first);
        const Block block = make_block(joint, numbers + first, here, joint.most);
        find_candidates(&joint, block);
        rank_block(joint, block, unsure, &unsure_count);
        free_block(block);
        joint.by_reach &= joint.reached <= most_reached * joint.otherwise;
        joint.limited = joint.by_reach;
        first += here;
    }
    const uint32 more_step = at_once(joint.more, unsure_count);
    for (uint32 first = 0; first < unsure_count; first += more_step) {
        const Block block = make_block(joint, unsure + first,
                                       std::min(more_step, unsure_count - first), joint.more);
        find_more_candidates(&joint, block);
        rank_block(joint, block, nullptr, nullptr);
        free_block(block);
    }
    finish(joint);
    for (int i = 0; i < count; ++i) {
        check_batch_snapshot(batches[i]);
        sort_batch(batches[i]);
        end_search(batches[i]);
    }
    MemoryContextSwitchTo(before);
    MemoryContextDelete(context);
    return true;
}

}  // namespace pgwarp
