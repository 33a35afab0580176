#include "extension/scan/entries.h"

#include "extension/index/lists.h"
#include "extension/index/page.h"
#include "extension/index/place.h"
#include "extension/index/tid.h"

namespace pgwarp {

namespace {

struct EntryCopy {
    TidSet* tids;
    std::span<const Condition> conditions;
    const RowSet* rows;
    bool checks_rows;  // entries without attributes are among them
    uint32 count;
    uint64 page_tids[max_page_entries];  // of one page
};

void copy_page(void* state, uint32, Page page, const EntryLayout& layout) {
    auto* copy = static_cast<EntryCopy*>(state);
    const ItemPointerData* tids = page_tids(page, layout);
    const uint32 count = page_tail(page)->count;
    uint64 passing[passing_words(max_page_entries)];
    const bool all = layout.m == 0 || copy->conditions.empty();
    if (!all) check_conditions(attribute_columns(page, layout), copy->conditions, passing);
    copy->checks_rows |= layout.m == 0 && count > 0;
    copy->count = 0;
    for (uint32 i = 0; i < count; ++i)
        if ((all || (passing[i / 64] >> i % 64 & 1)) &&
            (!copy->rows || has_row(*copy->rows, tids[i])))
            copy->page_tids[copy->count++] = tid_number(tids[i]);
}

// Runs without the page's lock, because put_tid() may write to a file.
void keep_page(void* state) {
    const auto* copy = static_cast<EntryCopy*>(state);
    for (uint32 i = 0; i < copy->count; ++i) put_tid(copy->tids, copy->page_tids[i]);
}

EntryCopy* begin_copy(Size bytes, std::span<const Condition> conditions, const RowSet* rows) {
    auto* copy = static_cast<EntryCopy*>(palloc0(sizeof(EntryCopy)));
    copy->conditions = conditions;
    copy->rows = rows;
    copy->tids = open_tid_set(bytes);
    return copy;
}

IndexEntries end_copy(EntryCopy* copy) {
    sort_tid_set(copy->tids);
    const IndexEntries entries{copy->tids, copy->checks_rows};
    pfree(copy);
    return entries;
}

void walk(Relation index, const MetaPage& meta, Snapshot snapshot, EntryCopy* copy,
          const uint32* lists, uint32 count) {
    walk_lists(index, meta, lists, count, {copy_page, copy, keep_page});
    check_snapshot(index, meta, lists, count, snapshot);
}

// Whether the metapage has the lists of all entries that were pending, and none of them that is in
// its lists, too.
bool has_lists(Relation index, const MetaPage& meta) {
    return read_meta(index).build_id == meta.build_id;
}

// Adds the entries of the pending list, then those of the lists. False: VACUUM trained the index
// meanwhile, and `meta` lacks its lists, or has others.
bool add_entries(Relation index, const MetaPage& meta, Snapshot snapshot, EntryCopy* copy) {
    const uint32 pending = pending_list;
    const ListPlace& place = meta.pending;
    // A list that never had an entry.
    const bool unused = place.generation == 0 && !BlockNumberIsValid(place.head);
    if (!unused) walk(index, meta, snapshot, copy, &pending, 1);
    if ((!unused || meta.lists == 0) && !has_lists(index, meta)) return false;
    if (meta.lists == 0) return true;
    const uint32 count = directory_lists(meta);
    auto* lists = static_cast<uint32*>(palloc(count * sizeof(uint32)));
    for (uint32 i = 0; i < count; ++i) lists[i] = i;
    walk(index, meta, snapshot, copy, lists, count);
    pfree(lists);
    return true;
}

}  // namespace

IndexEntries read_entries(Relation index, Snapshot snapshot, std::span<const Condition> conditions,
                          Size bytes, const RowSet* rows) {
    EntryCopy* copy = begin_copy(bytes, conditions, rows);
    while (!add_entries(index, read_meta(index), snapshot, copy)) continue;
    return end_copy(copy);
}

TidSet* read_list(Relation index, const MetaPage& meta, Snapshot snapshot, uint32 list,
                  Size bytes) {
    EntryCopy* copy = begin_copy(bytes, {}, nullptr);
    walk(index, meta, snapshot, copy, &list, 1);
    return end_copy(copy).tids;
}

bool read_pending(Relation index, const MetaPage& meta, Snapshot snapshot, Size bytes,
                  PendingEntries* pending) {
    if (pending->tids) close_tid_set(pending->tids);
    *pending = {nullptr, meta.pending.generation};
    const uint32 list = pending_list;
    // A pending list that is empty now has no entry that the snapshot sees.
    if (meta.pending.pages == 0 && !BlockNumberIsValid(meta.pending.head)) {
        if (meta.pending.generation > 0) check_snapshot(index, meta, &list, 1, snapshot);
        return true;
    }
    pending->tids = read_list(index, meta, snapshot, list, bytes);
    return has_lists(index, meta);
}

bool have_moved(Relation index, const MetaPage& meta, const PendingEntries& pending) {
    return pending.tids && !is_empty(pending.tids) &&
           read_place(index, meta, pending_list).generation != pending.generation;
}

}  // namespace pgwarp
