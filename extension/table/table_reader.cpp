#include <cstring>
#include <new>

#include "kernels/row_elements.h"
#include "extension/table/block_scan.h"
#include "extension/table/planned.h"
#include "extension/table/query_rows.h"
#include "extension/table/table_reader.h"

extern "C" {
#include "access/relation.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

struct TableReader {
    MemoryContext context;
    ReadColumns columns;
    bool null_keys;
    Snapshot snapshot;
    TableCounts counts;

    RowSource* source;
    // The source, where it is one of these; else null.
    MemberScan* members;
    BlockScan* blocks;

    // The first row, read for its dimensions and not yet handed over.
    float* first_vector;
    int64 first_key;
};

namespace {

// A reader with a memory context of its own, which is current until end_opening().
TableReader* begin_opening(MemoryContext* before) {
    TableReader* reader = static_cast<TableReader*>(palloc0(sizeof(TableReader)));
    reader->context =
        AllocSetContextCreate(CurrentMemoryContext, "table reader", ALLOCSET_SMALL_SIZES);
    *before = MemoryContextSwitchTo(reader->context);
    return reader;
}

void choose_source(TableReader* reader, bool only) {
    const ReadColumns& columns = reader->columns;
    const auto may_scan = [&columns] {
        return check_enable_rls(columns.table, InvalidOid, true) != RLS_ENABLED &&
               where_rows_are(columns.table) == RowsAre::in_table;
    };
    if (columns.value_count == 0 && (columns.rights_checked || may_scan()))
        reader->members = MemberScan::open(columns, only, reader->snapshot);
    reader->source = reader->members;
    if (!reader->source)
        reader->source = new (palloc(sizeof(QueryRows))) QueryRows(columns, reader->snapshot);
}

// The next row whose vector is not null.
bool next_row(TableReader* reader, SourceRow* row) {
    *row = {};
    while (reader->source->next(row)) {
        CHECK_FOR_INTERRUPTS();
        if (!row->vector) {
            ++reader->counts.nulls;
            continue;
        }
        if (row->key_is_null && !reader->null_keys)
            ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                            errmsg("column \"%s\" of table \"%s\" has a null key",
                                   reader->columns.key_name, reader->columns.table_name)));
        return true;
    }
    return false;
}

[[noreturn]] void report_dims(const TableReader* reader, uint32 dims) {
    const ReadColumns& columns = reader->columns;
    // A worker reads only ranges, so it knows no row number.
    if (reader->blocks)
        ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION),
                        errmsg("different vector dimensions %u and %u", columns.dims, dims),
                        errdetail("A row of table \"%s\" has %u dimensions in column \"%s\", "
                                  "others have %u.",
                                  columns.table_name, dims, columns.vector_name, columns.dims)));
    ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION),
                    errmsg("different vector dimensions %u and %u", columns.dims, dims),
                    errdetail("Row %lld of table \"%s\" has %u dimensions in column \"%s\", those "
                              "before it have %u.",
                              static_cast<long long>(reader->counts.rows + 1), columns.table_name,
                              dims, columns.vector_name, columns.dims)));
}

// A column declared without dimensions takes those of its first vector.
void look_ahead(TableReader* reader) {
    ReadColumns& columns = reader->columns;
    SourceRow row;
    if (columns.dims > 0 || !next_row(reader, &row)) return;
    columns.dims = columns.type.dims_of(row.vector);
    if (columns.value_count > 0) {
        rewind_table_reader(reader);  // values are not kept here
        return;
    }
    reader->first_vector =
        static_cast<float*>(MemoryContextAlloc(reader->context, columns.dims * sizeof(float)));
    columns.type.read(row.vector, columns.dims, reader->first_vector);
    if (columns.key_name) reader->first_key = key_of(columns.names, row.key, columns.key_type);
}

}  // namespace

TableReader* open_table_reader(const TableColumns& wanted) {
    MemoryContext before;
    TableReader* reader = begin_opening(&before);
    ReadColumns& columns = reader->columns;
    columns.table = wanted.table;
    columns.vector_name = pstrdup(wanted.vector);
    if (wanted.key) columns.key_name = pstrdup(wanted.key);
    columns.value_count = wanted.value_count;
    columns.values = static_cast<ReadValue*>(
        palloc0(static_cast<Size>(Max(wanted.value_count, 1)) * sizeof(ReadValue)));
    for (int i = 0; i < wanted.value_count; ++i) columns.values[i].name = pstrdup(wanted.values[i]);
    reader->null_keys = wanted.null_keys;
    columns.rights_checked = wanted.rights_checked;
    columns.names = wanted.names;
    check_columns(&columns);

    // The table may have changed before we got the lock: check again, now that it cannot.
    Relation relation = try_relation_open(columns.table, AccessShareLock);
    if (!relation)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("relation with OID %u does not exist", columns.table)));
    check_columns(&columns);
    reader->snapshot = RegisterSnapshot(GetActiveSnapshot());
    choose_source(reader, wanted.only);
    relation_close(relation, NoLock);
    MemoryContextSwitchTo(before);
    look_ahead(reader);
    return reader;
}

RowElements stored_elements(const TableReader* reader) {
    return reader->columns.type.elements();
}

uint32 dims_of(const TableReader* reader) {
    return reader->columns.dims;
}

Oid value_type(const TableReader* reader, int value) {
    return reader->columns.values[value].type;
}

TableCounts counts_of(const TableReader* reader) {
    return reader->counts;
}

namespace {

// Copies the values of a row to the current memory context, as those of row `number` of a block.
void copy_values(const ReadColumns& columns, const SourceRow& row, const VectorBlock& block,
                 Size number) {
    for (int i = 0; i < columns.value_count; ++i) {
        const ReadValue& value = columns.values[i];
        const Size at = number * static_cast<Size>(columns.value_count) + static_cast<Size>(i);
        block.value_is_null[at] = row.value_is_null[i];
        if (row.value_is_null[i])
            block.values[at] = static_cast<Datum>(0);
        else if (value.length == -1)
            block.values[at] = PointerGetDatum(PG_DETOAST_DATUM_COPY(row.values[i]));
        else
            block.values[at] = datumCopy(row.values[i], value.by_value, value.length);
    }
}

// The vector that look_ahead() has read, as the first of a block.
void put_first_vector(const TableReader* reader, const VectorBlock& block) {
    const uint32 dims = reader->columns.dims;
    if (block.vectors)
        memcpy(block.vectors, reader->first_vector, dims * sizeof(float));
    else if (stored_elements(reader) == RowElements::float16)
        // It was made of halves: rounding changes nothing.
        to_float16s(reader->first_vector, dims, static_cast<float16*>(block.stored));
    else
        memcpy(block.stored, reader->first_vector, dims * sizeof(float));
}

bool put_vector(const ReadColumns& columns, const SourceRow& row, const VectorBlock& block,
                Size number) {
    const Size elements = number * columns.dims;
    if (block.vectors) return columns.type.read(row.vector, columns.dims, block.vectors + elements);
    return columns.type.copy_elements(
        row.vector, columns.dims,
        static_cast<char*>(block.stored) + elements * columns.type.value_bytes());
}

}  // namespace

Size read_block(TableReader* reader, const VectorBlock& block) {
    const ReadColumns& columns = reader->columns;
    Size count = 0;
    if (reader->first_vector) {
        put_first_vector(reader, block);
        if (block.keys) block.keys[0] = reader->first_key;
        pfree(reader->first_vector);
        reader->first_vector = nullptr;
        ++reader->counts.rows;
        ++count;
    }
    SourceRow row;
    while (count < block.room && next_row(reader, &row)) {
        if (!put_vector(columns, row, block, count))
            report_dims(reader, columns.type.dims_of(row.vector));
        if (block.keys) {
            block.keys[count] =
                row.key_is_null ? 0 : key_of(columns.names, row.key, columns.key_type);
            if (block.key_is_null) block.key_is_null[count] = row.key_is_null;
        }
        if (block.places)
            block.places[count] = static_cast<uint64>(ItemPointerGetBlockNumberNoCheck(&row.tid))
                                      << 16 |
                                  ItemPointerGetOffsetNumberNoCheck(&row.tid);
        if (block.values) copy_values(columns, row, block, count);
        ++reader->counts.rows;
        ++count;
    }
    return count;
}

void rewind_table_reader(TableReader* reader) {
    reader->source->rewind();
    if (reader->first_vector) pfree(reader->first_vector);
    reader->first_vector = nullptr;
    reader->counts = {};
}

void close_table_reader(TableReader* reader) {
    rewind_table_reader(reader);
    UnregisterSnapshot(reader->snapshot);
    MemoryContextDelete(reader->context);
    pfree(reader);
}

// --- for several processes

Snapshot snapshot_of(const TableReader* reader) {
    return reader->snapshot;
}

double estimated_rows(const TableReader* reader) {
    return reader->members ? reader->members->estimated_rows() : 0;
}

int members_of(const TableReader* reader, TableMember** members) {
    if (!reader->members || reader->columns.dims == 0 || reader->columns.names) return 0;
    return reader->members->list(members);
}

SharedTable share_table(const TableReader* reader) {
    const ReadColumns& columns = reader->columns;
    SharedTable table = {};
    namestrcpy(&table.vector, columns.vector_name);
    if (columns.key_name) namestrcpy(&table.key, columns.key_name);
    table.has_key = columns.key_name != nullptr;
    table.null_keys = reader->null_keys;
    table.table = columns.table;
    table.key_type = columns.key_type;
    table.type = columns.type;
    table.dims = columns.dims;
    return table;
}

TableReader* open_shared_reader(const SharedTable& table, Snapshot snapshot) {
    MemoryContext before;
    TableReader* reader = begin_opening(&before);
    ReadColumns& columns = reader->columns;
    columns.table = table.table;
    columns.table_name = get_rel_name(table.table);
    columns.vector_name = pstrdup(NameStr(table.vector));
    if (table.has_key) columns.key_name = pstrdup(NameStr(table.key));
    columns.key_type = table.key_type;
    columns.type = table.type;
    columns.dims = table.dims;
    reader->null_keys = table.null_keys;
    reader->snapshot = RegisterSnapshot(snapshot);
    reader->blocks = new (palloc(sizeof(BlockScan))) BlockScan(columns, reader->snapshot);
    reader->source = reader->blocks;
    MemoryContextSwitchTo(before);
    return reader;
}

void read_blocks(TableReader* reader, Oid member, BlockNumber first, BlockNumber end) {
    reader->blocks->begin(member, first, end);
}

}  // namespace pgwarp
