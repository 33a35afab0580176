#include "extension/graph/edge_index.h"
#include "extension/graph/edge_pages.h"
#include "extension/graph/edge_queue.h"

extern "C" {
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/nbtree.h"
#include "access/tableam.h"
#include "access/tupmacs.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/vacuum.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"
}

namespace pgwarp {

namespace {

constexpr Oid edge_types[] = {INT8OID, INT4OID, INT8OID, FLOAT4OID};

bool has_types(TupleDesc descriptor, const Oid* types, int count) {
    if (descriptor->natts != count) return false;
    for (int i = 0; i < count; ++i) {
        const auto* column = TupleDescAttr(descriptor, i);
        if (column->atttypid != types[i] || column->attisdropped || column->attgenerated != '\0')
            return false;
    }
    return true;
}

}  // namespace

bool takes_edge_pages(Relation table) {
    return table->rd_rel->relkind == RELKIND_RELATION &&
           table->rd_rel->relpersistence != RELPERSISTENCE_TEMP &&
           table->rd_tableam == GetHeapamTableAmRoutine() &&
           table->rd_createSubid != InvalidSubTransactionId && !RelationIsLogicallyLogged(table) &&
           has_types(RelationGetDescr(table), edge_types, lengthof(edge_types)) &&
           RelationGetNumberOfBlocks(table) == 0;
}

bool takes_edge_leaves(Relation index) {
    const auto& form = *index->rd_index;
    return index->rd_rel->relam == BTREE_AM_OID && form.indnatts == 2 && form.indnkeyatts == 2 &&
           form.indkey.values[0] == 1 && form.indkey.values[1] == 2 && form.indisprimary &&
           form.indisready && form.indimmediate && index->rd_indoption[0] == 0 &&
           index->rd_indoption[1] == 0 && has_types(RelationGetDescr(index), edge_types, 2) &&
           index->rd_createSubid != InvalidSubTransactionId &&
           RelationGetNumberOfBlocks(index) == BTREE_METAPAGE + 1;
}

struct EdgePages {
    BulkFile table, index;
    EdgeLayout layout;
    EdgeTarget target;
    EdgeQueue* queue;  // null: no workers
    EdgeIndex* tree;   // null: edges did not come in order
    int64 rows;
    EdgeKey last;
    // What comes next, until it is as much as fits into a task.
    EdgeTask* edges;
    EdgeTask* keys;
    uint32 most_edges, most_keys;
};

namespace {

EdgeTask* new_task(const EdgeLayout& layout, bool of_index) {
    auto* task = static_cast<EdgeTask*>(palloc(task_bytes(layout)));
    *task = {};
    task->of_index = of_index;
    return task;
}

void finish_task(EdgePages* to, EdgeTask* task) {
    if (task->count == 0) return;
    task->first = add_blocks(task->of_index ? &to->index : &to->table, pages_of(to->layout, *task));
    if (to->queue)
        submit_task(to->queue, *task);
    else
        run_edge_task(to->target, *task);
    task->count = 0;
}

// False: the key is not greater than the one before.
bool put_key(EdgePages* to, const EdgeKey& key) {
    EdgeTask* task = to->keys;
    const EdgeKey* last = to->rows > 0 ? &to->last : nullptr;
    if (last && (key.src < last->src || (key.src == last->src && key.rank <= last->rank)))
        return false;
    if (task->count % to->layout.keys_per_leaf == 0) {
        // Only now what is behind the last leaf is known.
        task->next = key;
        if (task->count == to->most_keys) finish_task(to, task);
        const auto leaf = static_cast<BlockNumber>(to->rows / to->layout.keys_per_leaf);
        note_leaf(to->tree, to->layout.first_leaf + leaf, last, key);
    }
    task->keys()[task->count++] = to->last = key;
    return true;
}

}  // namespace

EdgePages* open_edge_pages(Relation table, Relation index) {
    EdgePages* to = static_cast<EdgePages*>(palloc0(sizeof(EdgePages)));
    to->table = begin_bulk_file(table);
    to->index = begin_bulk_file(index);
    to->layout = edge_layout(table, index);
    to->target = open_edge_target(&to->layout, table, index);
    to->tree = open_edge_index();
    to->edges = new_task(to->layout, false);
    to->keys = new_task(to->layout, true);
    to->most_edges = most_in_task(to->layout, false);
    to->most_keys = most_in_task(to->layout, true);
    return to;
}

void expect_edges(EdgePages* to, Size edges) {
    // Fewer are written before workers have started.
    constexpr Size least = 200000;
    if (edges >= least) to->queue = open_edge_queue(to->target, max_parallel_maintenance_workers);
}

void put_edge(EdgePages* to, int64 src, int32 rank, int64 dst, float4 distance) {
    if (to->edges->count == to->most_edges) finish_task(to, to->edges);
    to->edges->edges()[to->edges->count++] = {src, dst, rank, distance};
    if (to->tree && !put_key(to, {src, rank})) to->tree = nullptr;
    ++to->rows;
}

void end_expected_edges(EdgePages* to) {
    if (to->queue) close_edge_queue(to->queue);
    to->queue = nullptr;
}

bool end_edge_pages(EdgePages* to) {
    finish_task(to, to->edges);
    end_bulk_file(to->table);
    if (to->tree) {
        to->keys->is_last = true;
        finish_task(to, to->keys);
        end_edge_index(to->tree, &to->index);
        end_bulk_file(to->index);
    }
    Relation table = to->table.relation, index = to->index.relation;
    pgstat_count_heap_insert(table, static_cast<PgStat_Counter>(to->rows));
    // The primary key was made while the table was empty: what it told the planner is outdated.
    const auto rows = static_cast<double>(to->rows);
    compat_set_size(table, RelationGetNumberOfBlocks(table), rows, true);
    if (to->tree) compat_set_size(index, RelationGetNumberOfBlocks(index), rows, false);
    CommandCounterIncrement();
    return to->tree != nullptr;
}

}  // namespace pgwarp
