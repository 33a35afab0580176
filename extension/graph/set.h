// The rows of a graph: keys and vectors of a table. Keys are in memory, vectors too or, if they do
// not fit, in a temporary file.
#pragma once

#include "kernels/knn_graph.h"
#include "extension/compat.h"
#include "extension/table/table_reader.h"

extern "C" {
#include "storage/buffile.h"
}

namespace pgwarp {

// Rows of one block of the reader.
struct RowPiece {
    uint64 position;  // in the table's order
    Size first;       // where its rows are, in the file or in memory
    Size begin;       // number of its first row in the set
    Size count;
};

struct GraphSet {
    Metric metric;
    uint32 dims;
    Size count;
    int64* keys;      // (count), in the table's order, none twice
    KeyNames* names;  // of keys; null: they are integers
    float* rows;      // (count)(dims), by prepare_row(); null if they are in the file
    BufFile* file;    // (count)(dims), or null
    // Blocks of rows, sorted by the table's order: in the file, rows are as workers delivered them.
    RowPiece* pieces;
    Size piece_count;
    int64 nulls;  // rows left out: without a vector
    int64 zeros;  // rows left out: zero vectors, for cosine
};

// What rows_in_memory() depends on, beside dimensions: how many rows may stay in memory.
struct GraphRoom {
    uint32 degree;
    uint32 k;
    int threads;
    Size at_once = 1;      // graphs of as many rows that are made at the same time
    bool descends = true;  // false: rows are compared only
};
Size rows_in_memory(const GraphRoom& room, uint32 dims);

// Reads a table with the caller's rights. Reports an error if keys are not unique.
GraphSet read_graph_set(const TableColumns& columns, Metric metric, const GraphRoom& room);

// Appends the rows of another set. Both are in memory.
void add_graph_set(GraphSet* set, const GraphSet& other);

// The same with the result in a file. Empties the other set.
void join_in_file(GraphSet* set, GraphSet* other);

// Reports an error if keys are not unique.
void check_unique_keys(const GraphSet& set, const TableColumns& columns);

// A NOTICE if rows were left out.
void report_left_out(const GraphSet& set);

// Row i, of rows in memory, becomes what row sources[i] is: another order of all, or `count` of
// them in their order.
void move_rows(const GraphSet& set, const uint32* sources, Size count);

// Moves the rows from memory to a file.
void spill_graph_set(GraphSet* set);

// Rows first .. first + count of the file.
void read_spilled(const GraphSet& set, Size first, Size count, float* rows);

// Row numbers by key.
struct KeyedRow {
    int64 key;
    uint32 row;
};
KeyedRow* sort_by_key(const GraphSet& set);
// The row's number, or no_row.
uint32 find_key(const KeyedRow* sorted, Size count, int64 key);

}  // namespace pgwarp
