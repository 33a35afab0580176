// Writing a graph to a table that this transaction created.
#pragma once

#include "extension/graph/edge_writer.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

enum class GraphForm : uint8 {
    edges,    // (src, rank, dst, distance), a row an edge
    compact,  // (src, neighbors, distances), a row a source, with arrays by rank
};

// Writes pages directly, of the table and of its primary key (edge_pages.h). Both stay open until
// end_page_writer(), which returns whether the index is complete: if not, it has to be reindexed.
EdgeWriter* open_page_writer(Relation table, Relation index);
bool end_page_writer(EdgeWriter* writer);

// Inserts rows, many at a time: for any access method of tables, keys with names, and the compact
// form. The table has no indexes and triggers yet. Keys with names become what the columns are:
// text or uuid.
EdgeWriter* open_row_writer(Relation table, const KeyNames* names, GraphForm form);
void end_row_writer(EdgeWriter* writer);

}  // namespace pgwarp
