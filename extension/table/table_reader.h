// Reading the vectors of a table for functions that work on all of them.
//
// What is read is what SELECT would show the caller: with his rights, by his snapshot, the rows of
// children and partitions included, and those that policies of row security leave him. Where
// nothing but pages and rows is between the caller and the data, the table is scanned; views,
// foreign tables, tables with policies for the caller and the like are read by a query.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "access/attnum.h"
}

namespace pgwarp {

// Lives in the memory context that is current when it is opened, with locks on the tables until the
// end of the transaction. An error or the end of the transaction leaves nothing behind; a reader
// that stays open between two calls of a function is closed by a callback of its ExprContext.
struct TableReader;

// Reports an error where there is no such table or column, where a column has another type (keys
// are int8, int4 or int2), or where the caller may not read it. Rows come in the order they lie in:
// two readers of a table that nobody changes give the same.
struct TableColumns {
    Oid table;
    const char* vector;
    const char* key;  // null: none
    // The table by itself, without its children; and a key may be null, and is then told as one.
    bool only = false;
    bool null_keys = false;
};
TableReader* open_table_reader(const TableColumns& columns);

// The dimensions of all vectors: the column's, or else the first row's. 0: there is no vector.
uint32 dims_of(const TableReader* reader);

// The next rows, into the caller's memory; fewer than there is room for at the end only. A row
// whose vector is null is left out, and counted. Reports an error where a vector has other
// dimensions, or where a key is null.
struct VectorBlock {
    float* vectors;               // (room)(dims)
    int64* keys;                  // (room), or null
    Size room;                    // at least 1
    uint64* places = nullptr;     // (room), or null: TIDs; of tables that are scanned only
    bool* key_is_null = nullptr;  // (room), where keys may be null
};
Size read_block(TableReader* reader, const VectorBlock& block);

// Of this pass, so far.
struct TableCounts {
    int64 rows;   // handed over
    int64 nulls;  // left out
};
TableCounts counts_of(const TableReader* reader);

// Starts again from the first row.
void rewind_table_reader(TableReader* reader);
void close_table_reader(TableReader* reader);

// --- for several processes: see parallel_reader.h

// About how many rows; 0 where it is not known.
double estimated_rows(const TableReader* reader);

// What another process needs to read parts of the same table, flat. The snapshot is handed over
// apart.
struct TableMember {
    Oid table;
    BlockNumber blocks;
};
struct SharedTable {
    NameData vector;
    NameData key;
    bool has_key;
    bool null_keys;
    Oid table;
    Oid key_type;
    uint32 dims;
};
Snapshot snapshot_of(const TableReader* reader);
// The tables whose rows belong to it, and their blocks at this time. 0: others cannot read them.
int members_of(const TableReader* reader, TableMember** members);
SharedTable share_table(const TableReader* reader);

// A reader in another process, which looks after rights and locks no more; reads the blocks of
// read_blocks() only.
TableReader* open_shared_reader(const SharedTable& table, Snapshot snapshot);
void read_blocks(TableReader* reader, Oid member, BlockNumber first, BlockNumber end);

// Whether this is our vector type, or a domain over it.
bool is_vector_type(Oid type);
// Whether this is a type of keys: int8, int4 or int2, or a domain over one; and its base type.
bool is_key_type(Oid type, Oid* base);
int64 key_of(Datum value, Oid base);

// The attribute of a column by its name; reports an error where there is none.
AttrNumber find_column(Oid table, const char* name);

// Reports an error unless the caller may SELECT these columns, as for a query that names them.
void check_select_rights(Oid table, const AttrNumber* columns, int count);

}  // namespace pgwarp
