// A few queries look at a sample of every list. For each query, the sampled entries are sorted by
// distance by code, and each stands for its share of its list. So the k nearest entries are known
// roughly, for any k that is more than a few times what an entry stands for, and so are the lists
// that have them. A scan with conditions ends where these thin out (scan/widening.h).

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/list_scan.h"
#include "kernels/nibble_scan.h"
#include "extension/build/spread.h"
#include "extension/index/model.h"
#include "extension/index/page.h"
#include "extension/index/place.h"
#include "extension/util/stopwatch.h"

extern "C" {
#include "miscadmin.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

constexpr uint32 most_queries = 16;
// Bytes of the queries' tables; a single one may be larger.
constexpr Size most_bytes = 8 << 20;
// Distances to compute in all; a list gets at least a few.
constexpr uint32 all_distances = 1 << 18;
constexpr uint32 least_sampled = 2;
// The share of the k nearest rows that may be missed: the default target's.
constexpr double missed = 0.05;

struct SpreadQuery {
    float* table;   // (m)(256)
    float* terms;   // (lists)
    uint32* ranks;  // (lists): by distance from the query
};

SpreadQuery rank_lists(Relation index, const MetaPage& meta, const float* vector) {
    SpreadQuery query;
    query.terms = static_cast<float*>(palloc(meta.lists * sizeof(float)));
    query.ranks = static_cast<uint32*>(palloc(meta.lists * sizeof(uint32)));
    query.table = static_cast<float*>(palloc(Size{meta.m} * codewords * sizeof(float)));
    read_list_terms(index, meta, vector, query.terms);
    uint32* order = static_cast<uint32*>(palloc(meta.lists * sizeof(uint32)));
    for (uint32 i = 0; i < meta.lists; ++i) order[i] = i;
    const float* terms = query.terms;
    std::sort(order, order + meta.lists, [terms](uint32 a, uint32 b) {
        return terms[a] < terms[b] || (terms[a] == terms[b] && a < b);
    });
    for (uint32 i = 0; i < meta.lists; ++i) query.ranks[order[i]] = i;
    pfree(order);
    if (meta.bits == 4) {
        float* halves = static_cast<float*>(palloc(table_floats(meta) * sizeof(float)));
        read_table(index, meta, vector, halves);
        pair_nibble_table(halves, meta.m, query.table);
        pfree(halves);
    } else {
        read_table(index, meta, vector, query.table);
    }
    return query;
}

struct EntrySample {
    uint32 of_list;  // entries to take from a list
    Size room;
    Size count;
    uint32* lists;     // (room)
    float* weights;    // (room): entries that each stands for
    float* distances;  // (queries)(room), by code
    uint32* order;     // (room), for sorting
};

EntrySample new_sample(const MetaPage& meta, uint32 queries, uint32 capacity) {
    EntrySample sample = {};
    sample.of_list = std::clamp(all_distances / queries / meta.lists, least_sampled,
                                std::max(least_sampled, capacity));
    sample.room = Size{meta.lists} * sample.of_list;
    const auto alloc = [](Size bytes) {
        return MemoryContextAllocHuge(CurrentMemoryContext, bytes);
    };
    sample.lists = static_cast<uint32*>(alloc(sample.room * sizeof(uint32)));
    sample.weights = static_cast<float*>(alloc(sample.room * sizeof(float)));
    sample.distances = static_cast<float*>(alloc(queries * sample.room * sizeof(float)));
    sample.order = static_cast<uint32*>(alloc(sample.room * sizeof(uint32)));
    return sample;
}

// Adds a part of the list's first page.
void sample_list(Relation index, const MetaPage& meta, uint32 list, const SpreadQuery* queries,
                 uint32 query_count, EntrySample* sample) {
    const EntryLayout layout = layout_of(meta, list);
    const ListPlace place = read_place(index, meta, list);
    Buffer buffer;
    if (place.head == InvalidBlockNumber ||
        !read_list_page(index, place.head, list, layout, BUFFER_LOCK_SHARE, &buffer))
        return;
    const Page page = BufferGetPage(buffer);
    const uint32 entries = page_tail(page)->count;
    const uint32 taken = std::min(entries, sample->of_list);
    // All pages of a list are full except the last.
    const double in_list = place.pages > 1 ? (place.pages - 0.5) * layout.capacity : entries;
    float distances[max_page_entries + 8];
    for (uint32 q = 0; q < query_count; ++q) {
        scan_codes(queries[q].table, layout.m,
                   {page_codes(page), layout.capacity, taken, page_offsets(page, layout)},
                   queries[q].terms[list], distances);
        for (uint32 i = 0; i < taken; ++i)
            sample->distances[q * sample->room + sample->count + i] =
                std::isnan(distances[i]) ? std::numeric_limits<float>::infinity() : distances[i];
    }
    UnlockReleaseBuffer(buffer);
    for (uint32 i = 0; i < taken; ++i) {
        sample->lists[sample->count] = list;
        sample->weights[sample->count++] = static_cast<float>(in_list / taken);
    }
}

struct RankedEntry {
    uint32 rank;  // of its list
    float weight;
};

// The lists at which a scan ends that wants the k nearest entries. It begins with `start` lists and
// doubles them until few of these entries are left, as it sees it (covers() in scan/widening.h). At
// first it takes farther entries for the k nearest. `nearest_first` are all entries of the sample.
uint32 final_lists(const RankedEntry* nearest_first, Size count, double k, uint32 lists,
                   double start) {
    constexpr double slowest = 0.9;
    for (double end = start; end < lists; end *= 2) {
        double all = 0;
        double last = 0;
        double before = 0;
        for (Size i = 0; i < count && all < k; ++i) {
            const RankedEntry& entry = nearest_first[i];
            if (entry.rank >= end) continue;
            all += entry.weight;
            if (entry.rank >= end / 2)
                last += entry.weight;
            else if (entry.rank >= end / 4)
                before += entry.weight;
        }
        if (all < k) continue;
        const double rate = std::min(slowest, last / std::max(before, 1.0));
        const double left = std::max(last, 0.5) * rate / (1 - rate);
        if (left <= missed * (all + left)) return static_cast<uint32>(end);
    }
    return lists;
}

ListSpread measure_in_context(Relation index, const MetaPage& meta, const CurveQuery* queries,
                              uint32 count) {
    SpreadQuery ranked[most_queries];
    for (uint32 i = 0; i < count; ++i) ranked[i] = rank_lists(index, meta, queries[i].vector);
    EntrySample sample = new_sample(meta, count, layout_of(meta, 0).capacity);
    for (uint32 list = 0; list < meta.lists; ++list) {
        CHECK_FOR_INTERRUPTS();
        sample_list(index, meta, list, ranked, count, &sample);
    }
    auto* nearest_first = static_cast<RankedEntry*>(
        MemoryContextAllocHuge(CurrentMemoryContext, sample.room * sizeof(RankedEntry)));
    double sums[ListSpread::steps] = {};
    for (uint32 q = 0; q < count; ++q) {
        CHECK_FOR_INTERRUPTS();
        const float* distances = sample.distances + q * sample.room;
        for (Size i = 0; i < sample.count; ++i) sample.order[i] = static_cast<uint32>(i);
        std::sort(sample.order, sample.order + sample.count, [distances](uint32 a, uint32 b) {
            return distances[a] < distances[b] || (distances[a] == distances[b] && a < b);
        });
        for (Size i = 0; i < sample.count; ++i) {
            const uint32 entry = sample.order[i];
            nearest_first[i] = {ranked[q].ranks[sample.lists[entry]], sample.weights[entry]};
        }
        // Where the doubling begins, and so where it ends, differs from query to query.
        const double start = 2 * std::exp2(static_cast<double>(q) / count);
        for (int step = 0; step < ListSpread::steps; ++step)
            if (ListSpread::k_values[step] < meta.rows_at_build)
                sums[step] += final_lists(nearest_first, sample.count, ListSpread::k_values[step],
                                          meta.lists, start);
    }
    ListSpread spread = {};
    for (int step = 0; step < ListSpread::steps; ++step)
        spread.lists[step] = static_cast<uint32>(std::llround(sums[step] / count));
    return spread;
}

}  // namespace

ListSpread measure_spread(Relation index, const MetaPage& meta, const CurveQuery* queries,
                          uint32 count) {
    if (count == 0 || meta.rows_at_build <= ListSpread::k_values[0]) return {};
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq spread", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);
    Stopwatch watch;
    const Size fitting = most_bytes / (Size{meta.m} * codewords * sizeof(float));
    const auto used = static_cast<uint32>(std::clamp<Size>(fitting, 1, most_queries));
    const ListSpread spread = measure_in_context(index, meta, queries, std::min(count, used));
    MemoryContextSwitchTo(before);
    MemoryContextDelete(context);
    ereport(DEBUG1, (errmsg_internal("the nearest 1,000 rows take %u of %u lists, 3,000 take %u, "
                                     "10,000 take %u, 100,000 take %u: %.3f s to measure",
                                     spread.lists[0], meta.lists, spread.lists[1], spread.lists[2],
                                     spread.lists[4], watch.lap())));
    return spread;
}

}  // namespace pgwarp
