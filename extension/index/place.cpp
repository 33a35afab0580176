#include <algorithm>

#include "extension/index/page.h"
#include "extension/index/place.h"

extern "C" {
#include "miscadmin.h"
}

namespace pgwarp {

PlaceAddress place_address(const MetaPage& meta, uint32 list) {
    if (list == pending_list) return {meta_block, PageKind::meta, 0};
    Assert(list < directory_lists(meta));
    return {meta.directory + list / places_per_page, PageKind::directory, list % places_per_page};
}

ListPlace* place_on(Page page, const PlaceAddress& address) {
    return address.kind == PageKind::meta ? &page_meta(page)->pending
                                          : page_places(page) + address.slot;
}

ListPlace read_place(Relation index, const MetaPage& meta, uint32 list) {
    const PlaceAddress address = place_address(meta, list);
    const Buffer buffer = read_page(index, address.block, address.kind, BUFFER_LOCK_SHARE);
    const ListPlace place = *place_on(BufferGetPage(buffer), address);
    UnlockReleaseBuffer(buffer);
    return place;
}

void read_places(Relation index, const MetaPage& meta, const uint32* lists, uint32 count,
                 ListPlace* places) {
    if (count > 0 && lists[0] == pending_list) {
        Assert(count == 1);
        places[0] = read_place(index, meta, pending_list);
        return;
    }
    // A large directory: its pages that have some of the lists, one after the other.
    constexpr uint32 few = 4;
    if (directory_pages(meta) > few) {
        auto* order = static_cast<uint32*>(palloc(Max(count, 1u) * sizeof(uint32)));
        for (uint32 i = 0; i < count; ++i) order[i] = i;
        std::sort(order, order + count,
                  [lists](uint32 a, uint32 b) { return lists[a] < lists[b]; });
        Buffer buffer = InvalidBuffer;
        BlockNumber held = InvalidBlockNumber;
        for (uint32 i = 0; i < count; ++i) {
            const PlaceAddress address = place_address(meta, lists[order[i]]);
            if (address.block != held) {
                if (BufferIsValid(buffer)) UnlockReleaseBuffer(buffer);
                buffer = read_page(index, address.block, address.kind, BUFFER_LOCK_SHARE);
                held = address.block;
            }
            places[order[i]] = *place_on(BufferGetPage(buffer), address);
        }
        if (BufferIsValid(buffer)) UnlockReleaseBuffer(buffer);
        pfree(order);
        return;
    }
    for (BlockNumber block = meta.directory; block < training_end(meta); ++block) {
        Buffer buffer = InvalidBuffer;
        for (uint32 i = 0; i < count; ++i) {
            const PlaceAddress address = place_address(meta, lists[i]);
            if (address.block != block) continue;
            if (!BufferIsValid(buffer))
                buffer = read_page(index, block, PageKind::directory, BUFFER_LOCK_SHARE);
            places[i] = *place_on(BufferGetPage(buffer), address);
        }
        if (BufferIsValid(buffer)) UnlockReleaseBuffer(buffer);
    }
}

int64 count_entries(Relation index, const MetaPage& meta, uint32 list) {
    const EntryLayout layout = layout_of(meta, list);
    while (true) {
        const ListPlace place = read_place(index, meta, list);
        if (place.pages == 0) return 0;
        Buffer buffer;
        if (!read_list_page(index, place.tail, list, layout, BUFFER_LOCK_SHARE, &buffer)) {
            // The tail was recycled since its place was read: read the place again.
            if (read_place(index, meta, list).generation != place.generation) continue;
            report_damage(index, place.tail, "it is not the tail of its list");
        }
        const int64 last = page_tail(BufferGetPage(buffer))->count;
        UnlockReleaseBuffer(buffer);
        return int64{place.pages - 1} * layout.capacity + last;
    }
}

uint64 count_entries(Relation index, const MetaPage& meta) {
    uint64 entries = 0;
    for (uint32 list = 0; list < directory_lists(meta); ++list) {
        CHECK_FOR_INTERRUPTS();
        entries += static_cast<uint64>(count_entries(index, meta, list));
    }
    return entries;
}

Buffer lock_place(Relation index, const MetaPage& meta, uint32 list) {
    const PlaceAddress address = place_address(meta, list);
    return read_page(index, address.block, address.kind, BUFFER_LOCK_SHARE);
}

ListPlace place_of(Buffer locked, const MetaPage& meta, uint32 list) {
    return *place_on(BufferGetPage(locked), place_address(meta, list));
}

}  // namespace pgwarp
