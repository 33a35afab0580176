#include "kernels/cuda/lists/list_search.h"

#include "kernels/cuda/lists/bins.h"
#include "kernels/cuda/lists/coarse_tiles.h"
#include "kernels/cuda/lists/limit_lists.h"
#include "kernels/cuda/lists/probes.h"
#include "kernels/cuda/lists/scan_lists.h"
#include "kernels/cuda/lists/scan_filtered.h"
#include "kernels/cuda/lists/scan_queries.h"
#include "kernels/cuda/lists/tables.h"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

// From this number of queries on, building tables takes longer than launching a kernel for it.
constexpr uint32_t least_apart = 16;

template <typename T>
T* place(const ListSearchSpace& space, const Slice& slice) {
    return slice.bytes == 0 ? nullptr : reinterpret_cast<T*>(space.scratch.data() + slice.at);
}

// The queries [first, first + count) of the request.
QueryView part_of(const SearchRequest& r, const ListSearchSpace& space, const SearchPlan& plan,
                  uint32_t first, uint32_t count) {
    QueryView queries{};
    queries.count = count;
    queries.probes = r.shape.probes;
    queries.k = r.shape.k;
    queries.vectors = r.vectors + size_t{first} * r.shape.dims;
    queries.wanted = r.wanted + first;
    queries.coarse_stride = padded_rows(r.shape.lists);
    queries.probed = place<uint32_t>(space, plan.probed);
    queries.terms = place<float>(space, plan.terms);
    queries.tile_starts = place<uint32_t>(space, plan.tile_starts);
    queries.entry_starts = place<uint32_t>(space, plan.entry_starts);
    queries.stores = r.stores ? r.stores + first : nullptr;
    return queries;
}

// What filters the queries of which `first` is the first.
FilterView filter_of(const SearchRequest& r, const ListSearchSpace& space, const SearchPlan& plan,
                     uint32_t first) {
    FilterView filter = r.filter;
    filter.conditions += size_t{first} * filter.condition_stride;
    filter.values += size_t{first} * filter.value_stride;
    filter.counts = place<FilteredCounts>(space, plan.filtered_counts);
    filter.searched = r.searched + first;
    return filter;
}

// The rest of a search by query, for filtered queries, of which `first` is the first.
void scan_filtered_part(const Context& context, ListSearchSpace& space, const SearchRequest& r,
                        const SearchPlan& plan, const QueryScan& scan, const FilterView& filter,
                        uint32_t first) {
    const cudaStream_t stream = space.stream;
    const uint32_t count = scan.queries.count;
    // The two are adjacent.
    clear_async(place<char>(space, plan.counts),
                plan.filtered_counts.at + count * sizeof(FilteredCounts) - plan.counts.at, stream);
    scan_filtered(scan, filter, context, stream);
    finish_filtered(r.store, scan.queries, scan.candidates, filter,
                    {r.found + size_t{first} * r.shape.k, r.shape.k, r.found_counts + first},
                    stream);
}

// The end of a refined search. Few results: the kernel writes them to mapped host memory.
void refine_part(const Context& context, const ListSearchSpace& space, const SearchRequest& r,
                 const QueryView& queries, const CandidateView& candidates, uint32_t first) {
    refine_search(r.store, queries, candidates, r.given + size_t{first} * r.shape.dims,
                  {r.found + size_t{first} * r.shape.k, r.shape.k, r.found_counts + first,
                   r.left_out + first},
                  context, {space.stream, Start::early});
}

void search_by_query(const Context& context, ListSearchSpace& space, const SearchRequest& r,
                     const SearchPlan& plan, uint32_t first, uint32_t count) {
    QueryView queries = part_of(r, space, plan, first, count);
    queries.coarse = place<float>(space, plan.coarse);
    float* tables = place<float>(space, plan.tables);
    const CandidateView candidates{place<uint64_t>(space, plan.keys),
                                   place<uint32_t>(space, plan.counts), plan.candidate_room};
    ProbeChoice choice{};
    choice.host_probed = r.probed + size_t{first} * r.shape.probes;
    const Turn early(space.stream, Start::early);
    Turn next = early;
    if (count < least_apart) {
        prepare_small_batch(r.store, queries, Preparation::all, tables, {space.stream, r.start});
        choose_probes(r.store, queries, choice, early);
    } else {
        // Only the scan needs the tables. They are built on the second stream while
        // choose_probes() runs, which leaves most multiprocessors idle.
        space.chosen.record(space.stream);
        if (coarse_takes_tiles(r.store, queries))
            coarse_by_tiles(r.store, queries, space.stream);
        else
            prepare_small_batch(r.store, queries, Preparation::coarse, tables, space.stream);
        choose_probes(r.store, queries, choice, early);
        space.copies.wait(space.chosen);
        prepare_small_batch(r.store, queries, Preparation::tables, tables, space.copies);
        space.copied.record(space.copies);
        space.stream.wait(space.copied);
        next = space.stream;
    }
    const QueryScan scan{r.store, queries, tables, plan.splits, candidates};
    const FilterView filter = r.shape.filtered ? filter_of(r, space, plan, first) : FilterView{};
    if (r.shape.limited) {
        limit_lists(scan, {r.wanted + first, r.taken + first}, r.shape.filtered ? &filter : nullptr,
                    context, next);
        next = early;
    }
    if (r.shape.filtered) {
        scan_filtered_part(context, space, r, plan, scan, filter, first);
        return;
    }
    scan_queries(scan, context, next);
    if (r.shape.refined) {
        refine_part(context, space, r, queries, candidates, first);
        return;
    }
    // Few results: the kernel writes them to mapped host memory, with less latency than a copy.
    finish_search(r.store, queries, candidates, Distances::final,
                  {r.found + size_t{first} * r.shape.k, r.shape.k, r.found_counts + first}, early);
}

void search_by_list(const Context& context, ListSearchSpace& space, const SearchRequest& r,
                    const SearchPlan& plan, uint32_t first, uint32_t count) {
    const cudaStream_t stream = space.stream;
    if (!space.blas) space.blas = std::make_unique<Blas>(stream);
    QueryView queries = part_of(r, space, plan, first, count);
    const bool l2 = has_norms(r.store.model.shape.metric);
    r.centroids->multiply(*space.blas, stream, {queries.vectors, count, r.shape.dims, r.shape.dims},
                          space.coarse_tile, l2 ? -2.0f : -1.0f);
    queries.coarse = space.coarse_tile.products.data();
    queries.coarse_lacks_norms = l2;
    queries.norms = space.coarse_tile.row_norms.data();
    // With inner products the terms of probed lists must not include |q|^2, but the tables' scale
    // needs it. So choose_probes() gets a view without norms.
    QueryView probing = queries;
    if (!l2) probing.norms = nullptr;

    const FirstLists first_lists{place<uint32_t>(space, plan.first_counts), plan.first_room};
    auto* sizes = place<uint32_t>(space, plan.sizes);
    auto* ranks = place<uint32_t>(space, plan.ranks);
    clear_async(sizes, size_t{plan.bins} + 1, stream);
    choose_probes(r.store, probing, {first_lists, {sizes, ranks, plan.table_queries}, nullptr},
                  stream);
    space.chosen.record(stream);
    space.copies.wait(space.chosen);
    copy_async(r.probed + size_t{first} * r.shape.probes, queries.probed,
               size_t{count} * r.shape.probes, space.copies);
    space.copied.record(space.copies);

    auto* tables = place<uint4>(space, plan.tables);
    build_half_tables(r.store, queries, tables, stream);
    Bins bins{plan.bins,
              plan.table_queries,
              sizes,
              place<uint32_t>(space, plan.item_starts),
              place<Visit>(space, plan.visits),
              place<WorkItem>(space, plan.item_table),
              place<uint32_t>(space, plan.item_count)};
    Bins first_bins = bins;
    first_bins.bins = r.shape.lists;
    first_bins.part_queries = count;
    first_bins.sizes = place<uint32_t>(space, plan.first_sizes);
    first_bins.item_starts = place<uint32_t>(space, plan.first_item_starts);
    auto* distances = place<float>(space, plan.distances);
    auto* bounds = place<float>(space, plan.bounds);
    const CandidateView candidates{place<uint64_t>(space, plan.keys),
                                   place<uint32_t>(space, plan.counts), plan.candidate_room};

    sort_first_visits(r.store, queries, first_lists, place<uint32_t>(space, plan.cursors),
                      plan.tiles_per_item, first_bins, stream);
    scan_lists({r.store, queries, tables, first_bins, distances, plan.first_room, nullptr, {}},
               context.processors, stream);
    find_bounds(r.store, queries, first_lists, distances, bounds, stream);

    sort_visits(r.store, queries, ranks, plan.tiles_per_item, bins, stream);
    clear_async(candidates.counts, count, stream);
    scan_lists({r.store, queries, tables, bins, nullptr, 0, bounds, candidates}, context.processors,
               stream);

    // Queries with more candidates within the bound than there is room for are scanned again by
    // query: that scan selects as it goes, and cannot overflow.
    auto* overflowed = place<uint32_t>(space, plan.overflowed);
    list_overflows(candidates, count, overflowed + 1, overflowed, stream);
    scan_queries({r.store, queries, nullptr, plan.splits, candidates, overflowed + 1, overflowed},
                 context, stream);
    if (r.shape.refined) {
        refine_part(context, space, r, queries, candidates, first);
    } else {
        const AnswerView answers{place<Neighbor>(space, plan.answers), r.shape.k,
                                 place<uint32_t>(space, plan.answer_counts)};
        finish_search(r.store, queries, candidates, Distances::rough, answers, stream);
        copy_async(r.found + size_t{first} * r.shape.k, answers.found, size_t{count} * r.shape.k,
                   stream);
        copy_async(r.found_counts + first, answers.found_counts, count, stream);
    }
    check(cudaStreamWaitEvent(stream, space.copied), "cudaStreamWaitEvent");
}

}  // namespace

void search_lists(const Context& context, ListSearchSpace& space, const SearchRequest& request,
                  const SearchPlan& plan) {
    space.scratch.grow(context.memory, plan.scratch_bytes);
    const auto search = plan.method == SearchMethod::by_list ? search_by_list : search_by_query;
    for (uint32_t first = 0; first < request.shape.queries; first += plan.part_queries)
        search(context, space, request, plan, first,
               std::min(plan.part_queries, request.shape.queries - first));
}

}  // namespace pgwarp::gpu
