// Model and directory are written through shared buffers: the directory changes once all lists are
// written. List pages go directly to the file: a buffer would first extend the file with zeros. The
// process that logs a page reads it into a buffer, sets its LSN and leaves it dirty, so that a
// checkpoint writes it: whether the first write reached the disk no longer matters.

#include <cstring>
#include <exception>

#include "extension/index/column.h"
#include "extension/index/format.h"
#include "extension/index/options.h"
#include "extension/create/bulk.h"
#include "extension/index/attributes.h"
#include "extension/index/model.h"
#include "extension/util/large_memory.h"

extern "C" {
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/checksum.h"
#include "storage/smgr.h"
}

namespace pgwarp {

namespace {

void meta_image(Page page, const MetaPage& meta) {
    page_init(page, PageKind::meta, 0);
    *page_meta(page) = meta;
}

// Pages are written in block order, each once.
void write_next_page(void* state, BlockNumber block, Page image) {
    BulkWriter* writer = static_cast<BulkWriter*>(state);
    const Buffer buffer = compat_extend(writer->index, false);
    if (block != writer->end || BufferGetBlockNumber(buffer) != block)
        elog(ERROR, "page %u of a new index was extended as %u", block,
             BufferGetBlockNumber(buffer));
    memcpy(BufferGetPage(buffer), image, BLCKSZ);
    MarkBufferDirty(buffer);
    UnlockReleaseBuffer(buffer);
    ++writer->end;
}

bool has_open_page(const BulkWriter* writer) {
    return BlockNumberIsValid(writer->place.tail);
}

// Writes the page and its refinement pages. `last`: of its list.
void finish_page(BulkWriter* writer, bool last) {
    const EntryLayout layout = layout_of(writer->meta, writer->list);
    const BlockNumber block = writer->place.tail;
    const uint32 refinements = layout.refinement.pages(page_tail(writer->page)->count);
    page_tail(writer->page)->next = last ? InvalidBlockNumber : block + 1 + refinements;
    for (uint32 i = 0; i < refinements; ++i) {
        Page page = writer->refinements + Size{i} * BLCKSZ;
        page_refinements(writer->page, layout)[i] = block + 1 + i;
        page_tail(page)->prev = block;
        compat_set_checksum(page, block + 1 + i);
    }
    compat_set_checksum(writer->page, block);
    bulk_pages(writer, block, static_cast<char*>(writer->page), 1);
    if (refinements > 0) bulk_pages(writer, block + 1, writer->refinements, refinements);
    writer->meta.refinement_pages += refinements;
}

void finish_list(BulkWriter* writer) {
    if (!has_open_page(writer)) return;
    finish_page(writer, true);
    if (writer->list == pending_list)
        writer->meta.pending = writer->place;
    else
        writer->places[writer->list] = writer->place;
}

void add_page(BulkWriter* writer) {
    CHECK_FOR_INTERRUPTS();
    if (has_open_page(writer))
        finish_page(writer, false);
    else
        writer->place.head = writer->end;
    page_init(writer->page, PageKind::list, writer->list);
    page_tail(writer->page)->prev = writer->place.tail;
    const EntryLayout layout = layout_of(writer->meta, writer->list);
    for (uint32 i = 0; i < layout.refinement.pages(layout.capacity); ++i)
        page_init(writer->refinements + Size{i} * BLCKSZ, PageKind::refinement, writer->list);
    writer->place.tail = writer->end;
    ++writer->place.pages;
}

}  // namespace

uint64 new_build_id() {
    uint64 id;
    if (!pg_strong_random(&id, sizeof(id)))
        ereport(ERROR,
                (errcode(ERRCODE_INTERNAL_ERROR), errmsg("could not generate a random build id")));
    return id;
}

namespace {

// Rejects codes that leave no room for the attributes.
void check_entry(const MetaPage& meta) {
    const uint32 attributes = meta.attributes.entry_bytes();
    const int most =
        max_entry_bytes - (meta.refinement == RefinementKind::none ? 0 : refined_entry_bytes);
    if (meta.asked_m + attributes <= static_cast<uint32>(most)) return;
    ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                    errmsg("an entry of the index does not fit a page"),
                    errdetail("m is %u, attributes take %u bytes more, and a page has room for %d.",
                              meta.asked_m, attributes, most)));
}

}  // namespace

MetaPage new_meta(Relation index) {
    MetaPage meta = {};
    meta.magic = format_magic;
    meta.version = format_version;
    meta.build_id = new_build_id();
    meta.metric = metric_of(index);
    meta.element_bytes = static_cast<uint8>(type_of(index).value_bytes());
    meta.dims = static_cast<uint32>(dims_of(index));
    apply_options(options_of(index), &meta);
    set_attributes(attributes_of(index), &meta);
    check_entry(meta);
    meta.centroids = meta.codebook = meta.rotation = meta.directory = InvalidBlockNumber;
    meta.parent_rows = meta.parent_places = InvalidBlockNumber;
    meta.pending = {InvalidBlockNumber, InvalidBlockNumber, 0, 0};
    meta.free_head = InvalidBlockNumber;
    return meta;
}

BulkWriter* begin_bulk(Relation index, const MetaPage& meta, const Quantizer* model) {
    BulkWriter* writer = static_cast<BulkWriter*>(palloc0(sizeof(BulkWriter)));
    writer->index = index;
    writer->meta = meta;
    writer->list = pending_list;
    writer->place = meta.pending;
    writer->page = alloc_pages(1);
    const EntryLayout layout = layout_of(meta, 0);
    if (model && layout.refinement.dims > 0)
        writer->refinements = alloc_pages(layout.refinement.pages(layout.capacity));
    PGAlignedBlock image;
    if (model) place_model(&writer->meta, meta_block + 1);
    meta_image(image.data, writer->meta);
    write_next_page(writer, meta_block, image.data);
    if (model) {
        write_model(writer->meta, *model, write_next_page, writer);
        const uint32 lists = directory_lists(writer->meta);
        writer->places = static_cast<ListPlace*>(palloc(lists * sizeof(ListPlace)));
        for (uint32 i = 0; i < lists; ++i)
            writer->places[i] = {InvalidBlockNumber, InvalidBlockNumber, 0, 0};
    }
    writer->lists_begin = writer->end;
    return writer;
}

void bulk_entry(BulkWriter* writer, uint32 list, const Entry& entry) {
    if (list != writer->list) {
        finish_list(writer);
        writer->list = list;
        writer->place = {InvalidBlockNumber, InvalidBlockNumber, 0, 0};
    }
    const EntryLayout layout = layout_of(writer->meta, list);
    Page page = writer->page;
    if (!has_open_page(writer) || page_tail(page)->count >= layout.capacity) add_page(writer);
    const uint32 slot = page_tail(page)->count++;
    put_entry(page, layout, slot, entry);
    if (layout.refinement.dims > 0)
        put_refinement(writer->refinements + Size{slot / layout.refinement.per_page} * BLCKSZ,
                       layout, slot, entry);
    ++writer->rows;
}

void bulk_pages(BulkWriter* writer, BlockNumber first, char* pages, BlockNumber count) {
    const BlockNumber end = RelationGetNumberOfBlocks(writer->index);
    if (first != writer->end || end != first)
        elog(ERROR, "page %u of a new index would be extended as %u", first, end);
    for (BlockNumber i = 0; i < count; ++i)
        smgrextend(RelationGetSmgr(writer->index), MAIN_FORKNUM, first + i,
                   pages + Size{i} * BLCKSZ, false);
    writer->end += count;
    if (writer->listener.report) writer->listener.report(writer->listener.state, writer->end);
}

void end_bulk_lists(BulkWriter* writer) {
    finish_list(writer);
    const MetaPage& meta = writer->meta;
    const uint32 lists = directory_lists(meta);
    for (uint32 first = 0; first < lists; first += places_per_page) {
        const Buffer buffer = read_page(writer->index, meta.directory + first / places_per_page,
                                        PageKind::directory, BUFFER_LOCK_EXCLUSIVE);
        memcpy(page_places(BufferGetPage(buffer)), writer->places + first,
               Min(places_per_page, lists - first) * sizeof(ListPlace));
        MarkBufferDirty(buffer);
        UnlockReleaseBuffer(buffer);
    }
    bulk_meta(writer, meta);
}

void bulk_meta(BulkWriter* writer, const MetaPage& meta) {
    writer->meta = meta;
    const Buffer buffer =
        read_page(writer->index, meta_block, PageKind::meta, BUFFER_LOCK_EXCLUSIVE);
    *page_meta(BufferGetPage(buffer)) = meta;
    MarkBufferDirty(buffer);
    UnlockReleaseBuffer(buffer);
}

void log_pages(Relation index, BlockNumber first, BlockNumber end) {
    log_newpage_range(index, MAIN_FORKNUM, first, end, true);
}

void bulk_log(BulkWriter* writer) {
    if (RelationNeedsWAL(writer->index))
        log_pages(writer->index, meta_block,
                  writer->lists_are_logged ? writer->lists_begin : writer->end);
}

void write_init_fork(Relation index, const MetaPage& meta) {
    const Buffer buffer =
        ReadBufferExtended(index, INIT_FORKNUM, P_NEW, RBM_ZERO_AND_LOCK, nullptr);
    START_CRIT_SECTION();
    meta_image(BufferGetPage(buffer), meta);
    MarkBufferDirty(buffer);
    // The init fork is logged though the relation is not.
    log_newpage_buffer(buffer, true);
    END_CRIT_SECTION();
    UnlockReleaseBuffer(buffer);
}

}  // namespace pgwarp
