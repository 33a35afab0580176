#include "kernels/cpu/graph_descent.h"

#include "kernels/cpu/filter.h"
#include "kernels/cpu/graph_lists.h"
#include "kernels/cpu/graph_tile.h"

#include <algorithm>
#include <atomic>

namespace pgwarp {

namespace {

// Tasks between two rounds of applying proposals, which take a few megabytes while lists are empty.
constexpr size_t batch_tasks = 64;
constexpr size_t task_tiles = 16;  // of samples
constexpr size_t max_ranges = 64;

// Levels of a tree that share one pass over the rows with the other trees.
constexpr size_t top_levels = 4;

// The descent ends when an iteration replaced less than this share of all edges.
constexpr double min_updates = 0.001;

// A merge ends earlier: half of its edges existed before, and a last iteration mostly finds edges
// behind the first `neighbors` places. It also samples fewer old neighbors, because each new one
// meets them in every iteration.
constexpr double min_merge_updates = 0.02;

// In a merge, new neighbors come from the other side and are compared with old ones of the row's
// own.
SampleKinds sample_kinds(const DescentOptions& options, Known known, size_t border) {
    if (known != Known::both_sets) return {options.samples, options.samples, 0};
    return {options.samples, std::max(2 * options.samples / 3, 1u), border};
}

}  // namespace

size_t GraphDescent::leaf_rows(const DescentOptions& options) {
    return std::max<size_t>(128, 2 * size_t{options.degree});
}

size_t GraphDescent::batch_leaves(const DescentOptions& options) {
    const size_t pairs = leaf_rows(options) * leaf_rows(options);
    return std::clamp<size_t>(16 * 128 * 128 / pairs, 1, batch_tasks);
}

size_t GraphDescent::most_rows(const DescentOptions& options) {
    return std::max<size_t>(4 * size_t{options.samples}, leaf_rows(options));
}

GraphDescent::GraphDescent(Workers& workers, const GraphRows& rows, const DescentOptions& options,
                           Known known, size_t border, Edge* lists)
    : workers_(workers),
      rows_(rows),
      options_(options),
      known_(known),
      border_(border),
      lists_(lists),
      ranges_(std::min(max_ranges, rows.count)),
      value_stride_(most_rows(options) + 8),
      bounds_(rows.count),
      samples_(rows.count, options.samples),
      scratch_(static_cast<size_t>(workers.threads())),
      found_(batch_tasks) {
    // Tiles are read and written in blocks of four.
    const size_t most = most_rows(options) + 8;
    for (Scratch& scratch : scratch_) {
        scratch.numbers.resize(most);
        scratch.data.resize(most * tile_stride(rows.dims));
        scratch.terms.resize(most);
        scratch.bounds.resize(most);
        scratch.reach.resize(most);
        scratch.values.resize(most * value_stride_);
    }
    for (size_t row = 0; row < rows.count; ++row)
        bounds_[row] = lists[(row + 1) * options.degree - 1].distance;
}

size_t GraphDescent::memory(size_t count, uint32_t dims, const DescentOptions& options,
                            int threads) {
    const size_t most = most_rows(options) + 8;
    const size_t scratch = most * (tile_stride(dims) + most + 4) * sizeof(float);
    // Proposals at most: all pairs of a batch of leaves, while the lists are empty.
    const size_t leaf = leaf_rows(options);
    const size_t proposals = batch_leaves(options) * leaf * leaf * 2 * sizeof(Proposal);
    const size_t tree =
        count * (sizeof(float) + 3 * sizeof(uint32_t)) + 2 * count / leaf * dims * sizeof(float);
    return static_cast<size_t>(threads) * scratch + proposals + tree + count * sizeof(float) +
           GraphSamples::memory(count, options.samples);
}

DescentReport GraphDescent::run(const GraphProgress& progress) {
    DescentReport report;
    if (rows_.count < 2) return report;
    Leaves leaves;
    start(progress, leaves);
    // Rows of one leaf share neighbors: in this order they find them in the caches.
    while (leaves.count() > 1 && report.iterations < options_.iterations) {
        const uint64_t updates = match_samples(leaves.order, progress, report.iterations++);
        const bool merging = known_ == Known::both_sets;
        // In a merge the smaller set bounds the possible updates, so the threshold is relative to
        // it.
        const size_t rows = merging ? 2 * std::min(border_, rows_.count - border_) : rows_.count;
        const double edges = static_cast<double>(rows) * options_.degree;
        const double least = merging ? min_merge_updates : min_updates;
        if (static_cast<double>(updates) < least * edges) break;
    }
    if (progress) progress(GraphPhase::distances, 0, rows_.count);
    finish(leaves.order);
    report.compared = compared_;
    return report;
}

void GraphDescent::start(const GraphProgress& progress, Leaves& leaves) {
    // At least two: rows of one leaf have all been compared with each other.
    const uint32_t starts = std::max(options_.trees, 2u);
    const bool small = rows_.count <= leaf_rows(options_);
    Projections projections;
    if (options_.trees && !small)
        projections = project_rows(workers_, rows_, starts * top_levels, options_.seed);
    for (uint32_t tree = 0; tree < starts; ++tree) {
        if (progress) progress(GraphPhase::start, tree, starts);
        const uint64_t seed = options_.seed * 0x9e3779b97f4a7c15ULL + tree;
        if (options_.trees)
            grow_tree(workers_, rows_, leaf_rows(options_),
                      {&projections, tree * top_levels, top_levels}, seed, leaves);
        else
            deal_leaves(rows_, leaf_rows(options_), seed, leaves);
        match_leaves(leaves);
        if (small) break;  // all pairs have been compared
    }
}

uint64_t GraphDescent::match_leaves(const Leaves& leaves) {
    uint64_t updates = 0;
    const size_t batch = batch_leaves(options_);
    for (size_t first = 0; first < leaves.count(); first += batch) {
        const size_t tasks = std::min(batch, leaves.count() - first);
        workers_.run(tasks, [&](size_t task, int thread) {
            Found& found = found_[task];
            Scratch& scratch = scratch_[static_cast<size_t>(thread)];
            found.proposals.clear();
            found.compared = 0;
            const size_t leaf = first + task;
            const uint32_t* begin = leaves.order.data() + leaves.begins[leaf];
            const size_t count = leaves.begins[leaf + 1] - leaves.begins[leaf];
            std::copy_n(begin, count, scratch.numbers.data());
            std::sort(scratch.numbers.begin(), scratch.numbers.begin() + static_cast<long>(count));
            match(scratch, count, 0, rows_.row(begin[0]), found);
            order_by_range(found);
        });
        updates += apply(tasks);
    }
    return updates;
}

uint64_t GraphDescent::match_samples(const std::vector<uint32_t>& order,
                                     const GraphProgress& progress, uint32_t iteration) {
    samples_.draw(workers_, sample_kinds(options_, known_, border_), lists_, options_.degree,
                  options_.seed + 2 * iteration + 1);
    uint64_t updates = 0;
    const size_t batch = batch_tasks * task_tiles;
    for (size_t first = 0; first < rows_.count; first += batch) {
        if (progress)
            progress(GraphPhase::descent, iteration * uint64_t{rows_.count} + first,
                     options_.iterations * uint64_t{rows_.count});
        const size_t tiles = std::min(batch, rows_.count - first);
        const size_t tasks = (tiles + task_tiles - 1) / task_tiles;
        workers_.run(tasks, [&](size_t task, int thread) {
            Found& found = found_[task];
            Scratch& scratch = scratch_[static_cast<size_t>(thread)];
            found.proposals.clear();
            found.compared = 0;
            std::vector<uint32_t> old_rows(2 * options_.samples);
            const size_t end = std::min(tiles, (task + 1) * task_tiles);
            for (size_t i = task * task_tiles; i < end; ++i) {
                const uint32_t row = order[first + i];
                const auto counts = samples_.of(row, scratch.numbers.data(), old_rows.data());
                if (counts.fresh_rows == 0) continue;
                std::copy_n(old_rows.data(), counts.old_rows,
                            scratch.numbers.data() + counts.fresh_rows);
                match(scratch, counts.fresh_rows, counts.old_rows, rows_.row(row), found);
            }
            order_by_range(found);
        });
        updates += apply(tasks);
    }
    return updates;
}

// The numbers in the scratch have new rows first, then old ones, each kind sorted: so each kind is
// two parts, one on either side of the border.
void GraphDescent::match(Scratch& scratch, size_t fresh_count, size_t old_count,
                         const float* centre, Found& found) {
    const size_t all = fresh_count + old_count;
    const uint32_t* numbers = scratch.numbers.data();
    const auto border_in = [&](size_t begin, size_t end) {
        return static_cast<size_t>(std::lower_bound(numbers + begin, numbers + end, border_) -
                                   numbers);
    };
    const size_t fresh_border = known_ == Known::nothing ? 0 : border_in(0, fresh_count);
    const size_t old_border = known_ == Known::nothing ? fresh_count : border_in(fresh_count, all);
    const Part fresh_first{0, fresh_border}, fresh_second{fresh_border, fresh_count};
    const Part old_first{fresh_count, old_border}, old_second{old_border, all};
    const size_t seconds = fresh_second.size() + old_second.size();
    if (known_ != Known::nothing && seconds == 0) return;
    if (known_ == Known::both_sets && fresh_first.size() + old_first.size() == 0) return;

    gather_tile(rows_, numbers, all, centre, scratch.data.data(), scratch.terms.data());
    for (size_t i = 0; i < all; ++i) {
        scratch.bounds[i] = bounds_[numbers[i]];
        scratch.reach[i] = scratch.terms[i] - scratch.bounds[i];
    }
    match_parts(scratch, fresh_first, fresh_second, false, found);
    match_parts(scratch, fresh_first, old_second, false, found);
    match_parts(scratch, fresh_second, old_first, false, found);
    if (known_ != Known::both_sets) {
        match_parts(scratch, fresh_second, fresh_second, true, found);
        match_parts(scratch, fresh_second, old_second, false, found);
    }
}

void GraphDescent::match_parts(Scratch& scratch, Part a, Part b, bool triangle, Found& found) {
    if (a.size() == 0 || b.size() == 0) return;
    const size_t stride = tile_stride(rows_.dims);
    tile_values({scratch.data.data() + a.begin * stride, a.size(),
                 scratch.data.data() + b.begin * stride, b.size(), stride, rows_.metric, triangle,
                 scratch.values.data(), value_stride_});
    found.compared += triangle ? a.size() * (a.size() - 1) / 2 : a.size() * b.size();
    propose(scratch, a, b, triangle, found);
}

void GraphDescent::propose(Scratch& scratch, Part a, Part b, bool triangle, Found& found) {
    const float* terms = scratch.terms.data() + b.begin;
    const float* reach = scratch.reach.data() + b.begin;
    const uint32_t* others = scratch.numbers.data() + b.begin;
    for (size_t i = 0; i < a.size(); ++i) {
        const float* values = scratch.values.data() + i * value_stride_;
        const float term = scratch.terms[a.begin + i];
        const uint32_t row = scratch.numbers[a.begin + i];
        const auto distance = [&](size_t j) {
            const float sum = values[j] + terms[j] + term;
            // A distance that overflowed is the largest float: still a neighbor, not padding.
            return sum < infinitely_far ? sum : std::numeric_limits<float>::max();
        };
        const size_t begin = triangle ? i + 1 : 0;
        const float limit = scratch.bounds[a.begin + i] - term;
        for (size_t j = begin; (j = next_at_most(values, terms, j, b.size(), limit)) < b.size();
             ++j)
            found.proposals.push_back({row, {distance(j), others[j] | fresh}});
        for (size_t j = begin; (j = next_at_most(values, reach, j, b.size(), -term)) < b.size();
             ++j)
            found.proposals.push_back({others[j], {distance(j), row | fresh}});
    }
}

void GraphDescent::order_by_range(Found& found) const {
    found.begins.assign(ranges_ + 1, 0);
    for (const Proposal& proposal : found.proposals) ++found.begins[range_of(proposal.target) + 1];
    for (size_t r = 0; r < ranges_; ++r) found.begins[r + 1] += found.begins[r];
    found.ordered.resize(found.proposals.size());
    for (const Proposal& proposal : found.proposals)
        found.ordered[found.begins[range_of(proposal.target)]++] = proposal;
    // Each begin has moved to the end of its range, where the next range begins.
    std::copy_backward(found.begins.begin(), found.begins.end() - 1, found.begins.end());
    found.begins[0] = 0;
}

// insert_edge() reads a list's last edge, then searches from its first.
void GraphDescent::prefetch_list(uint32_t row) const {
    const Edge* list = lists_ + size_t{row} * options_.degree;
    for (uint32_t i = 0; i < options_.degree; i += 8) __builtin_prefetch(list + i, 1);
    __builtin_prefetch(list + options_.degree - 1, 1);
}

uint64_t GraphDescent::apply(size_t tasks) {
    std::atomic<uint64_t> updates{0};
    workers_.run(ranges_, [&](size_t range, int) {
        uint64_t here = 0;
        for (size_t task = 0; task < tasks; ++task) {
            const Found& found = found_[task];
            const uint32_t end = found.begins[range + 1];
            for (uint32_t i = found.begins[range]; i < end; ++i) {
                prefetch_list(found.ordered[std::min(i + 8, end - 1)].target);
                const Proposal& proposal = found.ordered[i];
                Edge* list = lists_ + size_t{proposal.target} * options_.degree;
                here += insert_edge(list, options_.degree, proposal.edge);
                bounds_[proposal.target] = list[options_.degree - 1].distance;
            }
        }
        updates += here;
    });
    for (size_t task = 0; task < tasks; ++task) compared_ += found_[task].compared;
    return updates;
}

// Distances from tiles have rounding errors: recompute those of the first `neighbors` places from
// the rows, except those that the lists of a merge had before.
void GraphDescent::finish(const std::vector<uint32_t>& order) {
    constexpr size_t task_rows = 512;
    workers_.run((rows_.count + task_rows - 1) / task_rows, [&](size_t task, int) {
        const size_t end = std::min(rows_.count, (task + 1) * task_rows);
        for (size_t i = task * task_rows; i < end; ++i) {
            Edge* list = lists_ + size_t{order[i]} * options_.degree;
            const float* row = rows_.row(order[i]);
            for (uint32_t j = 0; j < options_.degree; ++j) {
                list[j].row &= row_part;
                if (j >= options_.neighbors || list[j].row == no_row) continue;
                if (known_ == Known::both_sets && (list[j].row < border_) == (order[i] < border_))
                    continue;
                const float distance =
                    graph_distance(rows_.metric, row, rows_.row(list[j].row), rows_.dims);
                list[j].distance =
                    distance < infinitely_far ? distance : std::numeric_limits<float>::max();
            }
            std::sort(list, list + options_.neighbors, nearer);
        }
    });
}

}  // namespace pgwarp
