// duplicate_groups: rows of a table that are near duplicates of each other, group by group.
//
// Groups are the connected components of the pairs within a distance. Pairs are united as they are
// found, so that no list of them is needed.

#include <algorithm>
#include <utility>

#include "kernels/graph_stream.h"
#include "extension/graph/functions.h"
#include "extension/graph/metric.h"
#include "extension/graph/pairs.h"
#include "extension/graph/progress.h"
#include "extension/graph/representatives.h"
#include "extension/graph/table.h"
#include "extension/guard.h"
#include "extension/util/signature.h"

extern "C" {
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

void unite_rows(void* state, const RowPair& pair) {
    static_cast<NodeSets*>(state)->unite(pair.first, pair.second);
}

uint32* alloc_numbers(Size count) {
    return static_cast<uint32*>(
        MemoryContextAllocHuge(CurrentMemoryContext, std::max<Size>(count, 1) * sizeof(uint32)));
}

// Sorts the members by group and key, groups by their first key.
DuplicateGroups make_groups(const GraphSet& set, NodeSets* sets) {
    const auto is_less = [&](uint32 a, uint32 b) {
        return key_is_less(set.names, set.keys[a], set.keys[b]);
    };
    uint32 *sizes = alloc_numbers(set.count), *firsts = alloc_numbers(set.count);
    std::fill_n(sizes, set.count, 0);
    for (uint32 row = 0; row < set.count; ++row) {
        if (row % 65536 == 0) CHECK_FOR_INTERRUPTS();
        const uint32 root = sets->root_of(row);
        if (sizes[root]++ == 0 || is_less(row, firsts[root])) firsts[root] = row;
    }
    Size members = 0, groups = 0;
    for (uint32 row = 0; row < set.count; ++row) {
        if (sizes[sets->root_of(row)] > 1) ++members;
        if (sizes[row] > 1) ++groups;
    }
    DuplicateGroups found = {&set, alloc_numbers(members), nullptr, groups};
    found.groups = static_cast<DuplicateGroup*>(MemoryContextAllocHuge(
        CurrentMemoryContext, std::max<Size>(groups, 1) * sizeof(DuplicateGroup)));
    Size at = 0;
    for (uint32 row = 0; row < set.count; ++row)
        if (sizes[sets->root_of(row)] > 1) found.members[at++] = row;
    CHECK_FOR_INTERRUPTS();
    std::sort(found.members, found.members + members, [&](uint32 a, uint32 b) {
        const uint32 first_a = firsts[sets->root_of(a)], first_b = firsts[sets->root_of(b)];
        return first_a != first_b ? is_less(first_a, first_b) : is_less(a, b);
    });
    Size begin = 0;
    for (Size group = 0; group < groups; ++group) {
        const Size end = begin + sizes[sets->root_of(found.members[begin])];
        found.groups[group] = {begin, end, 0};
        begin = end;
    }
    pfree(sizes);
    pfree(firsts);
    return found;
}

void put_groups(const ReturnSetInfo* result, const DuplicateGroups& groups) {
    const GraphSet& set = *groups.set;
    float* central = static_cast<float*>(palloc(std::max(set.dims, 1u) * sizeof(float)));
    float* other = static_cast<float*>(palloc(std::max(set.dims, 1u) * sizeof(float)));
    for (Size i = 0; i < groups.count; ++i) {
        const DuplicateGroup& group = groups.groups[i];
        report_graph_stage(GraphStage::writing, static_cast<int64>(i),
                           static_cast<int64>(groups.count));
        const float* vector = vector_of_row(set, group.representative, central);
        for (Size m = group.begin; m < group.end; ++m) {
            CHECK_FOR_INTERRUPTS();
            const uint32 row = groups.members[m];
            const float distance =
                graph_distance(set.metric, vector, vector_of_row(set, row, other), set.dims);
            Datum values[] = {Int64GetDatum(static_cast<int64>(i) + 1),
                              Int64GetDatum(static_cast<int64>(group.end - group.begin)),
                              key_datum(set.names, set.keys[group.representative]),
                              key_datum(set.names, set.keys[row]),
                              Float4GetDatum(edge_operator_distance(set.metric, distance))};
            bool nulls[lengthof(values)] = {};
            tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
        }
    }
    pfree(central);
    pfree(other);
}

void choose_representatives(DuplicateGroups* groups, Representative way,
                            const TableColumns& columns, const char* expression) {
    switch (way) {
        case Representative::first:
            return choose_first(groups);
        case Representative::central:
            return choose_central(groups);
        case Representative::by_expression:
            return choose_by_expression(groups, columns, expression);
    }
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_duplicate_groups) {
    check_signature(fcinfo, 6, 5);
    constexpr const char* names[] = {"table",          "key",   "vector_column", "max_distance",
                                     "representative", "metric"};
    refuse_null_arguments(fcinfo, names, lengthof(names));
    const Oid table = PG_GETARG_OID(0);
    const char* expression = text_argument(fcinfo, 4);
    const Representative way = representative_called(expression);
    const Metric metric = graph_metric_called(text_argument(fcinfo, 5));
    const PairLimit limit = make_pair_limit(metric, PG_GETARG_FLOAT8(3));
    TableColumns columns = {table, NameStr(*PG_GETARG_NAME(2)), NameStr(*PG_GETARG_NAME(1))};
    compat_init_materialized(fcinfo);
    const auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    columns.names = names_in_result(result, 2, graph_memory());

    begin_graph_progress(table);
    GraphSet set = read_pair_set(columns, metric);
    Owned<NodeSets>* sets = owned_by<NodeSets>(CurrentMemoryContext);
    guarded([&] { sets->object = new NodeSets(set.count); });
    find_similar_pairs(&set, limit, {unite_rows, sets->object});
    DuplicateGroups groups = make_groups(set, sets->object);
    guarded([&] { delete std::exchange(sets->object, nullptr); });
    choose_representatives(&groups, way, columns, expression);
    put_groups(result, groups);
    if (set.file) BufFileClose(set.file);
    report_graph_times(table, set.count);
    end_graph_progress();
    return static_cast<Datum>(0);
}
