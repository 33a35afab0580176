#include <algorithm>

#include "kernels/knn_graph.h"
#include "extension/graph/index.h"
#include "extension/graph/progress.h"
#include "extension/graph/set.h"
#include "extension/index/column.h"
#include "extension/index/options.h"
#include "extension/index/argument.h"
#include "extension/knn/merged_batch.h"

extern "C" {
#include "access/genam.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

// Whether this index can be searched in batches, and orders by this metric.
bool serves(Oid number, AttrNumber column, Metric metric) {
    Relation index = index_open(number, AccessShareLock);
    const bool fits = is_ivfpq(index) && index->rd_index->indisvalid &&
                      index->rd_index->indkey.values[0] == column &&
                      RelationGetIndexPredicate(index) == NIL && metric_of(index) == metric;
    index_close(index, NoLock);
    return fits;
}

}  // namespace

Oid look_for_graph_index(const TableColumns& columns, Metric metric) {
    const AttrNumber column = find_column(columns.table, columns.vector);
    Relation table = table_open(columns.table, AccessShareLock);
    Oid found = InvalidOid;
    // The index of a parent table lacks the rows of its children, unless these are partitions.
    const bool whole = table->rd_rel->relkind == RELKIND_PARTITIONED_TABLE ||
                       find_inheritance_children(columns.table, NoLock) == NIL;
    if (whole && table->rd_rel->relkind != RELKIND_VIEW) {
        List* indexes = RelationGetIndexList(table);
        ListCell* cell;
        foreach (cell, indexes)
            if (!OidIsValid(found) && serves(lfirst_oid(cell), column, metric))
                found = lfirst_oid(cell);
        list_free(indexes);
    }
    table_close(table, NoLock);
    return found;
}

Oid find_graph_index(const TableColumns& columns, Metric metric, const char* other_method) {
    const Oid found = look_for_graph_index(columns, metric);
    if (!OidIsValid(found))
        ereport(ERROR,
                (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                 errmsg("table \"%s\" has no ivfpq index on column \"%s\" for this metric",
                        get_rel_name(columns.table), columns.vector),
                 errdetail("It must be on the column itself and over all rows, of a table without "
                           "children, or of a partitioned table."),
                 errhint("Create the index, or use method %s.", other_method)));
    return found;
}

namespace {

bool is_zero(const float* vector, uint32 dims) {
    return std::all_of(vector, vector + dims, [](float value) { return value == 0; });
}

// The search was for k + 1 rows, as a row finds itself. If it has k + 1 duplicates or more, these
// may fill all places; the first k are written then.
void put_found(const IndexGraph& graph, int64 key, const KnnRows& found) {
    int32 rank = 0;
    for (uint32 i = 0; i < found.count && rank < static_cast<int32>(graph.k); ++i) {
        const KnnRow& row = found.rows[i];
        if (row.key_is_null || row.key == key) continue;
        // A zero vector has no cosine distance.
        if (row.distance != row.distance) continue;
        write_edge(graph.writer, key, ++rank, row.key, static_cast<float4>(row.distance));
    }
}

}  // namespace

void build_graph_by_index(const IndexGraph& graph) {
    // Opened first: this checks the caller's rights.
    TableReader* reader = open_table_reader(graph.columns);
    const Oid number = find_graph_index(graph.columns, graph.metric, "nn_descent");
    const KnnIndex index = open_knn_index(number, graph.columns.key, graph.columns.names);
    MergedBatch* batch = open_merged_batch(index, graph.k + 1);
    const Size room = most_queries(batch);
    float* vectors = static_cast<float*>(
        MemoryContextAllocHuge(CurrentMemoryContext, room * index.dims * sizeof(float)));
    GraphSet set = {};
    set.metric = graph.metric;
    Size key_room = room;
    set.keys =
        static_cast<int64*>(MemoryContextAllocHuge(CurrentMemoryContext, key_room * sizeof(int64)));
    while (dims_of(reader) != 0) {
        if (set.count + room > key_room) {
            key_room = std::max(set.count + room, 2 * key_room);
            set.keys = static_cast<int64*>(repalloc_huge(set.keys, key_room * sizeof(int64)));
        }
        int64* keys = set.keys + set.count;
        const Size count = read_block(reader, {vectors, keys, room});
        if (count == 0) break;
        search_batch(batch, vectors, static_cast<uint32>(count));
        for (Size i = 0; i < count; ++i) {
            if (graph.metric == Metric::cosine && is_zero(vectors + i * index.dims, index.dims)) {
                ++set.zeros;
                continue;
            }
            put_found(graph, keys[i], rows_of(batch, static_cast<uint32>(i)));
        }
        set.count += count;
        report_graph_stage(GraphStage::searching, static_cast<int64>(set.count), 0);
    }
    set.nulls = counts_of(reader).nulls;
    close_table_reader(reader);
    close_merged_batch(batch);
    close_knn_index(index);
    check_unique_keys(set, graph.columns);
    report_left_out(set);
}

}  // namespace pgwarp
