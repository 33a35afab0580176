// Graphs that keep themselves current: triggers on the source table repair what a statement
// changed.
//
// A statement only tells which keys it touched. Their rows are read again, so that the repair
// depends on what the table has now: it may be done twice, and in any order.
#pragma once

#include "kernels/knn_graph.h"
#include "extension/compat.h"
#include "extension/table/key_names.h"

namespace pgwarp {

struct KeptGraph {
    Oid graph;
    Oid table;
    // Columns of the table.
    const char* key;
    const char* vector;
    Metric metric;
    uint32 k;
    KeyNames* names;  // of keys; null: they are integers
    Oid index;        // finds near rows; invalid: the table is read
};

// Reports an error where no trigger can keep a graph of this table, or where it has another owner
// than its graph.
void check_kept_table(const KeptGraph& kept, Oid owner);
// The same for what only the new graph decides.
void check_kept_graph(const KeptGraph& kept);
// Reports an error unless the graph has a trigger that names the table. Whoever may add triggers to
// a table could name any graph of its owner otherwise. `function`: that of the triggers.
void check_agreement(const KeptGraph& kept, Oid function);
// Adds the triggers, and an index that finds the lists which have a row. Inside SPI, as the owner
// of both tables. `schema`: the extension's.
void add_triggers(const KeptGraph& kept, const char* schema);

// The table that a trigger of add_triggers() names: the graph that it keeps, or the graph's table.
// Invalid: it is none of them.
Oid table_of_trigger(const char* condition);

}  // namespace pgwarp
