#include <cstring>

#include "extension/graph/edge_index.h"
#include "extension/graph/edge_pages.h"

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
    Relation table;
    Relation index;
    BulkPages* pages;
    EdgeIndex* entries;  // null: edges did not come in order
    int64 rows;

    Page page;          // where the next row goes; null before the first
    BlockNumber block;  // its number
    OffsetNumber rows_here;
    OffsetNumber rows_per_page;

    HeapTuple row;   // copied into pages
    Size row_bytes;  // with padding
    // Where its values are.
    Size src, rank, dst, distance;
};

namespace {

// As heap_insert() would prepare it.
void form_row(EdgePages* to) {
    const TupleDesc descriptor = RelationGetDescr(to->table);
    Datum values[lengthof(edge_types)] = {Int64GetDatum(0), Int32GetDatum(0), Int64GetDatum(0),
                                          Float4GetDatum(0)};
    bool nulls[lengthof(edge_types)] = {};
    to->row = heap_form_tuple(descriptor, values, nulls);
    HeapTupleHeader header = to->row->t_data;
    header->t_infomask &= static_cast<uint16>(~HEAP_XACT_MASK);
    header->t_infomask2 &= static_cast<uint16>(~HEAP2_XACT_MASK);
    header->t_infomask |= HEAP_XMAX_INVALID;
    HeapTupleHeaderSetXmin(header, GetCurrentTransactionId());
    HeapTupleHeaderSetCmin(header, GetCurrentCommandId(true));
    HeapTupleHeaderSetXmax(header, InvalidTransactionId);
    Size* places[] = {&to->src, &to->rank, &to->dst, &to->distance};
    Size offset = 0;
    for (int i = 0; i < descriptor->natts; ++i) {
        const auto* column = TupleDescAttr(descriptor, i);
        offset = att_align_nominal(offset, column->attalign);
        *places[i] = header->t_hoff + offset;
        offset += static_cast<Size>(column->attlen);
    }
    if (header->t_hoff + offset != to->row->t_len)
        elog(ERROR, "a row of an edge has another length");
    to->row_bytes = MAXALIGN(to->row->t_len);
}

void begin_page(EdgePages* to) {
    to->block = next_block(to->pages);
    to->page = add_page(to->pages);
    PageInit(to->page, BLCKSZ, 0);
    to->rows_here = 0;
}

// The page's items grow from its ends towards each other; PageAddItem() would look for free line
// pointers each time.
char* add_row(EdgePages* to) {
    auto* header = reinterpret_cast<PageHeader>(to->page);
    const auto offset = static_cast<LocationIndex>(header->pd_upper - to->row_bytes);
    ItemIdSetNormal(&header->pd_linp[to->rows_here], offset, to->row->t_len);
    header->pd_lower = static_cast<LocationIndex>(header->pd_lower + sizeof(ItemIdData));
    header->pd_upper = offset;
    ++to->rows_here;
    char* row = static_cast<char*>(to->page) + offset;
    memcpy(row, to->row->t_data, to->row->t_len);
    return row;
}

}  // namespace

EdgePages* open_edge_pages(Relation table, Relation index) {
    EdgePages* to = static_cast<EdgePages*>(palloc0(sizeof(EdgePages)));
    to->table = table;
    to->index = index;
    to->pages = open_bulk_pages(table);
    to->entries = open_edge_index(index);
    form_row(to);
    to->rows_per_page =
        static_cast<OffsetNumber>((BLCKSZ - SizeOfPageHeaderData -
                                   RelationGetTargetPageFreeSpace(table, HEAP_DEFAULT_FILLFACTOR)) /
                                  (to->row_bytes + sizeof(ItemIdData)));
    return to;
}

void put_edge(EdgePages* to, int64 src, int32 rank, int64 dst, float4 distance) {
    if (!to->page || to->rows_here == to->rows_per_page) begin_page(to);
    char* row = add_row(to);
    memcpy(row + to->src, &src, sizeof(src));
    memcpy(row + to->rank, &rank, sizeof(rank));
    memcpy(row + to->dst, &dst, sizeof(dst));
    memcpy(row + to->distance, &distance, sizeof(distance));
    ItemPointerData place;
    ItemPointerSet(&place, to->block, to->rows_here);
    reinterpret_cast<HeapTupleHeader>(row)->t_ctid = place;
    ++to->rows;
    if (to->entries && !put_entry(to->entries, src, rank, place)) to->entries = nullptr;
}

bool end_edge_pages(EdgePages* to) {
    close_bulk_pages(to->pages);
    if (to->entries) end_edge_index(to->entries);
    pgstat_count_heap_insert(to->table, static_cast<PgStat_Counter>(to->rows));
    // The primary key was made while the table was empty: what it told the planner is outdated.
    const auto rows = static_cast<double>(to->rows);
    compat_set_size(to->table, RelationGetNumberOfBlocks(to->table), rows, true);
    if (to->entries) compat_set_size(to->index, RelationGetNumberOfBlocks(to->index), rows, false);
    CommandCounterIncrement();
    return to->entries != nullptr;
}

}  // namespace pgwarp
