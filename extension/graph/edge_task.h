// Filling and writing some pages of a new edge table, or leaves of its primary key.
#pragma once

#include "extension/graph/bulk_pages.h"
#include "extension/graph/edge_layout.h"

namespace pgwarp {

EdgeLayout edge_layout(Relation table, Relation index);
// Of a task of the table, or of the index.
uint32 most_in_task(const EdgeLayout& layout, bool of_index);
int pages_of(const EdgeLayout& layout, const EdgeTask& task);
// Bytes that any task has room in.
Size task_bytes(const EdgeLayout& layout);

// Of the process that fills and writes pages.
struct EdgeTarget {
    const EdgeLayout* layout;
    Relation table, index;
    char* pages;  // (most_bulk_pages)(BLCKSZ)
};
EdgeTarget open_edge_target(const EdgeLayout* layout, Relation table, Relation index);
void run_edge_task(const EdgeTarget& target, const EdgeTask& task);

}  // namespace pgwarp
