#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/distance.h"
#include "extension/graph/changes.h"
#include "extension/graph/metric.h"
#include "extension/graph/table.h"

extern "C" {
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rls.h"
}

namespace pgwarp {

namespace {

// Of ranks or distances.
Datum array_of(Datum* values, int count, Oid type) {
    return PointerGetDatum(construct_array(values, count, type, 4, true, TYPALIGN_INT));
}

SPIPlanPtr prepare(const char* query, int arguments, Oid* types) {
    SPIPlanPtr plan = SPI_prepare(query, arguments, types);
    if (!plan) elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
    return plan;
}

// Whoever may only delete and insert has lists replaced.
bool may_update(Oid graph) {
    return pg_class_aclcheck(graph, GetUserId(), ACL_UPDATE) == ACLCHECK_OK &&
           check_enable_rls(graph, InvalidOid, true) != RLS_ENABLED;
}

EdgeArrays new_edge_arrays(Size room) {
    return {static_cast<int64*>(palloc(room * sizeof(int64))),
            static_cast<Datum*>(palloc(room * sizeof(Datum))),
            static_cast<int64*>(palloc(room * sizeof(int64))),
            static_cast<Datum*>(palloc(room * sizeof(Datum))), 0};
}

}  // namespace

void prepare_changes(Changes* changes) {
    const char* name = qualified_name(changes->graph);
    const Oid keys = changes->set->names ? TEXTARRAYOID : INT8ARRAYOID;
    Oid types[] = {keys, INT4ARRAYOID, keys, FLOAT4ARRAYOID};
    const char* src = key_type_name(changes->graph, "src");
    changes->remove = prepare(
        psprintf("DELETE FROM %s WHERE src OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.%s[])", name,
                 src),
        1, types);
    const bool compact = is_compact_graph(changes->graph);
    const char* dst = compact ? src : key_type_name(changes->graph, "dst");
    const char* edges_as_rows = psprintf(
        "ROWS FROM (pg_catalog.unnest($1::pg_catalog.%s[]), pg_catalog.unnest($2), "
        "pg_catalog.unnest($3::pg_catalog.%s[]), pg_catalog.unnest($4)) AS edge (src, "
        "rank, dst, distance)",
        src, dst);
    changes->add = prepare(
        compact ? psprintf("INSERT INTO %s (src, neighbors, distances) SELECT src, "
                           "pg_catalog.array_agg(dst ORDER BY rank), "
                           "pg_catalog.array_agg(distance ORDER BY rank) FROM %s GROUP BY src",
                           name, edges_as_rows)
                : psprintf("INSERT INTO %s (src, rank, dst, distance) SELECT src, rank, dst, "
                           "distance FROM %s",
                           name, edges_as_rows),
        4, types);
    if (changes->in_place && !compact && may_update(changes->graph))
        changes->change = prepare(
            psprintf("UPDATE %s AS graph SET dst = edge.dst, distance = edge.distance FROM %s "
                     "WHERE graph.src OPERATOR(pg_catalog.=) edge.src AND graph.rank "
                     "OPERATOR(pg_catalog.=) edge.rank",
                     name, edges_as_rows),
            4, types);
    changes->added = new_edge_arrays(Size{Changes::at_once} * changes->k);
    changes->changed = new_edge_arrays(Size{Changes::at_once} * changes->k);
}

namespace {

int execute(const Changes& changes, SPIPlanPtr plan, Datum* values) {
    return SPI_execute_snapshot(plan, values, nullptr, changes.snapshot, InvalidSnapshot, false,
                                true, 0);
}

void write_edges(const Changes& changes, SPIPlanPtr plan, int expected, EdgeArrays* edges) {
    if (edges->count == 0) return;
    const KeyNames* names = changes.set->names;
    const auto count = static_cast<Size>(edges->count);
    Datum values[] = {
        key_array(names, edges->src, count), array_of(edges->rank, edges->count, INT4OID),
        key_array(names, edges->dst, count), array_of(edges->distance, edges->count, FLOAT4OID)};
    if (execute(changes, plan, values) != expected) elog(ERROR, "could not write edges");
    for (const Datum value : values) pfree(DatumGetPointer(value));
    edges->count = 0;
}

}  // namespace

void flush_changes(Changes* changes) {
    CHECK_FOR_INTERRUPTS();
    const int level = begin_keyed_queries();
    if (changes->key_count > 0) {
        Datum keys =
            key_array(changes->set->names, changes->keys, static_cast<Size>(changes->key_count));
        if (execute(*changes, changes->remove, &keys) != SPI_OK_DELETE)
            elog(ERROR, "could not remove edges");
        pfree(DatumGetPointer(keys));
    }
    write_edges(*changes, changes->add, SPI_OK_INSERT, &changes->added);
    write_edges(*changes, changes->change, SPI_OK_UPDATE, &changes->changed);
    AtEOXact_GUC(false, level);
    changes->source_count = changes->key_count = 0;
}

namespace {

void put_edge(EdgeArrays* edges, int64 src, int32 rank, int64 dst, float distance) {
    const int at = edges->count++;
    edges->src[at] = src;
    edges->rank[at] = Int32GetDatum(rank);
    edges->dst[at] = dst;
    edges->distance[at] = Float4GetDatum(distance);
}

void put_edge(const Changes& changes, EdgeArrays* edges, int64 src, const Edge* list, uint32 i) {
    put_edge(edges, src, static_cast<int32>(i) + 1, changes.set->keys[list[i].row],
             edge_operator_distance(changes.set->metric, list[i].distance));
}

// Behind those that the source has.
void add_list(Changes* changes, int64 src, const Edge* list) {
    for (uint32 i = 0; i < changes->k && list[i].row != no_row; ++i)
        put_edge(*changes, &changes->added, src, list, i);
}

}  // namespace

void begin_list(Changes* changes) {
    if (changes->source_count == Changes::at_once) flush_changes(changes);
    ++changes->source_count;
}

void replace_edges(Changes* changes, int64 src) {
    begin_list(changes);
    changes->keys[changes->key_count++] = src;
}

void add_edge(Changes* changes, int64 src, int32 rank, int64 dst, float distance) {
    put_edge(&changes->added, src, rank, dst, distance);
}

void update_edge(Changes* changes, int64 src, int32 rank, int64 dst, float distance) {
    put_edge(&changes->changed, src, rank, dst, distance);
}

float* find_norms(const GraphSet& set) {
    if (set.metric != Metric::inner_product) return nullptr;
    constexpr Size block_rows = 1024;
    float* norms = static_cast<float*>(
        MemoryContextAllocHuge(CurrentMemoryContext, std::max<Size>(set.count, 1) * sizeof(float)));
    float* block = static_cast<float*>(
        MemoryContextAllocHuge(CurrentMemoryContext, block_rows * set.dims * sizeof(float) + 1));
    for (Size first = 0; first < set.count; first += block_rows) {
        const Size count = std::min(block_rows, set.count - first);
        if (set.file) read_spilled(set, first, count, block);
        const float* rows = set.file ? block : set.rows + first * set.dims;
        for (Size i = 0; i < count; ++i)
            norms[first + i] =
                static_cast<float>(std::sqrt(squared_norm(rows + i * set.dims, set.dims)));
    }
    pfree(block);
    return norms;
}

namespace {

// How far the distance of an edge in the table may be from that of its rows.
float rounding_of_edge(const Changes& changes, uint32 row, const Edge& edge) {
    const float norms = changes.norms ? changes.norms[row] * changes.norms[edge.row] : 0;
    const float shown = edge_operator_distance(changes.set->metric, edge.distance);
    return rounding_of(*changes.set, shown, norms);
}

// Whether the edges of a row, sorted by rank, are those of its list. Neighbors whose distances are
// equal up to rounding may be in any order.
bool same_list(const Changes& changes, const WrittenEdge* written, Size count, uint32 row,
               const Edge* list) {
    Size there = 0;
    while (there < changes.k && list[there].row != no_row) ++there;
    if (count != there) return false;
    const auto shown = [&](Size i) {
        return edge_operator_distance(changes.set->metric, list[i].distance);
    };
    for (Size i = 0; i < count; ++i) {
        const float rounding = rounding_of_edge(changes, row, list[i]);
        const auto is_equal = [&](float distance) {
            return std::fabs(distance - shown(i)) <= rounding;
        };
        if (written[i].rank != static_cast<int32>(i) + 1 || !is_equal(written[i].distance))
            return false;
        Size equal = i;
        while (equal > 0 && is_equal(shown(equal - 1))) --equal;
        while (equal < count && is_equal(shown(equal)) &&
               changes.set->keys[list[equal].row] != written[i].dst)
            ++equal;
        if (equal == count || !is_equal(shown(equal))) return false;
    }
    return true;
}

// The rows of sources. Edges of one follow each other, for the most part.
struct SourceRows {
    const Changes* changes;
    int64 key;
    uint32 row;
    bool any;  // whether key and row are set

    uint32 find(int64 src) {
        if (any && src == key) return row;
        key = src;
        row = find_key(changes->sorted, changes->set->count, src);
        any = true;
        return row;
    }
};

// Collects the edges that the table has of these rows. Returns how many each has; those behind the
// first k are not kept, as a longer list differs in any case.
uint32* find_written(const Changes& changes, const ChangedRows& rows) {
    const Size count = rows.end - rows.begin;
    uint32* lengths = static_cast<uint32*>(
        MemoryContextAllocExtended(CurrentMemoryContext, std::max<Size>(count, 1) * sizeof(uint32),
                                   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
    SourceRows sources = {&changes, 0, 0, false};
    for_edges(changes.given->edges, [&](const KeyedEdge& edge) {
        const uint32 src = sources.find(edge.src);
        if (src == no_row || src < rows.begin || src >= rows.end) return;
        const uint32 place = lengths[src - rows.begin]++;
        if (place < changes.k)
            rows.written[(src - rows.begin) * changes.k + place] = {edge.dst, edge.rank,
                                                                    edge.distance};
    });
    return lengths;
}

// Whether a list can take the place of the table's edge by edge: these have ranks from 1 on, and
// are no more.
bool takes_place(const Changes& changes, const WrittenEdge* written, Size count, const Edge* list) {
    if (!changes.change || count == 0) return false;
    for (Size i = 0; i < count; ++i)
        if (written[i].rank != static_cast<int32>(i) + 1 || list[i].row == no_row) return false;
    return true;
}

// Queues the edges of a list that differ from those of the table.
void change_list(Changes* changes, uint32 row, const Edge* list, const WrittenEdge* written,
                 Size count) {
    const int64 key = changes->set->keys[row];
    begin_list(changes);
    for (uint32 i = 0; i < changes->k && list[i].row != no_row; ++i) {
        const float distance = edge_operator_distance(changes->set->metric, list[i].distance);
        if (i >= count)
            put_edge(*changes, &changes->added, key, list, i);
        else if (written[i].dst != changes->set->keys[list[i].row] ||
                 std::fabs(written[i].distance - distance) >
                     rounding_of_edge(*changes, row, list[i]))
            put_edge(*changes, &changes->changed, key, list, i);
    }
}

// Writes the list of a row where it differs. `written`: up to k of its `length` edges.
void write_list(Changes* changes, uint32 row, const Edge* list, WrittenEdge* written, Size length) {
    bool in_place = false;
    if (length <= changes->k) {
        std::sort(written, written + length,
                  [](const WrittenEdge& a, const WrittenEdge& b) { return a.rank < b.rank; });
        if (same_list(*changes, written, length, row, list)) return;
        in_place = takes_place(*changes, written, length, list);
    }
    ++(length > 0 ? changes->counts.changed : changes->counts.added);
    if (in_place) return change_list(changes, row, list, written, length);
    const int64 key = changes->set->keys[row];
    if (length > 0)
        replace_edges(changes, key);
    else
        begin_list(changes);
    add_list(changes, key, list);
}

}  // namespace

void write_changes(Changes* changes, const ChangedRows& rows) {
    uint32* lengths = find_written(*changes, rows);
    for (Size i = 0; i < rows.end - rows.begin; ++i) {
        if (i % 1024 == 0) CHECK_FOR_INTERRUPTS();
        write_list(changes, static_cast<uint32>(rows.begin + i), rows.lists + i * rows.stride,
                   rows.written + i * changes->k, lengths[i]);
    }
    pfree(lengths);
}

void write_new_lists(Changes* changes, Edge* lists, uint32 stride) {
    const GraphSet& set = *changes->set;
    const GivenLists& given = *changes->lists;
    const uint32 k = changes->k;
    WrittenEdge* written = static_cast<WrittenEdge*>(palloc(k * sizeof(WrittenEdge)));
    for (Size i = 0; i < set.count; ++i) {
        if (i % 1024 == 0) CHECK_FOR_INTERRUPTS();
        const auto row = static_cast<uint32>(i);
        const Edge* before = given.lists + i * k;
        Edge* list = lists + i * stride;
        if (given.whole[i] && given.lengths[i] <= k && memcmp(list, before, k * sizeof(Edge)) == 0)
            continue;
        for (uint32 j = 0; j < k && list[j].row != no_row; ++j)
            list[j].distance = vector_distance(set, row, list[j].row);
        std::stable_sort(list, list + k,
                         [](const Edge& a, const Edge& b) { return a.distance < b.distance; });
        Size length = given.lengths[i];
        for (uint32 j = 0; j < std::min<Size>(length, k); ++j) {
            // A neighbor that is gone: the list differs from any.
            const bool there = before[j].row != no_row;
            written[j] = {there ? set.keys[before[j].row] : 0,
                          there ? static_cast<int32>(j) + 1 : 0,
                          edge_operator_distance(set.metric, before[j].distance)};
        }
        write_list(changes, row, list, written, length);
    }
    pfree(written);
}

Owned<NodeNumbers>* find_gone(const Changes& changes) {
    Owned<NodeNumbers>* gone = new_gone();
    KeyedEdge* some = static_cast<KeyedEdge*>(palloc(sizeof(KeyedEdge) * edges_at_once));
    const GraphEdges& edges = changes.given->edges;
    bool fits = true;
    SourceRows sources = {&changes, 0, 0, false};
    for (Size first = 0; fits && first < edges.count;) {
        const Size here = next_edges(edges, first, some);
        first += here;
        guarded([&] {
            for (Size i = 0; i < here; ++i)
                if (sources.find(some[i].src) == no_row)
                    fits = gone->object->add(some[i].src) && fits;
        });
    }
    pfree(some);
    finish_gone(gone, fits, changes.graph);
    return gone;
}

void remove_gone(Changes* changes, const NodeNumbers& gone) {
    for (Size i = 0; i < gone.count(); ++i)
        replace_edges(changes, gone.node(static_cast<uint32>(i)));
    changes->counts.removed = static_cast<int64>(gone.count());
}

}  // namespace pgwarp
