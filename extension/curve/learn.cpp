// ivfpq_learn: measures the recall curve of an index with queries that the user gives.
//
// A build measures with rows of the table, but searches may ask for other vectors: farther from all
// rows, or more often where rows lie dense. The curve of their like chooses the effort that they
// need. Nothing changes until one WAL record puts the new curve on the metapage.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/random.h"
#include "extension/curve/curve.h"
#include "extension/curve/true_neighbors.h"
#include "extension/index/argument.h"
#include "extension/index/column.h"
#include "extension/index/effort.h"
#include "extension/index/model.h"
#include "extension/index/page_changes.h"
#include "extension/index/place.h"
#include "extension/scan/exact.h"
#include "extension/table/table_reader.h"
#include "extension/util/signature.h"

extern "C" {
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
}

namespace pgwarp {

namespace {

// Fewer would measure too inaccurately.
constexpr int least_queries = 64;
constexpr int most_queries = 100000;

template <typename T>
T* alloc_array(Size count) {
    return static_cast<T*>(
        MemoryContextAllocHuge(CurrentMemoryContext, Max(count, Size{1}) * sizeof(T)));
}

// The trained parts of the index with their metapages, checked before any work. Releases the parts:
// the queries are read as the caller, not as the owner of the index's table.
struct Learner {
    IndexLeaves parts;
    MetaPage* metas;  // (parts)
    VectorType type;
};
Learner check_learner(Oid relation) {
    const IndexLeaves all = find_parts(relation, Purpose::maintain);
    Learner learner = {{all.leaves, 0}, alloc_array<MetaPage>(static_cast<Size>(all.count)), {}};
    for (int i = 0; i < all.count; ++i) {
        const OpenIndex open = open_part(all.leaves[i], AccessShareLock);
        const MetaPage meta = read_meta(open.index);
        if (meta.lists > 0) {
            learner.type = type_of(open.index);
            learner.metas[learner.parts.count] = meta;
            learner.parts.leaves[learner.parts.count++] = all.leaves[i];
        }
        close_index(open);
    }
    if (learner.parts.count == 0)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("index \"%s\" is not trained yet", get_rel_name(relation)),
                        errdetail("Its scans are exact: there is nothing to learn.")));
    return learner;
}

struct GivenQueries {
    float* vectors;  // (room)(dims), as given; in random order once all are read
    uint32 room;
    uint32 count;
    uint64 seen;  // usable ones
};

[[noreturn]] void report_query_dims(uint32 given, uint32 dims) {
    ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION),
                    errmsg("different vector dimensions %u and %u", given, dims),
                    errdetail("The queries have %u dimensions, the index has %u.", given, dims)));
}

void keep_query(const float* vector, uint32 dims, Random* random, GivenQueries* queries) {
    ++queries->seen;
    uint64 slot = queries->count;
    if (queries->count < queries->room)
        ++queries->count;
    else
        slot = random->below(queries->seen);
    if (slot < queries->room) memcpy(queries->vectors + slot * dims, vector, dims * sizeof(float));
}

void shuffle(uint32 dims, Random* random, GivenQueries* queries) {
    for (uint32 i = 0; i + 1 < queries->count; ++i) {
        const Size other = i + random->below(queries->count - i);
        float* here = queries->vectors + Size{i} * dims;
        std::swap_ranges(here, here + dims, queries->vectors + other * dims);
    }
}

// A random sample of the column's vectors, at most `room`. Those without distances are left out.
// They are what a cast to the index's type makes of them.
GivenQueries read_queries(const TableColumns& columns, uint32 room, const MetaPage& meta,
                          const VectorType& type) {
    const uint32 dims = meta.dims;
    TableReader* reader = open_table_reader(columns);
    const uint32 given_dims = dims_of(reader);
    if (given_dims != 0 && given_dims != dims) report_query_dims(given_dims, dims);
    GivenQueries queries = {alloc_array<float>(Size{room} * dims), room, 0, 0};
    constexpr Size block_rows = 64;
    VectorBlock block = {alloc_array<float>(block_rows * dims), nullptr, block_rows};
    Random random(static_cast<uint64>(meta.seed));
    while (const Size count = given_dims == 0 ? 0 : read_block(reader, block))
        for (Size i = 0; i < count; ++i) {
            float* vector = block.vectors + i * dims;
            check_elements(vector, static_cast<int>(dims), type.name());
            type.round(vector, dims);
            if (has_distances(meta.metric, vector, dims))
                keep_query(vector, dims, &random, &queries);
        }
    const int64 nulls = counts_of(reader).nulls;
    close_table_reader(reader);
    if (queries.count < least_queries)
        ereport(
            ERROR,
            (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
             errmsg("at least %d queries are needed, there are %u", least_queries, queries.count),
             nulls > 0 ? errdetail("%lld are null.", static_cast<long long>(nulls)) : 0));
    pfree(block.vectors);
    shuffle(dims, &random, &queries);
    return queries;
}

// Two sets of queries: the first have neighbors for k = 1,000, as many as memory allows.
struct WantedNeighbors {
    QuerySet sets[2];
};
WantedNeighbors plan_neighbors(uint32 dims, uint32 count) {
    const Size memory = static_cast<Size>(maintenance_work_mem) * 1024;
    WantedNeighbors wanted = {
        {{nullptr, 0, most_curve_neighbors, nullptr}, {nullptr, count, curve_neighbors, nullptr}}};
    const Size least = search_bytes(dims, wanted.sets, 2);
    if (least > memory)
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                        errmsg("memory required is %zu MB, maintenance_work_mem is %d MB",
                               least / (1024 * 1024) + 1, maintenance_work_mem / 1024),
                        errhint("Ask for fewer queries.")));
    wanted.sets[0].count = 1;
    wanted.sets[1].count = count - 1;
    const Size one = search_bytes(dims, wanted.sets, 2) - least;
    const auto wide = static_cast<uint32>(std::min<Size>(count, (memory - least) / one));
    wanted.sets[0].count = wide;
    wanted.sets[1].count = count - wide;
    return wanted;
}

// Queries for measure_curve; none is a row of the table as far as it knows.
CurveQuery* find_curve_queries(const OpenIndex& open, const MetaPage& meta,
                               const GivenQueries& given) {
    const uint32 dims = meta.dims;
    WantedNeighbors wanted = plan_neighbors(dims, given.count);
    float* forms = alloc_array<float>(Size{given.count} * dims);
    for (Size q = 0; q < given.count; ++q)
        index_form(meta.metric, given.vectors + q * dims, dims, forms + q * dims);
    const float* next = forms;
    for (QuerySet& set : wanted.sets) {
        set.queries = next;
        set.nearest = alloc_array<Neighbor>(Size{set.count} * set.k);
        next += Size{set.count} * dims;
    }
    find_true_neighbors({open.heap, open.index, GetActiveSnapshot(), meta.metric, dims,
                         static_cast<double>(meta.rows_at_build)},
                        wanted.sets, 2);
    CurveQuery* queries = alloc_array<CurveQuery>(given.count);
    uint32 at = 0;
    for (const QuerySet& set : wanted.sets) {
        for (Size q = 0; q < set.count; ++q, ++at) {
            Neighbor* nearest = set.nearest + q * set.k;
            for (uint32 i = 0; i < set.k; ++i)
                if (std::isinf(nearest[i].distance)) nearest[i].id = 0;
            float* form = alloc_array<float>(meta.code_dims);
            model_form(open.index, meta, given.vectors + Size{at} * dims, form);
            queries[at] = {0, form, nearest, set.k};
        }
    }
    pfree(forms);
    return queries;
}

// One row of the result: what changes for this k.
void put_change(ReturnSetInfo* result, Oid index, const MetaPage& before, const MetaPage& after,
                int number) {
    const uint32 k = RecallCurve::k_values[number];
    const Effort old_effort = choose_effort(before, k, false);
    const Effort new_effort = choose_effort(after, k, false);
    ExpectedRecall expected = {};
    ExpectedRecall measured = {};
    ExpectedRecall now = {};
    const bool was_expected =
        before.curve.queries[number] > 0 && expected_recall(before, k, old_effort, &expected);
    expected_recall(after, k, old_effort, &measured);
    expected_recall(after, k, new_effort, &now);
    if (searches_exactly(after)) expected = measured = now = {1, 0};
    const auto number_of = [](uint32 value) { return Int32GetDatum(static_cast<int32>(value)); };
    Datum values[] = {number_of(k),
                      number_of(after.curve.queries[number]),
                      Float8GetDatum(expected.recall),
                      Float8GetDatum(measured.recall),
                      number_of(old_effort.probes),
                      number_of(old_effort.candidates),
                      Float8GetDatum(now.recall),
                      Float8GetDatum(now.within),
                      number_of(new_effort.probes),
                      number_of(new_effort.candidates),
                      ObjectIdGetDatum(index)};
    bool nulls[lengthof(values)] = {};
    nulls[2] = !was_expected;
    tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

// Measures one part, and writes its curve. `seen`: what the metapage was when queries were chosen.
void teach_part(const IndexLeaf& part, const MetaPage& seen, const GivenQueries& given, bool alone,
                ReturnSetInfo* result) {
    // Keeps VACUUM away, which may train or measure, and REINDEX. Writers go on.
    const OpenIndex open = open_part(part, ShareUpdateExclusiveLock);
    const MetaPage before = read_meta(open.index);
    if (before.build_id != seen.build_id || before.lists == 0)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE),
                        errmsg("index \"%s\" was built anew meanwhile",
                               RelationGetRelationName(open.index)),
                        errhint("Try again.")));
    const CurveQuery* queries = find_curve_queries(open, before, given);
    MetaPage after = before;
    after.curve_rows = count_entries(open.index, before);
    after.removed_rows = 0;
    set_curve(&after, measure_curve(open.index, after, queries, given.count));
    if (has_curve(after)) {
        after.curve_source = CurveSource::queries;
        after.curve_at = GetCurrentTimestamp();
        after.forget_learned();  // corrections were those of the curve before
        write_training(open.index, after);
        for (int k = 0; k < RecallCurve::ks; ++k)
            if (after.curve.queries[k] > 0) put_change(result, part.index, before, after, k);
    } else {
        // A partition that has lost its rows stays as it is, and the others learn.
        ereport(alone ? ERROR : NOTICE, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                                         errmsg("the queries have no neighbors in table \"%s\"",
                                                RelationGetRelationName(open.heap))));
    }
    close_index(open);
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(ivfpq_learn) {
    check_signature(fcinfo, 4, 11);
    PreventCommandDuringRecovery("ivfpq_learn()");
    PreventCommandIfReadOnly("ivfpq_learn()");
    PreventCommandIfParallelMode("ivfpq_learn()");
    const int32 asked = PG_GETARG_INT32(3);
    if (asked < least_queries || asked > most_queries)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("queries must be between %d and %d", least_queries, most_queries)));
    compat_init_materialized(fcinfo);
    const Learner learner = check_learner(PG_GETARG_OID(0));
    const MetaPage& first = learner.metas[0];
    plan_neighbors(first.dims, static_cast<uint32>(asked));  // an error where memory is too small
    TableColumns columns = {PG_GETARG_OID(1), NameStr(*PG_GETARG_NAME(2)), nullptr};
    const GivenQueries given =
        read_queries(columns, static_cast<uint32>(asked), first, learner.type);
    const MemoryContext scratch =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq learning", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(scratch);
    for (int i = 0; i < learner.parts.count; ++i) {
        teach_part(learner.parts.leaves[i], learner.metas[i], given, learner.parts.count == 1,
                   reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo));
        MemoryContextReset(scratch);
    }
    MemoryContextSwitchTo(before);
    return Datum{0};
}
