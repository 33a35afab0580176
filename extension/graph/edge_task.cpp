#include <algorithm>
#include <cstring>

#include "extension/graph/edge_index.h"
#include "extension/graph/edge_task.h"
#include "extension/util/large_memory.h"

extern "C" {
#include "access/htup_details.h"
#include "access/tupmacs.h"
#include "access/xact.h"
#include "storage/bufpage.h"
#include "utils/rel.h"
}

namespace pgwarp {

namespace {

// As heap_insert() would prepare it.
void form_row(Relation table, EdgeLayout* layout) {
    constexpr int columns = 4;
    const TupleDesc descriptor = RelationGetDescr(table);
    Datum values[columns] = {Int64GetDatum(0), Int32GetDatum(0), Int64GetDatum(0),
                             Float4GetDatum(0)};
    bool nulls[columns] = {};
    HeapTuple row = heap_form_tuple(descriptor, values, nulls);
    HeapTupleHeader header = row->t_data;
    header->t_infomask &= static_cast<uint16>(~HEAP_XACT_MASK);
    header->t_infomask2 &= static_cast<uint16>(~HEAP2_XACT_MASK);
    header->t_infomask |= HEAP_XMAX_INVALID;
    HeapTupleHeaderSetXmin(header, GetCurrentTransactionId());
    HeapTupleHeaderSetCmin(header, GetCurrentCommandId(true));
    HeapTupleHeaderSetXmax(header, InvalidTransactionId);
    uint32* places[columns] = {&layout->src, &layout->rank, &layout->dst, &layout->distance};
    Size offset = 0;
    for (int i = 0; i < columns; ++i) {
        const auto* column = TupleDescAttr(descriptor, i);
        offset = att_align_nominal(offset, column->attalign);
        *places[i] = static_cast<uint32>(header->t_hoff + offset);
        offset += static_cast<Size>(column->attlen);
    }
    if (header->t_hoff + offset != row->t_len || row->t_len > sizeof(layout->row))
        elog(ERROR, "a row of an edge has another length");
    layout->row_length = row->t_len;
    memcpy(layout->row, header, row->t_len);
}

}  // namespace

EdgeLayout edge_layout(Relation table, Relation index) {
    EdgeLayout layout = {};
    layout.table = RelationGetRelid(table);
    layout.index = RelationGetRelid(index);
    layout.first_page = RelationGetNumberOfBlocks(table);
    layout.first_leaf = RelationGetNumberOfBlocks(index);
    form_row(table, &layout);
    layout.edges_per_page =
        static_cast<uint32>((BLCKSZ - SizeOfPageHeaderData -
                             RelationGetTargetPageFreeSpace(table, HEAP_DEFAULT_FILLFACTOR)) /
                            (MAXALIGN(layout.row_length) + sizeof(ItemIdData)));
    layout.keys_per_leaf = keys_per_leaf(index);
    return layout;
}

uint32 most_in_task(const EdgeLayout& layout, bool of_index) {
    return most_bulk_pages * (of_index ? layout.keys_per_leaf : layout.edges_per_page);
}

int pages_of(const EdgeLayout& layout, const EdgeTask& task) {
    const uint32 each = task.of_index ? layout.keys_per_leaf : layout.edges_per_page;
    return static_cast<int>((task.count + each - 1) / each);
}

Size task_bytes(const EdgeLayout& layout) {
    return MAXALIGN(sizeof(EdgeTask) + std::max(most_in_task(layout, false) * sizeof(TableEdge),
                                                most_in_task(layout, true) * sizeof(EdgeKey)));
}

EdgeTarget open_edge_target(const EdgeLayout* layout, Relation table, Relation index) {
    return {layout, table, index, alloc_pages(most_bulk_pages)};
}

namespace {

// Items grow from the page's ends towards each other; PageAddItem() would look for free line
// pointers each time.
void fill_page(const EdgeLayout& layout, const TableEdge* edges, uint32 count, BlockNumber block,
               Page page) {
    PageInit(page, BLCKSZ, 0);
    auto* header = reinterpret_cast<PageHeader>(page);
    for (uint32 i = 0; i < count; ++i) {
        header->pd_upper =
            static_cast<LocationIndex>(header->pd_upper - MAXALIGN(layout.row_length));
        ItemIdSetNormal(&header->pd_linp[i], header->pd_upper, layout.row_length);
        char* row = static_cast<char*>(page) + header->pd_upper;
        memcpy(row, layout.row, layout.row_length);
        memcpy(row + layout.src, &edges[i].src, sizeof(edges[i].src));
        memcpy(row + layout.rank, &edges[i].rank, sizeof(edges[i].rank));
        memcpy(row + layout.dst, &edges[i].dst, sizeof(edges[i].dst));
        memcpy(row + layout.distance, &edges[i].distance, sizeof(edges[i].distance));
        ItemPointerSet(&reinterpret_cast<HeapTupleHeader>(row)->t_ctid, block,
                       static_cast<OffsetNumber>(i + 1));
    }
    header->pd_lower = static_cast<LocationIndex>(header->pd_lower + count * sizeof(ItemIdData));
}

}  // namespace

void run_edge_task(const EdgeTarget& target, const EdgeTask& task) {
    const EdgeLayout& layout = *target.layout;
    const int pages = pages_of(layout, task);
    const auto page = [&](int i) { return target.pages + Size{BLCKSZ} * static_cast<Size>(i); };
    for (int i = 0; i < pages; ++i) {
        const BlockNumber block = task.first + static_cast<BlockNumber>(i);
        if (task.of_index) {
            fill_leaf(layout, task, static_cast<uint32>(i), page(i));
            continue;
        }
        const uint32 first = static_cast<uint32>(i) * layout.edges_per_page;
        fill_page(layout, task.edges() + first, std::min(layout.edges_per_page, task.count - first),
                  block, page(i));
    }
    write_bulk_pages(task.of_index ? target.index : target.table, task.first, pages, target.pages);
}

}  // namespace pgwarp
