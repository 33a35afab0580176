// What knn_graph_append changes in the table of a graph: lists that differ from the new ones are
// deleted and inserted again.
#pragma once

#include "extension/graph/given.h"
#include "extension/graph/given_lists.h"

extern "C" {
#include "executor/spi.h"
}

namespace pgwarp {

struct AppendCounts {
    int64 added;
    int64 changed;
    int64 removed;
};

// Columns of edges, each with room for Changes::at_once lists.
struct EdgeArrays {
    int64* src;
    Datum* rank;
    int64* dst;
    Datum* distance;
    int count;
};

struct Changes {
    Oid graph;
    const GraphSet* set;
    const GivenLists* lists;  // of a set in memory
    const GivenGraph* given;  // of a set in a file
    const KeyedRow* sorted;
    const float* norms;  // (rows), by find_norms(); null but for inner products
    uint32 k;
    AppendCounts counts;
    bool in_place;      // edges that differ are updated, where that may be
    Snapshot snapshot;  // null: that of the transaction

    // Changes are flushed a thousand sources at a time, as array parameters.
    static constexpr int at_once = 1000;
    int source_count;
    int64 keys[at_once];  // of lists that are removed, or replaced
    int key_count;
    EdgeArrays added;
    EdgeArrays changed;  // another neighbor or distance at this rank
    SPIPlanPtr remove;
    SPIPlanPtr add;
    SPIPlanPtr change;  // null: lists are replaced
};

// For the graph, its set and k, which are set; the others before changes are written. Inside SPI.
void prepare_changes(Changes* changes);
// Before the edges of a source that are added or updated: begin_list(), or replace_edges(), which
// deletes those that it has. Edges are updated where `change` is not null.
void begin_list(Changes* changes);
void replace_edges(Changes* changes, int64 src);
void add_edge(Changes* changes, int64 src, int32 rank, int64 dst, float distance);
void update_edge(Changes* changes, int64 src, int32 rank, int64 dst, float distance);
// Norms of the rows, in memory or in the file, for `norms`.
float* find_norms(const GraphSet& set);

// An edge of the graph's table. Twice the size of an Edge: append_by_parts() reuses Parts::lists.
struct WrittenEdge {
    int64 dst;
    int32 rank;
    float distance;
};
static_assert(sizeof(WrittenEdge) == 2 * sizeof(Edge));

// Rows [begin, end) and their new lists, (rows)(stride). `written` is scratch: (rows)(k).
struct ChangedRows {
    Size begin, end;
    const Edge* lists;
    uint32 stride;
    WrittenEdge* written;
};

// Replaces the lists that differ from those of the graph.
void write_changes(Changes* changes, const ChangedRows& rows);
// The same for all rows of a set in memory, with new lists (rows)(stride). Those that it writes get
// the distances of the vectors.
void write_new_lists(Changes* changes, Edge* lists, uint32 stride);
// The sources of a graph whose rows are gone, for a set in a file.
Owned<NodeNumbers>* find_gone(const Changes& changes);
// Deletes the edges of sources whose rows are gone.
void remove_gone(Changes* changes, const NodeNumbers& gone);
// Writes what is queued.
void flush_changes(Changes* changes);

}  // namespace pgwarp
