// Edges as rows of a function's result: (src, rank, dst, distance).
//
// All of them have the same form, no nulls and no lengths, so one row is made once, and for each
// edge its values are put in their places: a graph has ten millions of them.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

struct EdgeWriter;
// Of a function that returns a materialized set of bigint, integer, bigint, real. In the current
// memory context.
EdgeWriter* open_edge_writer(const ReturnSetInfo* result);
void write_edge(EdgeWriter* writer, int64 src, int32 rank, int64 dst, float4 distance);

}  // namespace pgwarp
