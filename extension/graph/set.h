// The rows of a graph: keys and vectors of a table, in memory or, beyond it, in a temporary file.
#pragma once

#include "kernels/knn_graph.h"
#include "extension/compat.h"
#include "extension/table/table_reader.h"

extern "C" {
#include "storage/buffile.h"
}

namespace pgwarp {

// Rows that came together.
struct RowPiece {
    uint64 position;  // what orders pieces as the table has them
    Size first;       // where its rows are, in the file or in memory
    Size begin;       // of its rows among those of the set
    Size count;
};

struct GraphSet {
    GraphMetric metric;
    uint32 dims;
    Size count;
    int64* keys;    // (count), in the table's order, none twice
    float* rows;    // (count)(dims), made ready for the metric; null where they are in the file
    BufFile* file;  // (count)(dims), or null
    // The rows as they came from several processes, in the table's order.
    RowPiece* pieces;
    Size piece_count;
    int64 nulls;  // rows that were left out: without a vector,
    int64 zeros;  // or, for cosine, without a direction
};

// How many rows may stay in memory, by their dimensions.
struct GraphRoom {
    uint32 degree;
    uint32 k;
    int threads;
};
Size rows_in_memory(const GraphRoom& room, uint32 dims);

// Reads a table with the caller's rights. Reports an error where a key comes twice.
GraphSet read_graph_set(const TableColumns& columns, GraphMetric metric, const GraphRoom& room);

// Adds the rows of another table behind those of the first. Both are in memory.
void add_graph_set(GraphSet* set, const GraphSet& other);

// The same where they are to be in a file. The other set is gone afterwards.
void join_in_file(GraphSet* set, GraphSet* other);

// Reports an error where a key comes twice.
void check_unique_keys(const GraphSet& set, const TableColumns& columns);

// Reports what was left out, if something was.
void report_left_out(const GraphSet& set);

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
