#include <algorithm>
#include <cmath>
#include <limits>

#include "extension/graph/given.h"
#include "extension/graph/metric.h"
#include "extension/graph/parts.h"
#include "extension/graph/progress.h"

extern "C" {
#include "utils/lsyscache.h"
#include "utils/memutils.h"
}

namespace pgwarp {

bool about_equal(float a, float b) {
    // A distance that overflowed equals any that is near overflow.
    constexpr float very_far = 1e19f;
    if (!std::isfinite(a) || !std::isfinite(b))
        return std::fabs(a) >= very_far && std::fabs(b) >= very_far;
    return std::fabs(a - b) <= 1e-3f * std::max(std::fabs(a), std::fabs(b)) + 1e-6f;
}

float finite_distance(Metric metric, const float* a, const float* b, uint32 dims) {
    const float distance = graph_distance(metric, a, b, dims);
    return distance < std::numeric_limits<float>::infinity() ? distance
                                                             : std::numeric_limits<float>::max();
}

void check_distances(Oid graph, const DistanceCheck& looked) {
    if (looked.others > looked.edges / 2)
        ereport(
            ERROR,
            (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
             errmsg("distances of graph \"%s\" are not those of the vectors", get_rel_name(graph)),
             errdetail("%zu of %zu edges have another distance.", looked.others, looked.edges),
             errhint("Name the metric the graph was made with.")));
}

Size given_in_memory() {
    return most_graph_edges(sizeof(Edge) * 2);
}

GivenGraph read_given_graph(Oid graph, KeyNames* names) {
    GivenGraph given = {graph, read_graph_anywhere(graph, names, given_in_memory()), 0};
    int32 most = 0;
    for_edges(given.edges, [&](const KeyedEdge& edge) { most = std::max(most, edge.rank); });
    given.neighbors = static_cast<uint32>(most);
    return given;
}

void load_given(const GivenGraph& given, const GraphSet& set, const KeyedRow* sorted, Size begin,
                Size end, uint32 degree, Edge* lists) {
    DistanceCheck looked = {};
    const auto within = [&](uint32 row) { return row != no_row && row >= begin && row < end; };
    for_edges(given.edges, [&](const KeyedEdge& written) {
        const uint32 src = find_key(sorted, set.count, written.src);
        const uint32 dst = find_key(sorted, set.count, written.dst);
        if (!within(src) || !within(dst) || src == dst) return;
        const Edge edge{finite_distance(set.metric, set.rows + Size{src} * set.dims,
                                        set.rows + Size{dst} * set.dims, set.dims),
                        dst};
        ++looked.edges;
        if (!about_equal(edge_operator_distance(set.metric, edge.distance), written.distance))
            ++looked.others;
        add_edges(lists + Size{src} * degree, degree, &edge, 1);
    });
    check_distances(given.graph, looked);
}

// --- beyond memory

namespace {

// Loads the table's edges of a part's rows into parts.lists, with the table's distances and row
// numbers of the set.
void load_part(const Parts& parts, Size part, const Side& side) {
    const Size begin = parts.begin(part), end = begin + parts.size(part);
    std::fill_n(parts.lists, parts.size(part) * parts.degree,
                Edge{std::numeric_limits<float>::infinity(), no_row});
    for_edges(side.given->edges, [&](const KeyedEdge& written) {
        const uint32 src = find_key(side.sorted, parts.set->count, written.src);
        if (src == no_row || src < begin || src >= end) return;
        const uint32 dst = find_key(side.sorted, parts.set->count, written.dst);
        if (dst == no_row || dst < side.begin || dst >= side.end || dst == src) return;
        const Edge edge{edge_order(written.distance), dst};
        add_edges(parts.lists + (src - begin) * parts.degree, parts.degree, &edge, 1);
    });
}

// Reads the rows of part `other`, which may be `part` itself, behind those of `part`. Calls
// use(row, edge, distance) for the edges in parts.lists that lead to them: the edge has the table's
// distance, `distance` is that of the vectors.
template <typename Use>
void for_given(const Parts& parts, Size part, Size other, const Use& use) {
    const GraphSet& set = *parts.set;
    const Size count = parts.size(part), begin = parts.begin(other);
    float* others = parts.rows + count * set.dims;
    read_spilled(set, begin, parts.size(other), others);
    for (Size row = 0; row < count; ++row) {
        if (row % 8192 == 0) CHECK_FOR_INTERRUPTS();
        const Edge* list = parts.lists + row * parts.degree;
        for (uint32 i = 0; i < parts.degree && list[i].row != no_row; ++i)
            if (list[i].row >= begin && list[i].row < begin + parts.size(other))
                use(row, list[i],
                    finite_distance(set.metric, parts.rows + row * set.dims,
                                    others + (list[i].row - begin) * set.dims, set.dims));
    }
}

}  // namespace

void add_given(const Parts& parts, const Side& side) {
    DistanceCheck looked = {};
    for (Size part = side.first_part; part < side.end_part; ++part) {
        load_part(parts, part, side);
        read_spilled(*parts.set, parts.begin(part), parts.size(part), parts.rows);
        read_found(parts, part);
        const auto find = [&](Size row, const Edge& written, float distance) {
            const Edge edge{distance, written.row};
            ++looked.edges;
            if (!about_equal(edge_operator_distance(parts.set->metric, distance), written.distance))
                ++looked.others;
            add_edges(parts.results + row * parts.job->k, parts.job->k, &edge, 1);
        };
        for (Size other = side.first_part; other < side.end_part; ++other)
            for_given(parts, part, other, find);
        write_found(parts, part);
    }
    check_distances(side.given->graph, looked);
}

namespace {

// A whole list has k edges, or one to every other source of the graph if these are fewer.
void check_lengths(const uint32* counts, Size rows, uint32 k, bool* whole) {
    const auto sources =
        static_cast<Size>(std::count_if(counts, counts + rows, [](uint32 c) { return c > 0; }));
    for (Size row = 0; row < rows; ++row)
        whole[row] = whole[row] && counts[row] > 0 && counts[row] >= std::min<Size>(k, sources - 1);
}

bool* alloc_whole(Size rows) {
    bool* whole =
        static_cast<bool*>(MemoryContextAllocHuge(CurrentMemoryContext, std::max<Size>(rows, 1)));
    std::fill_n(whole, rows, true);
    return whole;
}

uint32* alloc_counts(Size rows) {
    return static_cast<uint32*>(MemoryContextAllocExtended(CurrentMemoryContext,
                                                           std::max<Size>(rows, 1) * sizeof(uint32),
                                                           MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
}

}  // namespace

bool* find_whole_by_parts(const Parts& parts, const GivenGraph& given, const KeyedRow* sorted) {
    const GraphSet& set = *parts.set;
    bool* whole = alloc_whole(set.count);
    uint32* counts = alloc_counts(set.count);
    for_edges(given.edges, [&](const KeyedEdge& edge) {
        const uint32 src = find_key(sorted, set.count, edge.src);
        if (src == no_row) return;
        const uint32 dst = find_key(sorted, set.count, edge.dst);
        ++counts[src];
        // The pass below sees only `degree` edges of a row: a longer list is not whole.
        if (dst == no_row || dst == src || counts[src] > parts.degree) whole[src] = false;
    });
    for (Size part = 0; part < parts.count; ++part) {
        load_part(parts, part, {&given, sorted, 0, parts.count, 0, set.count});
        read_spilled(set, parts.begin(part), parts.size(part), parts.rows);
        const auto check = [&](Size row, const Edge& written, float distance) {
            if (!about_equal(edge_operator_distance(set.metric, distance), written.distance))
                whole[parts.begin(part) + row] = false;
        };
        for (Size other = 0; other < parts.count; ++other) for_given(parts, part, other, check);
    }
    check_lengths(counts, set.count, parts.job->k, whole);
    pfree(counts);
    return whole;
}

void merge_by_parts(const GraphJob& job, const GraphSet& set, Size border, const GivenGraph* given,
                    const KeyedRow* sorted, const EdgeSink& sink) {
    Parts parts = open_parts(job, set, false, border);
    Size middle = 0;
    while (middle < parts.count && parts.begin(middle) < border) ++middle;
    expect_parts(&parts, parts.count + middle * (parts.count - middle));
    // Each part gets a graph of its own: few of the given edges may lie within a part.
    for (Size part = 0; part < parts.count; ++part) build_part(&parts, part);
    finish_parts(&parts);
    add_given(parts, {&given[0], sorted, 0, middle, 0, border});
    add_given(parts, {&given[1], sorted, middle, parts.count, border, set.count});
    for (Size first = 0; first < middle; ++first)
        for (Size second = middle; second < parts.count; ++second)
            merge_parts(&parts, first, second);
    finish_parts(&parts);
    put_found(parts, sink);
    close_parts(&parts);
}

}  // namespace pgwarp
