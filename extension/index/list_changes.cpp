// A change is one GenericXLog record of at most four pages, so that a crash leaves the index
// between two changes and never inside one. Buffers are registered in lock order: a standby locks
// them in that order, one after the other, and holds them all to the end of the record. An entry is
// appended to the tail of its list; only VACUUM removes entries, filling each hole with the list's
// last entry, so that all pages of a list but the last stay full and emptied pages leave at the
// tail. An entry's refinement is written in the same record, or, where that would have five pages,
// before it, to a slot that has no entry yet. A change that removes or moves an entry raises the
// list's generation in the same record: a reader that saw the same generation before and after its
// walk has seen every entry.

#include "extension/index/list_changes.h"
#include "extension/index/change_counts.h"
#include "extension/index/page_changes.h"
#include "extension/index/place.h"
#include "extension/index/tid.h"
#include "extension/util/pause.h"

extern "C" {
#include "access/generic_xlog.h"
#include "access/transam.h"
#include "commands/vacuum.h"
#include "storage/lmgr.h"
}

namespace pgwarp {

namespace {

// A list whose place this process has locked exclusively.
struct LockedList {
    Relation index;
    uint32 list;
    EntryLayout layout;
    PlaceAddress address;
    Buffer place_buffer;

    ListPlace place() const { return *place_on(BufferGetPage(place_buffer), address); }
    // The place as a WAL record will have it.
    ListPlace* registered_place(GenericXLogState* state) const {
        return place_on(GenericXLogRegisterBuffer(state, place_buffer, 0), address);
    }
};

LockedList lock_list(Relation index, const MetaPage& meta, uint32 list) {
    const PlaceAddress address = place_address(meta, list);
    return {index, list, layout_of(meta, list), address,
            read_page(index, address.block, address.kind, BUFFER_LOCK_EXCLUSIVE)};
}

void unlock_list(const LockedList& list) {
    UnlockReleaseBuffer(list.place_buffer);
}

// Writes a record that changes the list. The caller still has the buffers locked.
void finish_change(GenericXLogState* state, Relation index, uint32 list) {
    GenericXLogFinish(state);
    count_change(index, list);
}

bool is_tail_of(Page page, uint32 list) {
    return page_is_sound(page) && page_tail(page)->kind == PageKind::list &&
           page_tail(page)->list == list && !BlockNumberIsValid(page_tail(page)->next);
}

Buffer read_tail(const LockedList& list, int lock) {
    const BlockNumber block = list.place().tail;
    Buffer buffer;
    if (!read_list_page(list.index, block, list.list, list.layout, lock, &buffer) ||
        !is_tail_of(BufferGetPage(buffer), list.list))
        report_damage(list.index, block, "it is not the tail of its list");
    return buffer;
}

void put_last(Page page, const EntryLayout& layout, const Entry& entry) {
    put_entry(page, layout, page_tail(page)->count++, entry);
}

// A page for a list: from the free list, else new. `locked_meta` is the metapage where the caller
// has locked it, else InvalidBuffer. Sets `meta_buffer` to the locked metapage where the free list
// changes, else to InvalidBuffer.
Buffer take_page(Relation index, Buffer locked_meta, Buffer* meta_buffer) {
    const Buffer meta = BufferIsValid(locked_meta)
                            ? locked_meta
                            : read_page(index, meta_block, PageKind::meta, BUFFER_LOCK_EXCLUSIVE);
    const BlockNumber block = page_meta(BufferGetPage(meta))->free_head;
    if (BlockNumberIsValid(block)) {
        *meta_buffer = meta;
        return read_page(index, block, PageKind::free, BUFFER_LOCK_EXCLUSIVE);
    }
    if (!BufferIsValid(locked_meta)) UnlockReleaseBuffer(meta);
    *meta_buffer = InvalidBuffer;
    return compat_extend(index, false);
}

// Links a new empty page behind the tail, which is locked, too, where the list has one. Returns the
// new page, locked.
Buffer add_tail_page(const LockedList& list, Buffer tail_buffer) {
    Buffer meta_buffer;
    const Buffer new_buffer = take_page(
        list.index, list.list == pending_list ? list.place_buffer : InvalidBuffer, &meta_buffer);
    const BlockNumber new_block = BufferGetBlockNumber(new_buffer);
    const BlockNumber next_free = BufferIsValid(meta_buffer)
                                      ? page_tail(BufferGetPage(new_buffer))->next
                                      : InvalidBlockNumber;

    GenericXLogState* state = GenericXLogStart(list.index);
    ListPlace* place = list.registered_place(state);
    const BlockNumber tail_block = place->tail;
    if (!BlockNumberIsValid(tail_block)) place->head = new_block;
    place->tail = new_block;
    ++place->pages;
    if (BufferIsValid(tail_buffer))
        page_tail(GenericXLogRegisterBuffer(state, tail_buffer, 0))->next = new_block;
    if (BufferIsValid(meta_buffer)) {
        MetaPage* meta = page_meta(GenericXLogRegisterBuffer(state, meta_buffer, 0));
        meta->free_head = next_free;
        --meta->free_pages;
    }
    Page page = GenericXLogRegisterBuffer(state, new_buffer, GENERIC_XLOG_FULL_IMAGE);
    page_init(page, PageKind::list, list.list);
    page_tail(page)->prev = tail_block;
    finish_change(state, list.index, list.list);
    if (BufferIsValid(meta_buffer) && meta_buffer != list.place_buffer)
        UnlockReleaseBuffer(meta_buffer);
    return new_buffer;
}

// The tail page of a list, exclusively locked, with room for an entry.
Buffer tail_with_room(Relation index, const MetaPage& meta, uint32 list,
                      const EntryLayout& layout) {
    const auto has_room = [&](Buffer buffer) {
        return is_tail_of(BufferGetPage(buffer), list) &&
               page_tail(BufferGetPage(buffer))->count < layout.capacity;
    };

    // The fast path takes no lock on the place. It fails where the page is full, or is no longer
    // the tail once it is locked.
    Buffer tail_buffer = InvalidBuffer;
    const BlockNumber tail_block = read_place(index, meta, list).tail;
    pause_at("append");
    if (BlockNumberIsValid(tail_block) &&
        read_list_page(index, tail_block, list, layout, BUFFER_LOCK_EXCLUSIVE, &tail_buffer)) {
        if (has_room(tail_buffer)) return tail_buffer;
        UnlockReleaseBuffer(tail_buffer);
    }

    const LockedList locked = lock_list(index, meta, list);
    tail_buffer = InvalidBuffer;
    if (BlockNumberIsValid(locked.place().tail))
        tail_buffer = read_tail(locked, BUFFER_LOCK_EXCLUSIVE);
    if (!BufferIsValid(tail_buffer) || !has_room(tail_buffer)) {
        const Buffer new_buffer = add_tail_page(locked, tail_buffer);
        if (BufferIsValid(tail_buffer)) UnlockReleaseBuffer(tail_buffer);
        tail_buffer = new_buffer;
    }
    unlock_list(locked);
    return tail_buffer;
}

// Adds a refinement page for a slot of a list page, which the caller has locked. Returns the new
// page, locked.
Buffer add_refinement_page(Relation index, Buffer buffer, const EntryLayout& layout, uint32 slot) {
    Buffer meta_buffer = read_page(index, meta_block, PageKind::meta, BUFFER_LOCK_EXCLUSIVE);
    const BlockNumber free_block = page_meta(BufferGetPage(meta_buffer))->free_head;
    Buffer new_buffer;
    if (BlockNumberIsValid(free_block)) {
        new_buffer = read_page(index, free_block, PageKind::free, BUFFER_LOCK_EXCLUSIVE);
    } else {
        // Scans wait for the metapage. No other process knows the new page, so it may be locked
        // first.
        UnlockReleaseBuffer(meta_buffer);
        new_buffer = compat_extend(index, false);
        meta_buffer = read_page(index, meta_block, PageKind::meta, BUFFER_LOCK_EXCLUSIVE);
    }
    const BlockNumber next_free = BlockNumberIsValid(free_block)
                                      ? page_tail(BufferGetPage(new_buffer))->next
                                      : InvalidBlockNumber;
    const uint32 list = page_tail(BufferGetPage(buffer))->list;

    GenericXLogState* state = GenericXLogStart(index);
    Page page = GenericXLogRegisterBuffer(state, buffer, 0);
    MetaPage* meta = page_meta(GenericXLogRegisterBuffer(state, meta_buffer, 0));
    Page added = GenericXLogRegisterBuffer(state, new_buffer, GENERIC_XLOG_FULL_IMAGE);
    page_refinements(page, layout)[slot / layout.refinement.per_page] =
        BufferGetBlockNumber(new_buffer);
    if (BlockNumberIsValid(free_block)) {
        meta->free_head = next_free;
        --meta->free_pages;
    }
    ++meta->refinement_pages;
    page_init(added, PageKind::refinement, list);
    page_tail(added)->prev = BufferGetBlockNumber(buffer);
    GenericXLogFinish(state);
    UnlockReleaseBuffer(meta_buffer);
    return new_buffer;
}

// The refinement page of the next slot of a list page, which the caller has locked; locked, too.
// InvalidBuffer: entries have no refinements.
Buffer next_refinement_page(Relation index, Buffer buffer, const EntryLayout& layout) {
    if (layout.refinement.dims == 0) return InvalidBuffer;
    Page page = BufferGetPage(buffer);
    const uint32 slot = page_tail(page)->count;
    if (page_refinements(page, layout)[slot / layout.refinement.per_page] == meta_block)
        return add_refinement_page(index, buffer, layout, slot);
    return read_refinement_page(index, buffer, layout, slot, BUFFER_LOCK_EXCLUSIVE);
}

// Gives the refinement pages of a list page without entries to the free list. The caller has the
// page locked.
void free_refinements(const LockedList& list, Buffer buffer) {
    const EntryLayout& layout = list.layout;
    for (uint32 i = 0; i < layout.refinement.pages(layout.capacity); ++i) {
        const uint32 slot = i * layout.refinement.per_page;
        const BlockNumber block = page_refinements(BufferGetPage(buffer), layout)[i];
        if (block == meta_block) continue;
        const Buffer freed_buffer =
            read_refinement_page(list.index, buffer, layout, slot, BUFFER_LOCK_EXCLUSIVE);
        const Buffer meta_buffer =
            read_page(list.index, meta_block, PageKind::meta, BUFFER_LOCK_EXCLUSIVE);
        GenericXLogState* state = GenericXLogStart(list.index);
        page_refinements(GenericXLogRegisterBuffer(state, buffer, 0), layout)[i] = meta_block;
        Page freed = GenericXLogRegisterBuffer(state, freed_buffer, GENERIC_XLOG_FULL_IMAGE);
        MetaPage* meta = page_meta(GenericXLogRegisterBuffer(state, meta_buffer, 0));
        page_init(freed, PageKind::free, 0);
        page_tail(freed)->next = meta->free_head;
        meta->free_head = block;
        ++meta->free_pages;
        --meta->refinement_pages;
        GenericXLogFinish(state);
        UnlockReleaseBuffer(meta_buffer);
        UnlockReleaseBuffer(freed_buffer);
    }
}

// Unlinks the tail page of a list and gives it to the free list, if it is empty.
bool free_empty_tail(const LockedList& list) {
    const Relation index = list.index;
    const ListPlace place = list.place();
    if (!BlockNumberIsValid(place.tail)) return false;

    // prev never changes while a page is in a list, so it can be read before the locks.
    const Buffer tail_buffer = read_tail(list, BUFFER_LOCK_SHARE);
    const BlockNumber prev = page_tail(BufferGetPage(tail_buffer))->prev;
    LockBuffer(tail_buffer, BUFFER_LOCK_UNLOCK);

    Buffer prev_buffer = InvalidBuffer;
    if (BlockNumberIsValid(prev) && (!read_list_page(index, prev, list.list, list.layout,
                                                     BUFFER_LOCK_EXCLUSIVE, &prev_buffer) ||
                                     page_tail(BufferGetPage(prev_buffer))->next != place.tail))
        report_damage(index, prev, "it is not the page before the tail of its list");
    if (BlockNumberIsValid(prev) == (place.head == place.tail))
        report_damage(index, place.tail, "head and tail of its list do not fit together");
    LockBuffer(tail_buffer, BUFFER_LOCK_EXCLUSIVE);

    // Another backend may have appended meanwhile: an append needs the tail's lock only.
    const bool empty = page_tail(BufferGetPage(tail_buffer))->count == 0;
    if (empty) {
        free_refinements(list, tail_buffer);
        const Buffer meta_buffer =
            list.list == pending_list
                ? list.place_buffer
                : read_page(index, meta_block, PageKind::meta, BUFFER_LOCK_EXCLUSIVE);
        GenericXLogState* state = GenericXLogStart(index);
        ListPlace* changed = list.registered_place(state);
        changed->tail = prev;
        if (!BlockNumberIsValid(prev)) changed->head = InvalidBlockNumber;
        --changed->pages;
        ++changed->generation;
        if (BufferIsValid(prev_buffer))
            page_tail(GenericXLogRegisterBuffer(state, prev_buffer, 0))->next = InvalidBlockNumber;
        MetaPage* meta = page_meta(GenericXLogRegisterBuffer(state, meta_buffer, 0));
        Page freed = GenericXLogRegisterBuffer(state, tail_buffer, GENERIC_XLOG_FULL_IMAGE);
        page_init(freed, PageKind::free, 0);
        page_tail(freed)->next = meta->free_head;
        meta->free_head = place.tail;
        ++meta->free_pages;
        finish_change(state, index, list.list);
        if (meta_buffer != list.place_buffer) UnlockReleaseBuffer(meta_buffer);
    }
    UnlockReleaseBuffer(tail_buffer);
    if (BufferIsValid(prev_buffer)) UnlockReleaseBuffer(prev_buffer);
    return empty;
}

// VACUUM's callback expects a TID that a row can have.
bool is_dead(Relation index, Buffer buffer, ItemPointerData tid, const Removal& removal) {
    if (!OffsetNumberIsValid(ItemPointerGetOffsetNumberNoCheck(&tid)))
        report_damage(index, BufferGetBlockNumber(buffer), "an entry is of no row");
    return removal.is_dead(&tid, removal.state);
}

// Slots of a page's dead entries, in order.
uint32 find_dead(Relation index, Buffer buffer, const EntryLayout& layout, const Removal& removal,
                 uint16* slots) {
    uint32 dead = 0;
    Page page = BufferGetPage(buffer);
    const ItemPointerData* tids = page_tids(page, layout);
    for (uint32 i = 0; i < page_tail(page)->count; ++i)
        if (is_dead(index, buffer, tids[i], removal)) slots[dead++] = static_cast<uint16>(i);
    return dead;
}

// The refinements that a record moves: one record writes one refinement page.
struct MovedRefinements {
    Buffer buffer;  // of the holes; InvalidBuffer: entries have no refinements
    Page page;      // as the record will have it
    uint8* room;
};

// The entries of dead slots that one record can fill. Locks the refinement page of these slots.
uint32 fillable(const LockedList& list, Buffer buffer, const uint16* dead_slots, uint32 dead,
                MovedRefinements* moved) {
    const RefinementLayout& refinement = list.layout.refinement;
    *moved = {InvalidBuffer, nullptr, nullptr};
    if (refinement.dims == 0 || dead == 0) return dead;
    uint32 count = 0;
    while (count < dead &&
           dead_slots[count] / refinement.per_page == dead_slots[0] / refinement.per_page)
        ++count;
    moved->buffer =
        read_refinement_page(list.index, buffer, list.layout, dead_slots[0], BUFFER_LOCK_EXCLUSIVE);
    moved->room = static_cast<uint8*>(palloc(refinement.bytes()));
    return count;
}

// Copies the refinement of an entry of the tail, and puts it into a hole.
void move_refinement(const LockedList& list, Buffer tail_buffer, uint32 from, uint32 hole,
                     Entry* entry, const MovedRefinements& moved) {
    const EntryLayout& layout = list.layout;
    const BlockNumber from_block =
        page_refinements(BufferGetPage(tail_buffer), layout)[from / layout.refinement.per_page];
    if (from_block == BufferGetBlockNumber(moved.buffer)) {
        entry->refinement = copy_refinement(moved.page, layout, from, moved.room);
    } else {
        const Buffer buffer =
            read_refinement_page(list.index, tail_buffer, layout, from, BUFFER_LOCK_SHARE);
        entry->refinement = copy_refinement(BufferGetPage(buffer), layout, from, moved.room);
        UnlockReleaseBuffer(buffer);
    }
    put_refinement(moved.page, layout, hole, *entry);
}

// Moves the last entries of the list into the slots of a page's dead entries. Where the tail page
// has too few, or the slots are more than one record can fill, the other dead entries stay until
// the next call. The page may be the tail itself. Returns whether the tail is empty now.
bool fill_from_tail(const LockedList& list, BlockNumber block, Removal* removal) {
    const EntryLayout& layout = list.layout;
    const bool is_tail = block == list.place().tail;
    Buffer buffer;
    if (!read_list_page(list.index, block, list.list, layout, BUFFER_LOCK_EXCLUSIVE, &buffer))
        report_damage(list.index, block, "a page of another list points to it");
    const Buffer tail_buffer = is_tail ? buffer : read_tail(list, BUFFER_LOCK_EXCLUSIVE);

    uint16 dead_slots[max_page_entries];
    MovedRefinements moved;
    const uint32 dead =
        fillable(list, buffer, dead_slots,
                 find_dead(list.index, buffer, layout, *removal, dead_slots), &moved);
    uint8* room = static_cast<uint8*>(palloc(copied_bytes(layout)));
    GenericXLogState* state = GenericXLogStart(list.index);
    ++list.registered_place(state)->generation;
    Page page = GenericXLogRegisterBuffer(state, buffer, 0);
    Page tail_page = is_tail ? page : GenericXLogRegisterBuffer(state, tail_buffer, 0);
    if (BufferIsValid(moved.buffer)) moved.page = GenericXLogRegisterBuffer(state, moved.buffer, 0);
    uint32 filled = 0;
    // Dead entries at the end of the tail leave without being replaced.
    while (filled < dead && page_tail(tail_page)->count > (is_tail ? dead_slots[filled] : 0)) {
        const uint32 from = --page_tail(tail_page)->count;
        Entry last = entry_at(tail_page, layout, from, room);
        if (is_dead(list.index, tail_buffer, last.tid, *removal)) {
            ++removal->removed;
            continue;
        }
        if (moved.page) move_refinement(list, tail_buffer, from, dead_slots[filled], &last, moved);
        put_entry(page, layout, dead_slots[filled++], last);
    }
    const bool emptied = page_tail(tail_page)->count == 0;
    finish_change(state, list.index, list.list);
    if (BufferIsValid(moved.buffer)) UnlockReleaseBuffer(moved.buffer);
    if (!is_tail) UnlockReleaseBuffer(tail_buffer);
    UnlockReleaseBuffer(buffer);
    pfree(room);
    if (moved.room) pfree(moved.room);
    removal->removed += filled;
    return emptied;
}

}  // namespace

// A lock on a tuple, which no index has. One on a page would do, but PostgreSQL before 17 lets a
// process that holds such a lock take no other.
void lock_lists_of_inserts(Relation index, LOCKMODE mode) {
    ItemPointerData lock;
    ItemPointerSet(&lock, meta_block, FirstOffsetNumber);
    LockTuple(index, &lock, mode);
}

void unlock_lists_of_inserts(Relation index, LOCKMODE mode) {
    ItemPointerData lock;
    ItemPointerSet(&lock, meta_block, FirstOffsetNumber);
    UnlockTuple(index, &lock, mode);
}

void replace_lists(Relation index, const MetaPage& next, const uint64* tids, uint32 count) {
    const LockedList pending = lock_list(index, next, pending_list);
    const MetaPage before = *page_meta(BufferGetPage(pending.place_buffer));
    Buffer tail_buffer = InvalidBuffer;
    uint32 room = 0;
    if (BlockNumberIsValid(pending.place().tail)) {
        tail_buffer = read_tail(pending, BUFFER_LOCK_EXCLUSIVE);
        room = pending.layout.capacity - page_tail(BufferGetPage(tail_buffer))->count;
    }
    Buffer new_buffer = InvalidBuffer;
    Buffer free_list = InvalidBuffer;
    if (count > room) new_buffer = take_page(index, pending.place_buffer, &free_list);
    const BlockNumber next_free =
        BufferIsValid(free_list) ? page_tail(BufferGetPage(new_buffer))->next : InvalidBlockNumber;

    GenericXLogState* state = GenericXLogStart(index);
    MetaPage* meta = page_meta(GenericXLogRegisterBuffer(state, pending.place_buffer, 0));
    *meta = written_over(next, *meta);
    meta->other = {U64FromFullTransactionId(ReadNextFullTransactionId()), before.centroids,
                   before.directory, before.lists, before.m};
    const auto put = [&](Page page, uint32 entries) {
        for (; entries > 0; --entries, --count)
            put_last(page, pending.layout, {number_tid(*tids++), 0, nullptr, nullptr});
    };
    const BlockNumber tail_block = meta->pending.tail;
    if (BufferIsValid(tail_buffer)) {
        Page tail = GenericXLogRegisterBuffer(state, tail_buffer, 0);
        if (BufferIsValid(new_buffer)) page_tail(tail)->next = BufferGetBlockNumber(new_buffer);
        put(tail, Min(room, count));
    }
    if (BufferIsValid(new_buffer)) {
        Page page = GenericXLogRegisterBuffer(state, new_buffer, GENERIC_XLOG_FULL_IMAGE);
        page_init(page, PageKind::list, pending_list);
        page_tail(page)->prev = tail_block;
        put(page, count);
        if (!BlockNumberIsValid(tail_block)) meta->pending.head = BufferGetBlockNumber(new_buffer);
        meta->pending.tail = BufferGetBlockNumber(new_buffer);
        ++meta->pending.pages;
        if (BufferIsValid(free_list)) {
            meta->free_head = next_free;
            --meta->free_pages;
        }
    }
    finish_change(state, index, pending_list);
    if (BufferIsValid(new_buffer)) UnlockReleaseBuffer(new_buffer);
    if (BufferIsValid(tail_buffer)) UnlockReleaseBuffer(tail_buffer);
    unlock_list(pending);
}

void append_entry(Relation index, const MetaPage& meta, uint32 list, const Entry& entry) {
    const EntryLayout layout = layout_of(meta, list);
    const Buffer buffer = tail_with_room(index, meta, list, layout);
    const Buffer refinement_buffer = next_refinement_page(index, buffer, layout);
    const uint32 slot = page_tail(BufferGetPage(buffer))->count;
    GenericXLogState* state = GenericXLogStart(index);
    put_last(GenericXLogRegisterBuffer(state, buffer, 0), layout, entry);
    if (BufferIsValid(refinement_buffer))
        put_refinement(GenericXLogRegisterBuffer(state, refinement_buffer, 0), layout, slot, entry);
    finish_change(state, index, list);
    if (BufferIsValid(refinement_buffer)) UnlockReleaseBuffer(refinement_buffer);
    UnlockReleaseBuffer(buffer);
}

BlockNumber remove_dead(Relation index, const MetaPage& meta, uint32 list, BlockNumber block,
                        Removal* removal) {
    const EntryLayout layout = layout_of(meta, list);
    while (true) {
        uint16 dead_slots[max_page_entries];
        Buffer buffer;
        if (!read_list_page(index, block, list, layout, BUFFER_LOCK_SHARE, &buffer))
            report_damage(index, block, "a page of another list points to it");
        const uint32 count = page_tail(BufferGetPage(buffer))->count;
        const uint32 dead = find_dead(index, buffer, layout, *removal, dead_slots);
        const BlockNumber next = page_tail(BufferGetPage(buffer))->next;
        UnlockReleaseBuffer(buffer);
        if (dead == 0) {
            removal->kept += count;
            return next;
        }

        pause_at("remove");
        const LockedList locked = lock_list(index, meta, list);
        const bool is_tail = block == locked.place().tail;
        const bool emptied = fill_from_tail(locked, block, removal);
        const bool freed = emptied && free_empty_tail(locked);
        unlock_list(locked);
        if (freed && is_tail) return InvalidBlockNumber;
    }
}

void vacuum_list(Relation index, const MetaPage& meta, uint32 list, Removal* removal) {
    const ListPlace place = read_place(index, meta, list);
    BlockNumber block = place.head;
    BlockNumber steps = 0;
    while (BlockNumberIsValid(block)) {
        compat_vacuum_delay();
        count_step(index, block, place, &steps);
        block = remove_dead(index, meta, list, block, removal);
        pause_at("vacuum");
    }
}

void drop_empty_tail(Relation index, const MetaPage& meta, uint32 list) {
    const LockedList locked = lock_list(index, meta, list);
    free_empty_tail(locked);
    unlock_list(locked);
}

bool move_pending_entry(Relation index, const MetaPage& meta, BlockNumber block, uint32 list,
                        const Entry& entry) {
    const EntryLayout layout = layout_of(meta, list);
    const Buffer to_buffer = tail_with_room(index, meta, list, layout);
    const Buffer refinement_buffer = next_refinement_page(index, to_buffer, layout);
    if (BufferIsValid(refinement_buffer)) {
        // A record of its own: the one below has four pages. The slot has no entry yet.
        GenericXLogState* state = GenericXLogStart(index);
        put_refinement(GenericXLogRegisterBuffer(state, refinement_buffer, 0), layout,
                       page_tail(BufferGetPage(to_buffer))->count, entry);
        GenericXLogFinish(state);
        UnlockReleaseBuffer(refinement_buffer);
    }
    // Its place is the metapage.
    const LockedList pending = lock_list(index, meta, pending_list);
    const EntryLayout& pending_layout = pending.layout;
    Buffer buffer;
    if (!read_list_page(index, block, pending_list, pending_layout, BUFFER_LOCK_EXCLUSIVE, &buffer))
        report_damage(index, block, "it should be a page of the pending list");
    const ItemPointerData* tids = page_tids(BufferGetPage(buffer), pending_layout);
    const uint32 count = page_tail(BufferGetPage(buffer))->count;
    uint32 slot = 0;
    while (slot < count && tid_number(tids[slot]) != tid_number(entry.tid)) ++slot;

    bool emptied = false;
    if (slot < count) {
        Buffer tail_buffer = buffer;
        if (pending.place().tail != block) tail_buffer = read_tail(pending, BUFFER_LOCK_EXCLUSIVE);
        GenericXLogState* state = GenericXLogStart(index);
        put_last(GenericXLogRegisterBuffer(state, to_buffer, 0), layout, entry);
        ++pending.registered_place(state)->generation;
        Page page = GenericXLogRegisterBuffer(state, buffer, 0);
        Page tail_page = GenericXLogRegisterBuffer(state, tail_buffer, 0);
        // The last entry of the list takes the slot. An empty tail, left by a crash, has no entry:
        // the move is aborted, and the tail is freed below.
        if (page_tail(tail_page)->count > 0) {
            const uint32 last = --page_tail(tail_page)->count;
            page_tids(page, pending_layout)[slot] = page_tids(tail_page, pending_layout)[last];
            finish_change(state, index, list);
        } else {
            GenericXLogAbort(state);
            slot = count;
        }
        emptied = page_tail(BufferGetPage(tail_buffer))->count == 0;
        if (tail_buffer != buffer) UnlockReleaseBuffer(tail_buffer);
    }
    UnlockReleaseBuffer(buffer);
    UnlockReleaseBuffer(to_buffer);
    if (emptied) free_empty_tail(pending);
    unlock_list(pending);
    return slot < count;
}

}  // namespace pgwarp
