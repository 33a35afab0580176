#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

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
    uint32 count;   // of queries
    Effort effort;  // for k rows, by the largest index
    uint32 kept;    // candidates of a query
    uint32 more;    // the same of a query all of whose own are within the reach of codes
    Size memory;    // of a block
};

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
    float* radii;            // (count), of these
    uint32* nearest;         // (count): the part of the query's nearest list
};

Size bytes_of_query(const JointBatch& joint, uint32 room) {
    const Size dims = joint.parts[0].batch->index->dims;
    return room * (sizeof(JointCandidate) + 2 * sizeof(CandidateRow)) + 2 * dims * sizeof(float) +
           5 * sizeof(uint32);
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
            alloc_array<float>(count),
            alloc_array<uint32>(count)};
}

void free_block(const Block& block) {
    pfree(block.found);
    pfree(block.counts);
    pfree(block.merged);
    pfree(block.forms);
    pfree(block.chosen);
    pfree(block.radii);
    pfree(block.nearest);
}

// --- candidates

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

// The queries of a block of which this is true are chosen; returns their number.
template <typename Wanted>
uint32 choose(const Block& block, Wanted&& wanted) {
    uint32 chosen = 0;
    for (uint32 place = 0; place < block.count; ++place)
        if (wanted(place)) block.chosen[chosen++] = place;
    return chosen;
}

void find_nearest_parts(const JointBatch& joint, const Block& block) {
    float* least = block.radii;
    std::fill_n(block.nearest, block.count, joint.part_count);
    for (uint32 i = 0; i < joint.part_count; ++i) {
        const Part& part = joint.parts[i];
        for (uint32 place = 0; place < block.count && part.has_lists; ++place) {
            form_query(part.batch, block.queries[place], block.forms, 0);
            const float term = nearest_list(part.batch->lists, block.forms);
            if (block.nearest[place] < joint.part_count && !(term < least[place])) continue;
            block.nearest[place] = i;
            least[place] = term;
        }
    }
}

// The radius that a query has by what it has found so far; infinity: none.
float radius_of(const JointBatch& joint, const Block& block, uint32 place) {
    return block.counts[place] < joint.k
               ? std::numeric_limits<float>::infinity()
               : block.found[Size{place} * block.room + joint.k - 1].distance;
}

// Searches the lists of a part for the chosen queries of a block.
void search_part(const JointBatch& joint, const Block& block, uint32 number, uint32 chosen,
                 ListRound round) {
    if (chosen == 0) return;
    const Part& part = joint.parts[number];
    for (uint32 i = 0; i < chosen; ++i) {
        form_query(part.batch, block.queries[block.chosen[i]], block.forms, i);
        block.radii[i] = radius_of(joint, block, block.chosen[i]);
    }
    ListWants wants = wants_of(part.batch, block.forms, chosen);
    wants.candidates = block.room;
    wants.radii = block.radii;
    const auto put = [](void* state, uint32 query, const Neighbor* found, uint32 count) {
        const auto* sink = static_cast<const PartSink*>(state);
        merge_part(*sink->block, sink->block->chosen[query], sink->part, found, count);
    };
    PartSink sink{&block, number};
    search_lists(part.batch->lists, wants, {nullptr, &sink, nullptr, put}, round);
}

Size worth_ranking(const JointBatch& joint, const Block& block, uint32 place) {
    const JointCandidate* mine = block.found + Size{place} * block.room;
    const KnnBatch* first = joint.parts[0].batch;
    const double shift =
        code_shift(first->meta, first->queries + Size{block.queries[place]} * first->index->dims);
    return count_worth_ranking(block.counts[place], joint.k, joint.effort,
                               [=](Size i) { return double{mine[i].distance} + shift; });
}

// Finds the candidates of a block: in the part of each query's nearest list first, which tells how
// far it has to look into the others.
void find_candidates(const JointBatch& joint, const Block& block, ListRound round) {
    memset(block.counts, 0, block.count * sizeof(uint32));
    find_nearest_parts(joint, block);
    for (const bool nearest : {true, false})
        for (uint32 i = 0; i < joint.part_count; ++i)
            if (joint.parts[i].has_lists)
                search_part(
                    joint, block, i,
                    choose(block,
                           [&](uint32 place) { return (block.nearest[place] == i) == nearest; }),
                    round);
}

// --- rows

// Ranks the candidates of a block. Queries that want more are left out, and added to `unsure`.
void rank_block(const JointBatch& joint, const Block& block, uint32* unsure, uint32* unsure_count) {
    for (uint32 place = 0; place < block.count; ++place) {
        const Size worth = worth_ranking(joint, block, place);
        if (unsure && worth == block.room && joint.more > block.room) {
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

// Whether the k nearest rows of a query are among those that it was searched for.
bool has_enough(const JointBatch& joint, uint32 query) {
    double rows = 0, visited = 0, passed = 0;
    for (uint32 i = 0; i < joint.part_count; ++i) {
        const KnnBatch* batch = joint.parts[i].batch;
        rows += batch->counts[query];
        visited += batch->visited[query];
        passed += batch->passed[query];
    }
    return rows >= joint.k && joint.k * visited <= tolerated_spread(joint.k) * passed;
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
        few[query] = !has_enough(joint, query) || !has_codes_for(joint.parts[0].batch, query);
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
           (batch->meta.lists == 0 || batch->effort.threshold > 0);
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

void plan_candidates(JointBatch* joint) {
    const KnnBatch* largest = nullptr;
    for (uint32 i = 0; i < joint->part_count; ++i) {
        const Part& part = joint->parts[i];
        if (part.has_lists &&
            (!largest || part.batch->meta.rows_at_build > largest->meta.rows_at_build))
            largest = part.batch;
    }
    constexpr Size times = 4;
    joint->effort = largest->effort;
    const Size kept = std::max<Size>(kept_candidates(joint->effort), joint->k);
    joint->kept = static_cast<uint32>(std::min<Size>(kept, max_list_k));
    joint->more = static_cast<uint32>(std::min<Size>(times * kept, max_list_k));
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
    for (int i = 0; i < count; ++i) joint.parts[i] = {batches[i], batches[i]->meta.lists > 0};
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
    const uint32 step = at_once(joint.kept, query_count);
    for (uint32 first = 0; first < query_count; first += step) {
        const Block block =
            make_block(joint, numbers + first, std::min(step, query_count - first), joint.kept);
        find_candidates(joint, block, ListRound::first);
        rank_block(joint, block, unsure, &unsure_count);
        free_block(block);
    }
    const uint32 more_step = at_once(joint.more, unsure_count);
    for (uint32 first = 0; first < unsure_count; first += more_step) {
        const Block block = make_block(joint, unsure + first,
                                       std::min(more_step, unsure_count - first), joint.more);
        find_candidates(joint, block, ListRound::more);
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
