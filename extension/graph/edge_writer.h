// Where edges of a graph are written: rows (src, rank, dst, distance) of a function's result, or a
// new table (edge_table.h).
#pragma once

#include "extension/compat.h"
#include "extension/table/key_names.h"

namespace pgwarp {

// What all writers begin with.
struct EdgeWriter {
    void (*write)(EdgeWriter* writer, int64 src, int32 rank, int64 dst, float4 distance);
    // Null: it does not matter. About this many edges come next, and nothing else is done between
    // them; 0: they have come.
    void (*expect)(EdgeWriter* writer, Size edges);
    int64 count;
};

// For a function that returns a materialized set of (bigint, integer, bigint, real), or with names
// (text, integer, text, real). Allocated in the current memory context.
//
// Where keys are integers, all rows have the same layout, without nulls and variable lengths. So
// one tuple is formed once, and each edge overwrites its values: a graph may have ten million
// edges.
EdgeWriter* open_edge_writer(const ReturnSetInfo* result, const KeyNames* names);

// The edges of a source follow each other, by rank.
inline void write_edge(EdgeWriter* writer, int64 src, int32 rank, int64 dst, float4 distance) {
    ++writer->count;
    writer->write(writer, src, rank, dst, distance);
}

}  // namespace pgwarp
