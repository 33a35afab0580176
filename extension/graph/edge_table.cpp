#include "extension/graph/edge_pages.h"
#include "extension/graph/edge_table.h"

extern "C" {
#include "access/heapam.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

struct PageWriter {
    EdgeWriter writer;
    EdgePages* pages;
};

struct RowWriter {
    // As COPY and CREATE TABLE AS with many rows: a record of WAL for a page, not for a row.
    static constexpr int at_once = 1000;
    static constexpr Size most_bytes = 1024 * 1024;

    EdgeWriter writer;
    Relation table;
    const KeyNames* names;  // null: keys are integers
    Oid key_type;
    CommandId command;
    BulkInsertState inserting;
    TupleTableSlot* slots[at_once];  // made as they are needed
    int slot_count;
    int row_count;
    MemoryContext values;  // of the rows in the slots

    // The list of one source, in the compact form.
    int64 src;
    int neighbor_count;
    int room;
    int64* neighbors;
    float4* distances;
};

void write_to_pages(EdgeWriter* writer, int64 src, int32 rank, int64 dst, float4 distance) {
    put_edge(reinterpret_cast<PageWriter*>(writer)->pages, src, rank, dst, distance);
}

void expect_in_pages(EdgeWriter* writer, Size edges) {
    EdgePages* pages = reinterpret_cast<PageWriter*>(writer)->pages;
    if (edges > 0)
        expect_edges(pages, edges);
    else
        end_expected_edges(pages);
}

void insert_rows(RowWriter* to) {
    CHECK_FOR_INTERRUPTS();
    if (to->row_count == 0) return;
    // It leaves what it allocates.
    const MemoryContext before = MemoryContextSwitchTo(to->values);
    table_multi_insert(to->table, to->slots, to->row_count, to->command, TABLE_INSERT_SKIP_FSM,
                       to->inserting);
    MemoryContextSwitchTo(before);
    for (int i = 0; i < to->row_count; ++i) ExecClearTuple(to->slots[i]);
    to->row_count = 0;
    MemoryContextReset(to->values);
}

// The slot of the next row, empty.
TupleTableSlot* next_slot(RowWriter* to) {
    if (to->row_count == RowWriter::at_once ||
        MemoryContextMemAllocated(to->values, true) > RowWriter::most_bytes)
        insert_rows(to);
    if (to->row_count == to->slot_count)
        to->slots[to->slot_count++] = table_slot_create(to->table, nullptr);
    return to->slots[to->row_count++];
}

Datum key_value(const RowWriter* to, int64 key) {
    if (to->key_type != UUIDOID) return key_datum(to->names, key);
    return DirectFunctionCall1(uuid_in, CStringGetDatum(key_text(to->names, key)));
}

void store(TupleTableSlot* slot, const Datum* values, int count) {
    for (int i = 0; i < count; ++i) {
        slot->tts_values[i] = values[i];
        slot->tts_isnull[i] = false;
    }
    ExecStoreVirtualTuple(slot);
}

void insert_edge(EdgeWriter* writer, int64 src, int32 rank, int64 dst, float4 distance) {
    RowWriter* to = reinterpret_cast<RowWriter*>(writer);
    TupleTableSlot* slot = next_slot(to);
    const MemoryContext before = MemoryContextSwitchTo(to->values);
    const Datum values[] = {key_value(to, src), Int32GetDatum(rank), key_value(to, dst),
                            Float4GetDatum(distance)};
    MemoryContextSwitchTo(before);
    store(slot, values, lengthof(values));
}

Datum key_list(const RowWriter* to) {
    Datum* values = static_cast<Datum*>(palloc(sizeof(Datum) * to->neighbor_count));
    for (int i = 0; i < to->neighbor_count; ++i) values[i] = key_value(to, to->neighbors[i]);
    int16 length;
    bool by_value;
    char alignment;
    get_typlenbyvalalign(to->key_type, &length, &by_value, &alignment);
    return PointerGetDatum(
        construct_array(values, to->neighbor_count, to->key_type, length, by_value, alignment));
}

void insert_list(RowWriter* to) {
    if (to->neighbor_count == 0) return;
    TupleTableSlot* slot = next_slot(to);
    const MemoryContext before = MemoryContextSwitchTo(to->values);
    Datum* distances = static_cast<Datum*>(palloc(sizeof(Datum) * to->neighbor_count));
    for (int i = 0; i < to->neighbor_count; ++i) distances[i] = Float4GetDatum(to->distances[i]);
    const Datum values[] = {
        key_value(to, to->src), key_list(to),
        PointerGetDatum(construct_array(distances, to->neighbor_count, FLOAT4OID, sizeof(float4),
                                        true, TYPALIGN_INT))};
    MemoryContextSwitchTo(before);
    store(slot, values, lengthof(values));
    to->neighbor_count = 0;
}

void add_to_list(EdgeWriter* writer, int64 src, int32 rank, int64 dst, float4 distance) {
    RowWriter* to = reinterpret_cast<RowWriter*>(writer);
    if (rank == 1) insert_list(to);
    if (to->neighbor_count == to->room) {
        to->room *= 2;
        to->neighbors = static_cast<int64*>(repalloc(to->neighbors, sizeof(int64) * to->room));
        to->distances = static_cast<float4*>(repalloc(to->distances, sizeof(float4) * to->room));
    }
    to->src = src;
    to->neighbors[to->neighbor_count] = dst;
    to->distances[to->neighbor_count++] = distance;
}

}  // namespace

EdgeWriter* open_page_writer(Relation table, Relation index) {
    PageWriter* writer = static_cast<PageWriter*>(palloc0(sizeof(PageWriter)));
    writer->writer.write = write_to_pages;
    writer->writer.expect = expect_in_pages;
    writer->pages = open_edge_pages(table, index);
    return &writer->writer;
}

bool end_page_writer(EdgeWriter* writer) {
    return end_edge_pages(reinterpret_cast<PageWriter*>(writer)->pages);
}

EdgeWriter* open_row_writer(Relation table, const KeyNames* names, GraphForm form) {
    RowWriter* to = static_cast<RowWriter*>(palloc0(sizeof(RowWriter)));
    to->writer.write = form == GraphForm::edges ? insert_edge : add_to_list;
    to->table = table;
    to->names = names;
    to->key_type = TupleDescAttr(RelationGetDescr(table), 0)->atttypid;
    to->command = GetCurrentCommandId(true);
    to->inserting = GetBulkInsertState();
    to->values =
        AllocSetContextCreate(CurrentMemoryContext, "edges of a graph", ALLOCSET_DEFAULT_SIZES);
    to->room = 16;
    to->neighbors = static_cast<int64*>(palloc(sizeof(int64) * to->room));
    to->distances = static_cast<float4*>(palloc(sizeof(float4) * to->room));
    return &to->writer;
}

void end_row_writer(EdgeWriter* writer) {
    RowWriter* to = reinterpret_cast<RowWriter*>(writer);
    insert_list(to);
    insert_rows(to);
    for (int i = 0; i < to->slot_count; ++i) ExecDropSingleTupleTableSlot(to->slots[i]);
    FreeBulkInsertState(to->inserting);
    table_finish_bulk_insert(to->table, TABLE_INSERT_SKIP_FSM);
    MemoryContextDelete(to->values);
    CommandCounterIncrement();
}

}  // namespace pgwarp
