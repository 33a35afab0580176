#include <algorithm>

#include "extension/graph/edge_scan.h"
#include "extension/table/heap_page.h"
#include "extension/table/planned.h"

extern "C" {
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/tableam.h"
#include "access/tupmacs.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

namespace {

// Where the columns of an edge are in its table.
struct EdgeColumns {
    AttrNumber src, rank, dst, distance;
    int last;  // the greatest
};

// Whether a query would return all rows, and return them as they are.
bool has_all_rows(Relation table) {
    const Oid graph = RelationGetRelid(table);
    return table->rd_rel->relkind == RELKIND_RELATION && !has_subclass(graph) &&
           pg_class_aclcheck(graph, GetUserId(), ACL_SELECT) == ACLCHECK_OK &&
           check_enable_rls(graph, InvalidOid, true) != RLS_ENABLED &&
           where_rows_are(graph) == RowsAre::in_table;
}

bool may_scan_directly(Relation table, const KeyNames* names, EdgeColumns* columns) {
    const Oid graph = RelationGetRelid(table);
    if (names || is_compact_graph(graph) || !has_all_rows(table)) return false;
    *columns = {get_attnum(graph, "src"), get_attnum(graph, "rank"), get_attnum(graph, "dst"),
                get_attnum(graph, "distance"), 0};
    columns->last = std::max({columns->src, columns->rank, columns->dst, columns->distance});
    for (int i = 0; i < columns->last; ++i)
        if (compat_is_virtual(TupleDescAttr(RelationGetDescr(table), i))) return false;
    return get_atttype(graph, columns->src) == INT8OID &&
           get_atttype(graph, columns->rank) == INT4OID &&
           get_atttype(graph, columns->dst) == INT8OID &&
           get_atttype(graph, columns->distance) == FLOAT4OID;
}

void scan_slots(Relation table, const EdgeColumns& columns, const EdgeUse& use) {
    GrowingEdges some = new_growing_edges(edges_of_scan);
    TableEdges& edges = some.edges;
    TableScanDesc scan = compat_beginscan(table, GetActiveSnapshot());
    TupleTableSlot* slot = table_slot_create(table, nullptr);
    bool more = true;
    while (more) {
        more = table_scan_getnextslot(scan, ForwardScanDirection, slot);
        if (more) {
            slot_getsomeattrs(slot, columns.last);
            for (const AttrNumber column :
                 {columns.src, columns.rank, columns.dst, columns.distance})
                if (slot->tts_isnull[column - 1]) report_null_edge(RelationGetRelid(table));
            const auto value = [&](AttrNumber column) { return slot->tts_values[column - 1]; };
            edges.src[edges.count] = DatumGetInt64(value(columns.src));
            edges.rank[edges.count] = DatumGetInt32(value(columns.rank));
            edges.dst[edges.count] = DatumGetInt64(value(columns.dst));
            edges.distance[edges.count] = DatumGetFloat4(value(columns.distance));
            ++edges.count;
        }
        if (edges.count == edges_of_scan || (!more && edges.count > 0)) {
            CHECK_FOR_INTERRUPTS();
            use.use(use.state, edges);
            edges.count = 0;
        }
    }
    ExecDropSingleTupleTableSlot(slot);
    table_endscan(scan);
    free_edges(&edges);
}

// --- compact graphs: a row is the list of a source

struct ListColumns {
    AttrNumber src, neighbors, distances;
    int last;  // the greatest
};

bool may_scan_lists(Relation table, const KeyNames* names, ListColumns* columns) {
    const Oid graph = RelationGetRelid(table);
    if (names || !is_compact_graph(graph) || !has_all_rows(table)) return false;
    *columns = {get_attnum(graph, "src"), get_attnum(graph, "neighbors"),
                get_attnum(graph, "distances"), 0};
    columns->last = std::max({columns->src, columns->neighbors, columns->distances});
    for (int i = 0; i < columns->last; ++i)
        if (compat_is_virtual(TupleDescAttr(RelationGetDescr(table), i))) return false;
    return get_atttype(graph, columns->src) == INT8OID &&
           get_atttype(graph, columns->neighbors) == INT8ARRAYOID &&
           get_atttype(graph, columns->distances) == FLOAT4ARRAYOID;
}

// The array of a column; null: it has no elements.
const ArrayType* array_at(const TupleTableSlot* slot, AttrNumber column) {
    if (slot->tts_isnull[column - 1]) return nullptr;
    const ArrayType* array = DatumGetArrayTypeP(slot->tts_values[column - 1]);
    return ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)) > 0 ? array : nullptr;
}

struct ListScan {
    Oid graph;
    ListColumns columns;
    TableEdges edges;  // room for edges_of_scan
    const EdgeUse* use;
};

void use_edges(ListScan* scan) {
    CHECK_FOR_INTERRUPTS();
    if (scan->edges.count > 0) scan->use->use(scan->use->state, scan->edges);
    scan->edges.count = 0;
}

// The edges of a source, by rank.
void take_list(ListScan* scan, const TupleTableSlot* slot) {
    const ArrayType* neighbors = array_at(slot, scan->columns.neighbors);
    const ArrayType* distances = array_at(slot, scan->columns.distances);
    if (!neighbors && !distances) return;
    if (slot->tts_isnull[scan->columns.src - 1] || !neighbors || !distances ||
        ARR_HASNULL(neighbors) || ARR_HASNULL(distances))
        report_null_edge(scan->graph);
    const int count = ArrayGetNItems(ARR_NDIM(neighbors), ARR_DIMS(neighbors));
    if (ArrayGetNItems(ARR_NDIM(distances), ARR_DIMS(distances)) != count)
        report_null_edge(scan->graph);
    const int64 src = DatumGetInt64(slot->tts_values[scan->columns.src - 1]);
    const auto* dst = reinterpret_cast<const int64*>(ARR_DATA_PTR(neighbors));
    const auto* distance = reinterpret_cast<const float4*>(ARR_DATA_PTR(distances));
    TableEdges& edges = scan->edges;
    for (int i = 0; i < count; ++i) {
        if (edges.count == edges_of_scan) use_edges(scan);
        edges.src[edges.count] = src;
        edges.rank[edges.count] = i + 1;
        edges.dst[edges.count] = dst[i];
        edges.distance[edges.count++] = distance[i];
    }
}

// False: as scan_directly().
bool scan_lists(Relation table, const KeyNames* names, const EdgeUse& use) {
    constexpr int rows_at_once = 1024;
    ListScan scan = {RelationGetRelid(table), {}, {}, &use};
    if (!may_scan_lists(table, names, &scan.columns)) return false;
    scan.edges = new_growing_edges(edges_of_scan).edges;
    const MemoryContext arrays =
        AllocSetContextCreate(CurrentMemoryContext, "lists of a graph", ALLOCSET_DEFAULT_SIZES);
    TableScanDesc heap = compat_beginscan(table, GetActiveSnapshot());
    TupleTableSlot* slot = table_slot_create(table, nullptr);
    for (int rows = 1; table_scan_getnextslot(heap, ForwardScanDirection, slot); ++rows) {
        slot_getsomeattrs(slot, scan.columns.last);
        const MemoryContext before = MemoryContextSwitchTo(arrays);
        take_list(&scan, slot);
        MemoryContextSwitchTo(before);
        if (rows % rows_at_once != 0) continue;
        CHECK_FOR_INTERRUPTS();
        MemoryContextReset(arrays);
    }
    use_edges(&scan);
    ExecDropSingleTupleTableSlot(slot);
    table_endscan(heap);
    MemoryContextDelete(arrays);
    free_edges(&scan.edges);
    return true;
}

// --- page by page

// Offsets of the values in a row that has no nulls: all columns before them have a fixed length.
struct EdgePlaces {
    int src, rank, dst, distance;
    int columns;  // that a row must have
};

bool find_places(TupleDesc descriptor, const EdgeColumns& columns, EdgePlaces* places) {
    Size offset = 0;
    places->columns = columns.last;
    for (int i = 0; i < columns.last; ++i) {
        const auto* column = TupleDescAttr(descriptor, i);
        if (column->attlen <= 0) return false;
        offset = att_align_nominal(offset, column->attalign);
        const int number = i + 1, place = static_cast<int>(offset);
        if (number == columns.src) places->src = place;
        if (number == columns.rank) places->rank = place;
        if (number == columns.dst) places->dst = place;
        if (number == columns.distance) places->distance = place;
        offset += static_cast<Size>(column->attlen);
    }
    return true;
}

struct PageScan {
    Relation table;
    EdgeColumns columns;
    EdgePlaces places;
    Snapshot snapshot;
    // A transaction whose rows the snapshot sees, unless they were deleted: one has written most
    // rows of a graph.
    TransactionId visible;
};

bool is_visible(PageScan* scan, HeapTuple row, Buffer buffer) {
    // Of a row that is not deleted. A frozen row may have the number of a later transaction.
    constexpr uint16 hints = HEAP_XMIN_FROZEN | HEAP_XMAX_INVALID;
    constexpr uint16 committed = HEAP_XMIN_COMMITTED | HEAP_XMAX_INVALID;
    const HeapTupleHeader header = row->t_data;
    const TransactionId xmin = HeapTupleHeaderGetRawXmin(header);
    const auto is_committed = [&] { return (header->t_infomask & hints) == committed; };
    if (xmin == scan->visible && is_committed()) return true;
    if (!HeapTupleSatisfiesVisibility(row, scan->snapshot, buffer)) return false;
    if (is_committed()) scan->visible = xmin;
    return true;
}

template <typename T>
T value_at(const char* values, int place) {
    T value;
    memcpy(&value, values + place, sizeof(T));
    return value;
}

void take_row(const PageScan& scan, HeapTuple row, TableEdges* edges) {
    const HeapTupleHeader header = row->t_data;
    const Size at = edges->count++;
    if (!(header->t_infomask & HEAP_HASNULL) &&
        HeapTupleHeaderGetNatts(header) >= scan.places.columns) {
        const char* values = reinterpret_cast<const char*>(header) + header->t_hoff;
        edges->src[at] = value_at<int64>(values, scan.places.src);
        edges->rank[at] = value_at<int32>(values, scan.places.rank);
        edges->dst[at] = value_at<int64>(values, scan.places.dst);
        edges->distance[at] = value_at<float>(values, scan.places.distance);
        return;
    }
    const auto value = [&](AttrNumber column) {
        bool is_null;
        const Datum datum = heap_getattr(row, column, RelationGetDescr(scan.table), &is_null);
        if (is_null) report_null_edge(RelationGetRelid(scan.table));
        return datum;
    };
    edges->src[at] = DatumGetInt64(value(scan.columns.src));
    edges->rank[at] = DatumGetInt32(value(scan.columns.rank));
    edges->dst[at] = DatumGetInt64(value(scan.columns.dst));
    edges->distance[at] = DatumGetFloat4(value(scan.columns.distance));
}

// The page is locked: no row of it changes.
void take_page(PageScan* scan, Buffer buffer, TableEdges* edges) {
    const Page page = BufferGetPage(buffer);
    compat_check_snapshot(scan->snapshot, scan->table, page);
    const bool all = PageIsAllVisible(page) && !scan->snapshot->takenDuringRecovery;
    const OffsetNumber last = PageGetMaxOffsetNumber(page);
    const BlockNumber block = BufferGetBlockNumber(buffer);
    for (OffsetNumber i = FirstOffsetNumber; i <= last; ++i) {
        if (!ItemIdIsNormal(PageGetItemId(page, i))) continue;
        HeapTupleData row = tuple_on_page(scan->table, page, block, i);
        if (all || is_visible(scan, &row, buffer)) take_row(*scan, &row, edges);
    }
}

void scan_pages(PageScan* scan, const EdgeUse& use) {
    GrowingEdges some = new_growing_edges(edges_of_scan);
    TableEdges& edges = some.edges;
    BufferAccessStrategy strategy = scan_strategy(scan->table);
    const BlockNumber blocks = RelationGetNumberOfBlocks(scan->table);
    for (BlockNumber block = 0; block < blocks; ++block) {
        CHECK_FOR_INTERRUPTS();
        const Buffer buffer =
            ReadBufferExtended(scan->table, MAIN_FORKNUM, block, RBM_NORMAL, strategy);
        LockBuffer(buffer, BUFFER_LOCK_SHARE);
        take_page(scan, buffer, &edges);
        UnlockReleaseBuffer(buffer);
        const bool full = edges.count + MaxHeapTuplesPerPage > edges_of_scan;
        if (!full && block + 1 < blocks) continue;
        if (edges.count > 0) use.use(use.state, edges);
        edges.count = 0;
    }
    if (strategy) FreeAccessStrategy(strategy);
    free_edges(&edges);
}

// False: only a query can read this table, as its rows are not in it, or the caller does not see
// all of them. The table is locked, so that this stays so.
bool scan_directly(Relation table, const KeyNames* names, const EdgeUse& use) {
    PageScan scan = {table, {}, {}, GetActiveSnapshot(), InvalidTransactionId};
    if (!may_scan_directly(table, names, &scan.columns)) return false;
    // PostgreSQL's own scan takes the locks of a serializable transaction.
    if (table->rd_tableam == GetHeapamTableAmRoutine() && !IsolationIsSerializable() &&
        IsMVCCSnapshot(scan.snapshot) &&
        find_places(RelationGetDescr(table), scan.columns, &scan.places))
        scan_pages(&scan, use);
    else
        scan_slots(table, scan.columns, use);
    return true;
}

}  // namespace

void scan_graph_table(Oid graph, KeyNames* names, const EdgeUse& use) {
    check_graph_table(graph, names);
    // A view or a foreign table, too: check_graph_table() has seen that it is there.
    Relation table = relation_open(graph, AccessShareLock);
    const bool directly = scan_directly(table, names, use) || scan_lists(table, names, use);
    relation_close(table, NoLock);
    if (!directly) query_graph_table(graph, names, use);
}

}  // namespace pgwarp
