// duplicate_groups: rows of a table that are near duplicates of each other, group by group.
//
// Groups are the connected components of the pairs within a distance. Pairs are united as they are
// found, so that no list of them is needed. Equal rows are one vector: of many of them there are
// far too many pairs.

#include <algorithm>
#include <functional>
#include <utility>

#include "kernels/graph_stream.h"
#include "kernels/polling_order.h"
#include "extension/graph/distinct.h"
#include "extension/graph/functions.h"
#include "extension/graph/job.h"
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

// Vectors are united, each for all rows that have it.
struct United {
    NodeSets* sets;
    // (distinct rows) whether rows with this vector are beyond the limit from each other: inner
    // products of short ones. A row that is near to one of them is near to all.
    bool* apart;
};

void unite_rows(void* state, const RowPair& pair) {
    const auto* united = static_cast<United*>(state);
    united->sets->unite(pair.first, pair.second);
    united->apart[pair.first] = united->apart[pair.second] = false;
}

bool* find_apart(const DistinctRows& rows, Size count, const PairLimit& limit) {
    auto* apart = static_cast<bool*>(MemoryContextAllocExtended(CurrentMemoryContext,
                                                                std::max<Size>(rows.set.count, 1),
                                                                MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
    if (!rows.numbers) return apart;
    float* buffer = static_cast<float*>(palloc(rows.set.dims * sizeof(float)));
    // Numbers of vectors that no row before has ascend.
    uint32 next = 0;
    for (Size row = 0; row < count; ++row) {
        if (row % 1024 == 0) CHECK_FOR_INTERRUPTS();
        if (rows.numbers[row] != next) continue;
        const float* vector = vector_of(rows.set, next, buffer);
        apart[next++] =
            !(graph_distance(limit.metric, vector, vector, rows.set.dims) <= limit.bound);
    }
    pfree(buffer);
    return apart;
}

uint32* alloc_numbers(Size count) {
    return static_cast<uint32*>(
        MemoryContextAllocHuge(CurrentMemoryContext, std::max<Size>(count, 1) * sizeof(uint32)));
}

// What make_groups() knows of the rows whose vectors are in one set.
struct RowsOfSets {
    uint32* sizes;   // (distinct rows) by root; 1: these rows are in no group
    uint32* firsts;  // (distinct rows) by root: the row with the least key
};

RowsOfSets count_rows(const GraphSet& set, const DistinctRows& rows, const United& united) {
    RowsOfSets found = {alloc_numbers(rows.set.count), alloc_numbers(rows.set.count)};
    std::fill_n(found.sizes, rows.set.count, 0);
    for (uint32 row = 0; row < set.count; ++row) {
        if (row % 65536 == 0) CHECK_FOR_INTERRUPTS();
        const uint32 number = rows.number_of(row), root = united.sets->root_of(number);
        uint32& first = found.firsts[root];
        if (found.sizes[root] == 0 || key_is_less(set.names, set.keys[row], set.keys[first]))
            first = row;
        if (found.sizes[root] == 0 || !united.apart[number]) ++found.sizes[root];
    }
    return found;
}

// By group, then by key; groups by their first key.
void sort_members(const GraphSet& set, const DistinctRows& rows, NodeSets* sets,
                  const uint32* firsts, uint32* members, Size count) {
    const auto is_less = [&](uint32 a, uint32 b) {
        return key_is_less(set.names, set.keys[a], set.keys[b]);
    };
    run_graph_kernel([&] {
        PollingOrder order(query_interrupts(), [&](uint32 a, uint32 b) {
            const uint32 first_a = firsts[sets->root_of(rows.number_of(a))];
            const uint32 first_b = firsts[sets->root_of(rows.number_of(b))];
            return first_a != first_b ? is_less(first_a, first_b) : is_less(a, b);
        });
        std::sort(members, members + count, std::ref(order));
    });
}

DuplicateGroups make_groups(const GraphSet& set, const DistinctRows& rows, const United& united) {
    const RowsOfSets of_sets = count_rows(set, rows, united);
    const auto size_with = [&](uint32 row) {
        return of_sets.sizes[united.sets->root_of(rows.number_of(row))];
    };
    Size members = 0, groups = 0;
    for (uint32 row = 0; row < set.count; ++row) {
        if (row % 65536 == 0) CHECK_FOR_INTERRUPTS();
        if (size_with(row) > 1) ++members;
    }
    for (Size root = 0; root < rows.set.count; ++root)
        if (of_sets.sizes[root] > 1) ++groups;
    DuplicateGroups found = {&set, &rows, alloc_numbers(members), nullptr, groups};
    found.groups = static_cast<DuplicateGroup*>(MemoryContextAllocHuge(
        CurrentMemoryContext, std::max<Size>(groups, 1) * sizeof(DuplicateGroup)));
    Size at = 0;
    for (uint32 row = 0; row < set.count; ++row)
        if (size_with(row) > 1) found.members[at++] = row;
    sort_members(set, rows, united.sets, of_sets.firsts, found.members, members);
    Size begin = 0;
    for (Size group = 0; group < groups; ++group) {
        const Size end = begin + size_with(found.members[begin]);
        found.groups[group] = {begin, end, 0};
        begin = end;
    }
    pfree(of_sets.sizes);
    pfree(of_sets.firsts);
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
        const float* vector = vector_of_row(groups, group.representative, central);
        for (Size m = group.begin; m < group.end; ++m) {
            CHECK_FOR_INTERRUPTS();
            const uint32 row = groups.members[m];
            const float distance =
                graph_distance(set.metric, vector, vector_of_row(groups, row, other), set.dims);
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
    DistinctRows rows = take_distinct_rows(&set);
    Owned<NodeSets>* sets = owned_by<NodeSets>(CurrentMemoryContext);
    guarded([&] { sets->object = new NodeSets(rows.set.count); });
    United united = {sets->object, find_apart(rows, set.count, limit)};
    find_similar_pairs(&rows.set, limit, {unite_rows, &united});
    DuplicateGroups groups = make_groups(set, rows, united);
    guarded([&] { delete std::exchange(sets->object, nullptr); });
    choose_representatives(&groups, way, columns, expression);
    put_groups(result, groups);
    if (rows.set.file) BufFileClose(rows.set.file);
    report_graph_times(table, set.count);
    end_graph_progress();
    return static_cast<Datum>(0);
}
