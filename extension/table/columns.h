// Columns of tables that functions read: their types, and the caller's rights.
#pragma once

#include "extension/table/key_names.h"
#include "extension/types/vector_type.h"

extern "C" {
#include "access/attnum.h"
}

namespace pgwarp {

// The attribute number of a column; reports an error where there is none.
AttrNumber find_column(Oid table, const char* name);

// Reports an error unless the caller may SELECT these columns, as for a query that names them.
void check_select_rights(Oid table, const AttrNumber* columns, int count);

// A column of any type, read beside the vectors.
struct ReadValue {
    const char* name;
    Oid type;
    int16 length;
    bool by_value;
};

// The columns of one table that a TableReader reads.
struct ReadColumns {
    Oid table;
    const char* table_name;
    const char* vector_name;
    const char* key_name;  // null: none
    VectorType type;
    uint32 dims;      // of all vectors: the type's, or else the first row's; 0: not known yet
    Oid key_type;     // base type, below any domains
    KeyNames* names;  // of keys; null: they are integers
    ReadValue* values;
    int value_count;
    bool rights_checked;  // see TableColumns
};
// Checks that the columns can be read, by the caller, and sets table_name, types and dims. Takes no
// lock: a caller without privileges must not block others by waiting for one.
void check_columns(ReadColumns* columns);

// Checks the types again before each scan or fetch: between two of them the caller may run any
// code, which may have altered the table since the reader was opened.
void check_types(const ReadColumns& columns, Oid vector, Oid key);
void check_value_type(const ReadColumns& columns, int value, Oid type);

}  // namespace pgwarp
