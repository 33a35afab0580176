// Edges as rows of a function's result: (src, rank, dst, distance).
//
// Where keys are integers, all rows have the same layout, without nulls and variable lengths. So
// one tuple is formed once, and each edge overwrites its values: a graph may have ten million
// edges.
#pragma once

#include "extension/compat.h"
#include "extension/table/key_names.h"

namespace pgwarp {

struct EdgeWriter;
// For a function that returns a materialized set of (bigint, integer, bigint, real), or with names
// (text, integer, text, real). Allocated in the current memory context.
EdgeWriter* open_edge_writer(const ReturnSetInfo* result, const KeyNames* names);
void write_edge(EdgeWriter* writer, int64 src, int32 rank, int64 dst, float4 distance);

}  // namespace pgwarp
