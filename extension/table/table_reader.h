// Reading all vectors of a table, for SQL functions.
//
// A reader returns the rows that SELECT would return to the caller: by the caller's privileges and
// snapshot, including rows of children and partitions, filtered by row security. Plain tables are
// scanned (member_scan.h); a query reads what cannot be scanned (query_rows.h).
#pragma once

#include "extension/table/columns.h"
#include "extension/table/member_scan.h"

namespace pgwarp {

// Lives in the memory context that is current when it is opened, and holds locks on its tables
// until the end of the transaction. Needs no cleanup after an error or at the end of the
// transaction; a reader that stays open between two calls of a function is closed by a callback of
// its ExprContext.
struct TableReader;

// Reports an error where the table or a column does not exist, a column has the wrong type (keys
// are int8, int4 or int2, unless they have names), or the caller may not read it. Rows come in
// physical order: two readers of an unchanged table return the same sequence.
struct TableColumns {
    Oid table;
    const char* vector;
    const char* key;  // null: none
    // `only`: without children. `null_keys`: a null key is no error, but returned as null.
    bool only = false;
    bool null_keys = false;
    // More columns to read, of any type; a query reads the table then. May be repeated.
    const char* const* values = nullptr;
    int value_count = 0;
    // The executor reads the table as well, in a plan that has no policy of row security: the
    // caller has the rights to, and all rows are meant.
    bool rights_checked = false;
    // Null: keys are integers. Otherwise one process reads the table, and gives keys numbers.
    KeyNames* names = nullptr;
};
TableReader* open_table_reader(const TableColumns& columns);

// The dimensions of all vectors: the column's, or else the first row's. 0: the table has no vector.
uint32 dims_of(const TableReader* reader);

// The type of one of TableColumns::values.
Oid value_type(const TableReader* reader, int value);

// Reads the next rows into the caller's memory; fewer than `room` only at the end. Skips and counts
// rows whose vector is null. Reports an error where a vector has other dimensions, or where a key
// is null and null_keys is false.
struct VectorBlock {
    float* vectors;               // (room)(dims); null: `stored` is wanted
    int64* keys;                  // (room), or null
    Size room;                    // at least 1
    uint64* places = nullptr;     // (room), or null: TIDs; only for scanned tables
    bool* key_is_null = nullptr;  // (room), with null_keys
    // (room)(value_count), or null. Values are copied to the current memory context.
    Datum* values = nullptr;
    bool* value_is_null = nullptr;
    void* stored = nullptr;  // (room)(dims), of stored_elements()
};
// Of the vectors as the column stores them.
RowElements stored_elements(const TableReader* reader);
Size read_block(TableReader* reader, const VectorBlock& block);

// Counts of this pass so far.
struct TableCounts {
    int64 rows;   // returned
    int64 nulls;  // skipped
};
TableCounts counts_of(const TableReader* reader);

// Starts again from the first row.
void rewind_table_reader(TableReader* reader);
void close_table_reader(TableReader* reader);

// --- for several processes: see parallel_reader.h

// Estimated number of rows; 0: unknown.
double estimated_rows(const TableReader* reader);

// What a worker needs to read parts of the same table, without pointers. The snapshot is passed
// separately.
struct SharedTable {
    NameData vector;
    NameData key;
    bool has_key;
    bool null_keys;
    Oid table;
    Oid key_type;
    VectorType type;
    uint32 dims;
};
Snapshot snapshot_of(const TableReader* reader);
// The tables whose rows belong to it, and their current numbers of blocks. Returns how many; 0:
// workers cannot read them.
int members_of(const TableReader* reader, TableMember** members);
SharedTable share_table(const TableReader* reader);

// A reader in a worker: checks no privileges, and reads only the blocks given to read_blocks().
TableReader* open_shared_reader(const SharedTable& table, Snapshot snapshot);
void read_blocks(TableReader* reader, Oid member, BlockNumber first, BlockNumber end);

}  // namespace pgwarp
