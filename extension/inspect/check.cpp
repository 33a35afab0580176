// ivfpq_check: reads a whole index and reports what is wrong with it.
//
// The lock on the table excludes VACUUM, but not reads and writes: entries that VACUUM removes
// or moves would look like faults, while concurrent inserts are allowed for. A list is read up to
// the tail that its place named. Up to there the chain does not change, except that entries are
// added to its last page. Pages are copied, so that no page is locked while it is checked.
//
// On a standby nothing excludes a VACUUM of the primary. There the check holds a lock on a list's
// place while it reads the list's pages, and what moves from one list to another is no fault: a
// page may be seen in both lists, and so may a TID that was reused for another row.
//
// Attributes and refinements are compared for rows that the snapshot sees. The index was read after
// the snapshot was taken, and an entry of an earlier row is removed before its TID is reused: an
// entry with such a row's TID is this row's. Refinements are compared list by list, on a primary
// only: no row is read while a place is locked.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/distance.h"

#include "extension/index/argument.h"
#include "extension/index/attributes.h"
#include "extension/index/lists.h"
#include "extension/index/model.h"
#include "extension/index/page.h"
#include "extension/index/place.h"
#include "extension/inspect/tid_sort.h"
#include "extension/scan/rows.h"
#include "extension/util/signature.h"

extern "C" {
#include "access/relscan.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

namespace {

struct Check {
    Relation heap;
    Relation index;
    MetaPage meta;
    BlockNumber blocks;
    BlockNumber heap_blocks;
    bool recovery;
    BlockNumber refinement_pages;
    RowReader* reader;  // null: refinements are not compared with rows
    uint8* seen;        // a bit for each block that some structure holds
    TidSort tids;       // all of the index
    ReturnSetInfo* out;
    int64 problems;
};

pg_attribute_printf(3, 4) void problem(Check* check, BlockNumber block, const char* format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    Datum values[3] = {Int64GetDatum(block), CStringGetTextDatum(text),
                       ObjectIdGetDatum(RelationGetRelid(check->index))};
    bool nulls[3] = {!BlockNumberIsValid(block), false, false};
    tuplestore_putvalues(check->out->setResult, check->out->setDesc, values, nulls);
    ++check->problems;
}

// Copies a page for checking. A page that cannot be what it should becomes a problem, not an error;
// returns false then.
bool copy_to_check(Check* check, BlockNumber block, PageKind kind, const char* holder,
                   PGAlignedBlock* copy) {
    if (block >= check->blocks) check->blocks = RelationGetNumberOfBlocks(check->index);
    if (block >= check->blocks) {
        problem(check, block, "%s points behind the end of the index", holder);
        return false;
    }
    const Buffer buffer = ReadBuffer(check->index, block);
    LockBuffer(buffer, BUFFER_LOCK_SHARE);
    memcpy(copy->data, BufferGetPage(buffer), BLCKSZ);
    UnlockReleaseBuffer(buffer);
    Page page = copy->data;
    const char* fault = nullptr;
    if (PageIsNew(page))
        fault = "is empty";
    else if (!page_is_sound(page))
        fault = "is no page of an ivfpq index";
    else if (page_tail(page)->kind != kind)
        fault = "is of another kind";
    if (fault) problem(check, block, "page of %s %s", holder, fault);
    return fault == nullptr;
}

// Returns false and adds a problem where the block was reached before.
bool mark_seen(Check* check, BlockNumber block, BlockNumber size, const char* holder) {
    // The bitmap covers the pages that the index had when the check began, not those added since.
    if (block >= size || check->recovery) return true;
    uint8* byte = &check->seen[block / 8];
    const uint8 bit = static_cast<uint8>(1 << (block % 8));
    if (*byte & bit) {
        problem(check, block, "page of %s belongs to another structure too", holder);
        return false;
    }
    *byte |= bit;
    return true;
}

// Whether every list has one parent. Pages that cannot be read are problems already.
void check_parents(Check* check) {
    const MetaPage& meta = check->meta;
    if (meta.parents == 0) return;
    auto* places =
        static_cast<ParentPlace*>(palloc((Size{meta.parents} + 1) * sizeof(ParentPlace)));
    for (uint32 parent = 0; parent < meta.parents; parent += parents_per_page) {
        const BlockNumber block = meta.parent_places + parent / parents_per_page;
        if (block >= RelationGetNumberOfBlocks(check->index)) return;
        const Buffer buffer = ReadBuffer(check->index, block);
        LockBuffer(buffer, BUFFER_LOCK_SHARE);
        memcpy(places + parent, page_data(BufferGetPage(buffer)),
               Min(parents_per_page, meta.parents - parent) * sizeof(ParentPlace));
        UnlockReleaseBuffer(buffer);
    }
    places[meta.parents] = {meta.lists, 0};
    if (!parents_are_sound(meta, places))
        problem(check, meta.parent_places, "the parents do not have all lists, each once");
    pfree(places);
}

void check_model(Check* check, BlockNumber size) {
    const MetaPage& meta = check->meta;
    const auto check_run = [&](BlockNumber first, BlockNumber pages, PageKind kind,
                               const char* holder) {
        for (BlockNumber i = 0; i < pages; ++i) {
            CHECK_FOR_INTERRUPTS();
            mark_seen(check, first + i, size, holder);
            PGAlignedBlock copy;
            copy_to_check(check, first + i, kind, holder, &copy);
        }
    };
    check_run(meta.centroids, centroid_pages(meta), PageKind::centroids, "the centroids");
    check_run(meta.codebook, codebook_pages(meta), PageKind::codebook, "the codebook");
    check_run(meta.rotation, rotation_pages(meta), PageKind::rotation, "the rotation");
    check_run(meta.parent_rows, parent_row_pages(meta), PageKind::parents, "the parents");
    check_run(meta.parent_places, parent_place_pages(meta), PageKind::parent_places,
              "the parents' lists");
    check_parents(check);
    check_run(meta.directory, directory_pages(meta), PageKind::directory, "the directory");
}

uint64 attribute_at(const AttributeLayout& layout, const uint8* attributes, uint32 attribute) {
    uint64 number = 0;
    memcpy(&number, attributes + layout.bytes_before(attribute), layout.bytes[attribute]);
    return number;
}

bool is_null_at(const AttributeLayout& layout, const uint8* attributes, uint32 attribute) {
    return attributes[layout.bytes_before(layout.count) + attribute / 8] >> attribute % 8 & 1;
}

const char* attribute_name(const Check* check, uint32 attribute) {
    return NameStr(
        TupleDescAttr(RelationGetDescr(check->index), static_cast<int>(attribute) + 1)->attname);
}

// Adds a problem that concerns one entry.
void entry_problem(Check* check, const TidRecord& entry, const char* what) {
    problem(check, entry.block, "entry %u of row (%u,%u) has %s", entry.slot,
            static_cast<uint32>(entry.tid >> 16), static_cast<uint32>(entry.tid & 0xffff), what);
}

// Reports attributes that no row can have.
void check_attributes(Check* check, const TidRecord& entry) {
    const AttributeLayout& layout = check->meta.attributes;
    for (uint32 i = 0; i < layout.count; ++i)
        if (is_null_at(layout, entry.attributes, i) && attribute_at(layout, entry.attributes, i))
            entry_problem(check, entry,
                          psprintf("a number for \"%s\", which is null", attribute_name(check, i)));
    const uint32 used = layout.count % 8;
    if (used > 0 && entry.attributes[layout.entry_bytes() - 1] >> used)
        entry_problem(check, entry, "nulls of attributes that do not exist");
}

// Checks one page's entries and puts their TIDs into the sort.
void check_entries(Check* check, BlockNumber block, Page page, const EntryLayout& layout) {
    const ItemPointerData* tids = page_tids(page, layout);
    uint8* room = static_cast<uint8*>(palloc(copied_bytes(layout)));
    for (uint32 i = 0; i < page_tail(page)->count; ++i) {
        const BlockNumber heap_block = ItemPointerGetBlockNumberNoCheck(&tids[i]);
        const OffsetNumber offset = ItemPointerGetOffsetNumberNoCheck(&tids[i]);
        // Rows inserted since may lie beyond the size of the table that was read before.
        if (heap_block >= check->heap_blocks)
            check->heap_blocks = RelationGetNumberOfBlocks(check->heap);
        if (offset == InvalidOffsetNumber || heap_block >= check->heap_blocks)
            problem(check, block, "entry %u has impossible TID (%u,%u)", i, heap_block, offset);
        TidRecord record{tid_number(tids[i]), block, i, nullptr};
        if (layout.attributes.count > 0) {
            record.attributes = entry_at(page, layout, i, room).attributes;
            check_attributes(check, record);
        }
        put_record(&check->tids, record);
    }
    pfree(room);
}

// A vector that refinements are compared with.
struct ModelRow {
    float* form;      // (code_dims)
    float* centroid;  // of the list
};

// Compares a refinement with its row, if the snapshot sees the row: what the code stands for is as
// far from the row as it claims, and its offset is the row's.
void compare_refinement(Check* check, const TidRecord& entry, const RefinementRecord* record,
                        const ModelRow& row) {
    const MetaPage& meta = check->meta;
    if (!check->reader || !read_row(check->reader, record->tid) || std::isinf(record->head.error))
        return;
    model_form(check->index, meta, floats_of_row(check->reader).values, row.form);
    double error = 0;
    for (uint32 d = 0; d < meta.code_dims; ++d) {
        const double off = double{row.form[d]} - row.centroid[d] -
                           double{record->head.scale} * record_codes(record)[d];
        error += off * off;
    }
    // A rotation of one row and one of many differ in the last bits.
    const double magnitude = std::sqrt(squared_norm(row.form, meta.code_dims)) +
                             std::sqrt(squared_norm(row.centroid, meta.code_dims));
    const auto differs = [](double a, double b, double within) {
        // What overflowed is not compared.
        return std::isfinite(a) && std::isfinite(b) ? std::fabs(a - b) > within
                                                    : std::isfinite(a) != std::isfinite(b);
    };
    // Squares of the tiniest numbers are lost in sums of floats.
    const double lost = std::sqrt(meta.code_dims) * 0x1p-73;
    if (differs(std::sqrt(error), record->head.error,
                0.01 * record->head.error + 1e-5 * magnitude + lost)) {
        entry_problem(check, entry, "a refinement of another vector");
        return;
    }
    int8* codes = static_cast<int8*>(palloc(meta.code_dims));
    const RefinementHead head =
        encode_refinement(meta.metric, row.form, row.centroid, meta.code_dims, codes);
    pfree(codes);
    const double offset_unit = has_norms(meta.metric) ? magnitude * magnitude : magnitude;
    if (differs(head.offset, record->head.offset, 1e-4 * offset_unit) ||
        differs(head.norm, record->head.norm, 1e-3 * head.norm + 1e-5 * magnitude))
        entry_problem(check, entry, "a refinement with numbers of another vector");
}

// Checks the refinement pages that a list page names.
void check_refinements(Check* check, uint32 list, BlockNumber block, Page page,
                       const EntryLayout& layout, BlockNumber size, const char* holder) {
    const RefinementLayout& refinement = layout.refinement;
    const uint32 count = page_tail(page)->count;
    const ItemPointerData* tids = page_tids(page, layout);
    ModelRow row = {};
    if (check->reader) {
        row.form = static_cast<float*>(palloc(check->meta.code_dims * sizeof(float)));
        row.centroid = static_cast<float*>(palloc(check->meta.code_dims * sizeof(float)));
        read_centroid(check->index, check->meta, list, row.centroid);
    }
    for (uint32 i = 0; i < refinement.pages(layout.capacity); ++i) {
        CHECK_FOR_INTERRUPTS();
        const BlockNumber at = page_refinements(page, layout)[i];
        if (at == meta_block) {
            if (i < refinement.pages(count))
                problem(check, block, "page of %s lacks a refinement page", holder);
            continue;
        }
        ++check->refinement_pages;
        const char* kind = psprintf("the refinements of %s", holder);
        PGAlignedBlock copy;
        if (!mark_seen(check, at, size, kind) ||
            !copy_to_check(check, at, PageKind::refinement, kind, &copy))
            continue;
        const PageTail tail = *page_tail(copy.data);
        if (tail.list != list || tail.prev != block) {
            problem(check, at, "page of %s names page %u of list %u", kind, tail.prev, tail.list);
            continue;
        }
        for (uint32 slot = i * refinement.per_page;
             slot < Min(count, (i + 1) * refinement.per_page); ++slot) {
            const TidRecord entry{tid_number(tids[slot]), block, slot, nullptr};
            const RefinementRecord* record = page_record(copy.data, refinement, slot);
            if (tid_number(record->tid) != entry.tid)
                entry_problem(check, entry, "the refinement of another row");
            else if (ItemPointerGetBlockNumberNoCheck(&tids[slot]) < check->heap_blocks &&
                     OffsetNumberIsValid(ItemPointerGetOffsetNumberNoCheck(&tids[slot])))
                compare_refinement(check, entry, record, row);
        }
    }
    if (row.form) pfree(row.form);
    if (row.centroid) pfree(row.centroid);
}

void check_list(Check* check, uint32 list, BlockNumber size) {
    const EntryLayout layout = layout_of(check->meta, list);
    char holder[64];
    if (list == pending_list)
        strlcpy(holder, "the pending list", sizeof(holder));
    else if (list == undirected_list(check->meta))
        strlcpy(holder, "the list of rows without a direction", sizeof(holder));
    else
        snprintf(holder, sizeof(holder), "list %u", list);

    const Buffer place_buffer = lock_place(check->index, check->meta, list);
    const ListPlace place = place_of(place_buffer, check->meta, list);
    if (!check->recovery) UnlockReleaseBuffer(place_buffer);
    BlockNumber prev = InvalidBlockNumber;
    BlockNumber pages = 0;
    for (BlockNumber block = place.head; BlockNumberIsValid(block);) {
        CHECK_FOR_INTERRUPTS();
        if (!mark_seen(check, block, size, holder)) break;
        PGAlignedBlock copy;
        if (!copy_to_check(check, block, PageKind::list, holder, &copy)) break;
        Page page = copy.data;
        const PageTail tail = *page_tail(page);
        if (tail.list != list) problem(check, block, "page of %s names list %u", holder, tail.list);
        if (tail.prev != prev)
            problem(check, block, "page of %s names %u as the page before it, not %u", holder,
                    tail.prev, prev);
        if (tail.count > layout.capacity)
            problem(check, block, "page of %s claims %u entries, it has room for %u", holder,
                    tail.count, layout.capacity);
        else
            check_entries(check, block, page, layout);
        if (layout.refinement.dims > 0 && tail.count <= layout.capacity)
            check_refinements(check, list, block, page, layout, size, holder);
        if (BlockNumberIsValid(tail.next) && tail.count != layout.capacity)
            problem(check, block, "page of %s is not full, and not the last", holder);
        prev = block;
        // Pages behind that tail were added since.
        block = block == place.tail ? InvalidBlockNumber : tail.next;
        if (++pages > place.pages) {
            problem(check, prev, "%s has more pages than the %u it claims", holder, place.pages);
            break;
        }
    }
    if (pages < place.pages)
        problem(check, prev, "%s claims %u pages, %u were found", holder, place.pages, pages);
    if (prev != place.tail)
        problem(check, place.tail, "%s ends with page %u, not with its tail", holder, prev);
    if (check->recovery) UnlockReleaseBuffer(place_buffer);
}

void check_free_list(Check* check, BlockNumber size) {
    const Buffer meta_buffer =
        read_page(check->index, meta_block, PageKind::meta, BUFFER_LOCK_SHARE);
    const BlockNumber head = page_meta(BufferGetPage(meta_buffer))->free_head;
    const uint32 claimed = page_meta(BufferGetPage(meta_buffer))->free_pages;
    uint32 found = 0;
    for (BlockNumber block = head; BlockNumberIsValid(block) && found <= claimed; ++found) {
        if (!mark_seen(check, block, size, "the free list")) break;
        PGAlignedBlock copy;
        if (!copy_to_check(check, block, PageKind::free, "the free list", &copy)) break;
        block = page_tail(copy.data)->next;
    }
    if (found != claimed)
        problem(check, head, "the free list claims %u pages, %u were found", claimed, found);
    UnlockReleaseBuffer(meta_buffer);
}

// Inserts may have added pages since the check began.
void check_refinement_count(Check* check) {
    if (check->recovery) return;
    const MetaPage now = read_meta(check->index);
    // Other lists, which are not checked, have refinement pages, too.
    if (check->meta.other.lists > 0 || now.other.lists > 0) return;
    const uint32 claimed = now.refinement_pages;
    if (check->refinement_pages < check->meta.refinement_pages || check->refinement_pages > claimed)
        problem(check, meta_block, "the index claims %u refinement pages, %u were found", claimed,
                check->refinement_pages);
}

struct HeapRows {
    TidSort* sort;
    const IndexAttributes* attributes;
    uint8* packed;
    MemoryContext context;  // of one row
};

void collect_heap_row(Relation, ItemPointer tid, Datum* values, bool* nulls, bool, void* state) {
    if (nulls[0]) return;
    const auto* rows = static_cast<HeapRows*>(state);
    if (rows->sort->attribute_bytes > 0) {
        const MemoryContext before = MemoryContextSwitchTo(rows->context);
        pack_attributes(*rows->attributes, values, nulls, rows->packed);
        MemoryContextSwitchTo(before);
        MemoryContextReset(rows->context);
    }
    put_record(rows->sort, {tid_number(*tid), InvalidBlockNumber, 0, rows->packed});
}

// An index may lack rows of broken HOT chains (indcheckxmin), which only snapshots older than the
// index can see.
void check_snapshot(Relation index, Snapshot snapshot) {
    if (IsolationUsesXactSnapshot() && index->rd_index->indcheckxmin &&
        !TransactionIdPrecedes(HeapTupleHeaderGetXmin(index->rd_indextuple->t_data),
                               snapshot->xmin))
        ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
                        errmsg("index \"%s\" cannot be checked with a snapshot older than it",
                               RelationGetRelationName(index)),
                        errhint("Begin a new transaction.")));
}

// The TIDs of all rows that the snapshot sees, sorted, with the attributes that their entries must
// have. The snapshot was taken before the index was read, so the index must have all of them.
TidSort collect_heap_rows(const OpenIndex& open, Snapshot snapshot, uint32 attribute_bytes) {
    TidSort sort = begin_tid_sort(attribute_bytes);
    HeapRows rows = {
        &sort, copy_attributes(open.index), static_cast<uint8*>(palloc(attribute_bytes + 1)),
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq_check row", ALLOCSET_DEFAULT_SIZES)};
    IndexInfo* info = BuildIndexInfo(open.index);
    // As in CREATE INDEX CONCURRENTLY, the scan returns the rows that the snapshot sees.
    info->ii_Concurrent = true;
    TableScanDesc scan = table_beginscan_strat(open.heap, snapshot, 0, nullptr, true, true);
    table_index_build_scan(open.heap, open.index, info, true, false, collect_heap_row, &rows, scan);
    MemoryContextDelete(rows.context);
    tuplesort_performsort(sort.sort);
    return sort;
}

void report_missing(Check* check, uint64 tid) {
    problem(check, InvalidBlockNumber, "row (%u,%u) is not in the index",
            static_cast<uint32>(tid >> 16), static_cast<uint32>(tid & 0xffff));
}

// Compares an entry with its row. Entries of the pending list have no attributes.
void compare_attributes(Check* check, const TidRecord& entry, const TidRecord& row) {
    const AttributeLayout& layout = check->meta.attributes;
    if (!entry.attributes) return;
    for (uint32 i = 0; i < layout.count; ++i)
        if (attribute_at(layout, entry.attributes, i) != attribute_at(layout, row.attributes, i) ||
            is_null_at(layout, entry.attributes, i) != is_null_at(layout, row.attributes, i))
            entry_problem(check, entry,
                          psprintf("another \"%s\" than the row", attribute_name(check, i)));
}

// Merges both sorted streams: a TID twice in the index, or in the table only, is a problem, and so
// are attributes that differ.
void check_rows(Check* check, TidSort* rows) {
    TidRecord row;
    bool more_rows = rows && next_record(rows, &row);
    bool found = false;
    uint64 previous = 0;
    TidRecord entry;
    const auto pass_row = [&] {
        if (!found) report_missing(check, row.tid);
        found = false;
        more_rows = next_record(rows, &row);
    };
    while (next_record(&check->tids, &entry)) {
        CHECK_FOR_INTERRUPTS();
        if (entry.tid == previous && !check->recovery)
            problem(check, InvalidBlockNumber, "row (%u,%u) is in the index twice",
                    static_cast<uint32>(entry.tid >> 16), static_cast<uint32>(entry.tid & 0xffff));
        previous = entry.tid;
        while (more_rows && row.tid < entry.tid) pass_row();
        if (!more_rows || row.tid != entry.tid) continue;
        found = true;
        compare_attributes(check, entry, row);
    }
    while (more_rows) pass_row();
}

void check_part(const OpenIndex& open, bool heap_all_indexed, bool recovery, ReturnSetInfo* out) {
    Check check = {};
    check.recovery = recovery;
    check.heap = open.heap;
    check.index = open.index;
    check.out = out;
    Snapshot snapshot = RegisterSnapshot(GetTransactionSnapshot());
    if (heap_all_indexed) check_snapshot(open.index, snapshot);
    check.meta = read_meta(open.index);
    check.blocks = RelationGetNumberOfBlocks(open.index);
    const BlockNumber size = check.blocks;
    check.seen = static_cast<uint8*>(MemoryContextAllocExtended(CurrentMemoryContext, size / 8 + 1,
                                                                MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
    const uint32 attribute_bytes = heap_all_indexed && check.meta.attributes.count > 0
                                       ? check.meta.attributes.entry_bytes()
                                       : 0;
    check.tids = begin_tid_sort(attribute_bytes);
    if (heap_all_indexed && !recovery && check.meta.refinement != RefinementKind::none)
        check.reader = open_row_reader(open.heap, open.index, snapshot);
    mark_seen(&check, meta_block, size, "the metapage");
    if (check.meta.lists > 0) check_model(&check, size);
    check_list(&check, pending_list, size);
    for (uint32 list = 0; list < directory_lists(check.meta); ++list) {
        CHECK_FOR_INTERRUPTS();
        check_list(&check, list, size);
    }
    check_free_list(&check, size);
    check_refinement_count(&check);
    if (check.reader) close_row_reader(check.reader);
    if (read_meta(open.index).build_id != check.meta.build_id)
        ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
                        errmsg("index \"%s\" was trained while it was checked",
                               RelationGetRelationName(open.index)),
                        errhint("Check it again.")));
    tuplesort_performsort(check.tids.sort);
    TidSort rows = {};
    if (heap_all_indexed) rows = collect_heap_rows(open, snapshot, attribute_bytes);
    check_rows(&check, heap_all_indexed ? &rows : nullptr);
    end_tid_sort(&check.tids);
    if (heap_all_indexed) end_tid_sort(&rows);
    UnregisterSnapshot(snapshot);
    pfree(check.seen);
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(ivfpq_check) {
    compat_init_materialized(fcinfo);
    // Version 0.1.0 declares it without leaf_index, its last column: indexes can be checked before
    // the extension is updated.
    const auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    check_signature(fcinfo, 2, result->setDesc->natts == 2 ? 2 : 3);
    const bool recovery = RecoveryInProgress();
    const IndexLeaves parts = find_parts(PG_GETARG_OID(0), Purpose::maintain);
    for (int i = 0; i < parts.count; ++i) {
        const OpenIndex open =
            open_part(parts.leaves[i], recovery ? AccessShareLock : ShareUpdateExclusiveLock);
        check_part(open, PG_GETARG_BOOL(1), recovery,
                   reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo));
        close_index(open);
    }
    return Datum{0};
}
