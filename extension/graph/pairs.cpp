#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/draw_rows.h"
#include "extension/graph/device.h"
#include "extension/graph/job.h"
#include "extension/graph/pairs.h"
#include "extension/graph/progress.h"
#include "extension/graph/table.h"

extern "C" {
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

double operator_distance(Metric metric, float distance) {
    return metric == Metric::l2 ? std::sqrt(static_cast<double>(distance)) : distance;
}

// Rows and, on their way to the device or as the finder's own vectors, the same again; beside them
// what duplicate_groups() knows of each row.
GraphRoom pair_room() {
    return {4, 1, graph_threads(), 2};
}

}  // namespace

PairLimit make_pair_limit(Metric metric, double max_distance) {
    if (!std::isfinite(max_distance))
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("max_distance must be a finite number")));
    if (metric != Metric::inner_product && max_distance <= 0)
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                 errmsg("max_distance must be greater than 0 for metric %s", sql_name(metric)),
                 errhint("For vectors that are equal, take a small one.")));
    constexpr float largest = std::numeric_limits<float>::max();
    const double guess = metric == Metric::l2 ? max_distance * max_distance : max_distance;
    float bound = static_cast<float>(std::clamp<double>(guess, -largest, largest));
    while (operator_distance(metric, bound) > max_distance && bound > -largest)
        bound = std::nextafter(bound, -largest);
    // Kernels clamp a distance that overflows to the largest float: it is within no limit.
    while (bound < largest &&
           operator_distance(metric, std::nextafter(bound, largest)) <= max_distance)
        bound = std::nextafter(bound, largest);
    if (bound == largest) bound = std::nextafter(bound, 0.0f);
    return {metric, max_distance, bound};
}

GraphSet read_pair_set(const TableColumns& columns, Metric metric) {
    GraphSet set = read_graph_set(columns, metric, pair_room());
    report_left_out(set);
    return set;
}

namespace {

// Rows in memory: all of the set, or of two parts of it.
struct Walk {
    GraphBuilder* builder;
    PairLimit limit;
    PairSink sink;
    Size most;  // pairs at a time
    Owned<PairSearch>* search;
    Owned<PairFinder>* finder;
    Owned<std::vector<RowPair>>* found;
    Size border;             // rows before it belong to the first part
    Size first, second;      // numbers in the set: of row 0, and of row `border`
    uint64 compared, total;  // pairs
};

uint64 pairs_of(const PairRectangle& rectangle) {
    const uint64 a = rectangle.a.size(), b = rectangle.b.size();
    return rectangle.is_square() ? a * (a - 1) / 2 : a * b;
}

void put_pairs(const Walk& walk) {
    const auto number = [&](uint32 row) {
        return static_cast<uint32>(row < walk.border ? walk.first + row
                                                     : walk.second + (row - walk.border));
    };
    const RowPair* pairs = walk.found->object->data();
    const Size count = walk.found->object->size();
    for (Size i = 0; i < count; ++i) {
        if (i % 8192 == 0) CHECK_FOR_INTERRUPTS();
        walk.sink.put(walk.sink.state,
                      {number(pairs[i].first), number(pairs[i].second), pairs[i].distance});
    }
}

RowSpan half(const RowSpan& span, int which) {
    const Size middle = span.begin + span.size() / 2;
    return which == 0 ? RowSpan{span.begin, middle} : RowSpan{middle, span.end};
}

// A rectangle with too many pairs is done in parts.
void search_rectangle(Walk* walk, const PairRectangle& rectangle) {
    CHECK_FOR_INTERRUPTS();
    if (pairs_of(rectangle) == 0) return;
    bool complete = false;
    run_graph_kernel(
        [&] { complete = walk->finder->object->find(rectangle, walk->most, walk->found->object); });
    if (complete) {
        put_pairs(*walk);
        walk->compared += pairs_of(rectangle);
        report_graph_stage(GraphStage::exact, static_cast<int64>(walk->compared),
                           static_cast<int64>(walk->total));
        return;
    }
    const RowSpan &a = rectangle.a, &b = rectangle.b;
    if (rectangle.is_square()) {
        search_rectangle(walk, {half(a, 0), half(a, 0)});
        search_rectangle(walk, {half(a, 0), half(a, 1)});
        search_rectangle(walk, {half(a, 1), half(a, 1)});
        return;
    }
    for (const int which : {0, 1})
        search_rectangle(walk, a.size() > b.size() ? PairRectangle{half(a, which), b}
                                                   : PairRectangle{a, half(b, which)});
}

// Compares rows `a` with rows `b`, by rectangles that suit the finder.
void search_area(Walk* walk, const PairRectangle& area) {
    const Size side = std::max<Size>(walk->finder->object->best_side(), 1);
    const auto cut = [side](const RowSpan& span, Size first) {
        return RowSpan{first, std::min(span.end, first + side)};
    };
    for (Size a = area.a.begin; a < area.a.end; a += side)
        for (Size b = area.is_square() ? a : area.b.begin; b < area.b.end; b += side)
            search_rectangle(walk, {cut(area.a, a), cut(area.b, b)});
}

void open_finder(Walk* walk, const GraphRows& rows) {
    run_graph_kernel([&] {
        delete std::exchange(walk->finder->object, nullptr);
        walk->finder->object = walk->builder->find_pairs(rows, *walk->search->object).release();
    });
}

void close_finder(Walk* walk) {
    guarded([&] { delete std::exchange(walk->finder->object, nullptr); });
}

void search_in_memory(Walk* walk, const GraphSet& set) {
    report_graph_parts(0, 1);
    walk->border = set.count;
    open_finder(walk, {set.rows, set.count, set.dims, set.metric});
    search_area(walk, {{0, set.count}, {0, set.count}});
    close_finder(walk);
    report_graph_parts(1, 1);
}

// Rows of a file, in random order.
float* read_sample(const GraphSet& set, Size count) {
    const Size bytes = std::max<Size>(count, 1) * sizeof(uint64);
    auto* drawn = static_cast<uint64*>(palloc(bytes));
    float* sample = static_cast<float*>(MemoryContextAllocHuge(
        CurrentMemoryContext, std::max<Size>(count * set.dims, 1) * sizeof(float)));
    guarded([&] {
        const std::vector<uint64_t> rows = draw_few_rows(set.count, count, 1);
        std::copy(rows.begin(), rows.end(), drawn);
    });
    for (Size i = 0; i < count; ++i) read_spilled(set, drawn[i], 1, sample + i * set.dims);
    pfree(drawn);
    return sample;
}

// What the CPU's finders of all parts share. Before there are parts in memory.
void make_plan(Walk* walk, const GraphSet& set, Size part_rows) {
    const Size parts = (set.count + part_rows - 1) / part_rows;
    // Every two parts meet in a finder, which gets the rows of both.
    const PairWork work = {set.dims, set.metric, static_cast<double>(walk->total),
                           static_cast<double>(set.count) * static_cast<double>(parts)};
    const Size keys = set.count * sizeof(int64), memory = graph_memory();
    const Size count = std::min(
        set.count, pair_sample_rows(work, graph_threads(), memory - std::min(memory, keys)));
    float* sample = read_sample(set, count);
    run_graph_kernel([&] {
        walk->search->object->plan =
            make_pair_plan(graph_threads(), query_interrupts(),
                           {sample, count, set.dims, set.metric}, walk->limit.bound, work);
    });
    pfree(sample);
}

// Every two parts of a file, of which `part_rows` are in memory twice.
void search_in_file(Walk* walk, const GraphSet& set, Size part_rows) {
    const Size parts = (set.count + part_rows - 1) / part_rows;
    float* rows = static_cast<float*>(
        MemoryContextAllocHuge(CurrentMemoryContext, 2 * part_rows * set.dims * sizeof(float)));
    const auto size = [&](Size part) { return std::min(part_rows, set.count - part * part_rows); };
    int64 done = 0;
    for (Size one = 0; one < parts; ++one) {
        read_spilled(set, one * part_rows, size(one), rows);
        for (Size other = one; other < parts; ++other) {
            report_graph_parts(done++, static_cast<int64>(parts * (parts + 1) / 2));
            const Size border = size(one), behind = other == one ? 0 : size(other);
            if (behind > 0) read_spilled(set, other * part_rows, behind, rows + border * set.dims);
            walk->border = border;
            walk->first = one * part_rows;
            walk->second = other * part_rows;
            open_finder(walk, {rows, border + behind, set.dims, set.metric});
            const RowSpan before{0, border}, after{border, border + behind};
            search_area(walk,
                        behind > 0 ? PairRectangle{before, after} : PairRectangle{before, before});
            close_finder(walk);
        }
    }
    pfree(rows);
}

// Pairs at a time: an eighth of the memory, as the finder holds them twice.
Size most_pairs_at_once() {
    constexpr Size least = 4096, most = Size{1} << 22;
    return std::clamp(graph_memory() / 16 / sizeof(RowPair), least, most);
}

}  // namespace

void find_similar_pairs(GraphSet* set, const PairLimit& limit, const PairSink& sink) {
    if (set->count < 2) return;
    report_graph_stage(GraphStage::opening, 0, 0);
    const double rows = static_cast<double>(set->count);
    GraphMaker maker = open_graph_maker(rows * rows / 2 * set->dims, graph_threads());
    Walk walk = {};
    walk.builder = maker.builder;
    walk.limit = limit;
    walk.sink = sink;
    walk.most = most_pairs_at_once();
    walk.total = static_cast<uint64>(set->count) * (set->count - 1) / 2;
    walk.finder = owned_by<PairFinder>(CurrentMemoryContext);
    walk.found = owned_by<std::vector<RowPair>>(CurrentMemoryContext);
    walk.search = owned_by<PairSearch>(CurrentMemoryContext);
    guarded([&] {
        walk.found->object = new std::vector<RowPair>();
        walk.search->object = new PairSearch(limit.bound);
    });
    report_graph_stage(GraphStage::exact, 0, static_cast<int64>(walk.total));
    const Size room =
        std::min(rows_in_memory(pair_room(), set->dims),
                 rows_on_device(*maker.builder, set->dims, DescentOptions::for_neighbors(1)));
    if (!set->file && set->count > room) spill_graph_set(set);
    if (set->file) {
        if (!maker.device) make_plan(&walk, *set, room / 2);
        search_in_file(&walk, *set, room / 2);
    } else {
        search_in_memory(&walk, *set);
    }
    guarded([&] {
        delete std::exchange(walk.found->object, nullptr);
        delete std::exchange(walk.search->object, nullptr);
    });
    close_graph_maker(&maker);
}

}  // namespace pgwarp
