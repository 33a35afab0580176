// Models and lists that a backend sends to a device, in load buffers.

#include <algorithm>
#include <cstring>

#include "kernels/mirror.h"
#include "extension/index/change_counts.h"
#include "extension/index/lists.h"
#include "extension/index/model.h"
#include "extension/index/page.h"
#include "extension/index/place.h"
#include "extension/index/tid.h"
#include "extension/service/client.h"
#include "extension/service/placement.h"
#include "extension/service/shards.h"
#include "extension/util/stopwatch.h"

extern "C" {
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/proc.h"
}

namespace pgwarp {

namespace {

// The buffer that this backend is filling, and its device; drop_filling() frees it after an error.
// -1: none.
int filling = -1;
ServiceDevice* filling_of = nullptr;
// Bitmap of the buffers that this backend has submitted and not seen free since, by device.
uint64 posted[most_devices] = {};

uint64& posted_to(const ServiceDevice* device) {
    return posted[device_number(device)];
}

}  // namespace

void drop_filling() {
    if (filling < 0) return;
    pg_memory_barrier();
    pg_atomic_write_u32(&service_load_buffer(filling_of, filling)->state,
                        static_cast<uint32>(LoadState::free));
    ConditionVariableBroadcast(&filling_of->load_freed);
    filling = -1;
}

namespace {

bool try_take_buffer(ServiceDevice* device, LoadKind kind, const MirrorKey& key) {
    for (int i = 0; i < service->load_buffers; ++i) {
        LoadBuffer* buffer = service_load_buffer(device, i);
        uint32 expected = pg_atomic_read_u32(&buffer->state);
        // An invalid state counts as free.
        if (expected == static_cast<uint32>(LoadState::filling) ||
            expected == static_cast<uint32>(LoadState::ready) ||
            !pg_atomic_compare_exchange_u32(&buffer->state, &expected,
                                            static_cast<uint32>(LoadState::filling)))
            continue;
        buffer->kind = kind;
        buffer->owner = compat_my_proc_number();
        buffer->owner_pid = MyProcPid;
        buffer->key = key;
        buffer->bytes = 0;
        filling = i;
        filling_of = device;
        posted_to(device) &= ~(uint64{1} << i);
        return true;
    }
    return false;
}

// The buffer to fill next. Null: none is free, and the deadline is null or has passed.
LoadBuffer* take_buffer(ServiceDevice* device, LoadKind kind, const MirrorKey& key,
                        Deadline* deadline) {
    prepare_exit();
    while (!try_take_buffer(device, kind, key)) {
        if (!deadline || must_stop_waiting(deadline)) {
            ConditionVariableCancelSleep();
            return nullptr;
        }
        ConditionVariableTimedSleep(&device->load_freed, wait_milliseconds(*deadline),
                                    compat_wait_event("PgwarpServiceLoad"));
    }
    ConditionVariableCancelSleep();
    return service_load_buffer(device, filling);
}

void post_buffer() {
    pg_write_barrier();
    pg_atomic_write_u32(&service_load_buffer(filling_of, filling)->state,
                        static_cast<uint32>(LoadState::ready));
    posted_to(filling_of) |= uint64{1} << filling;
    ring_push(load_ring(filling_of), static_cast<uint32>(filling));
    filling = -1;
    wake_worker(filling_of);
}

// --- lists

// Fills load buffers with the pages of lists, as many as fit into each.
struct ListSender {
    ServiceDevice* device;
    MirrorKey key;
    EntryLayout layout;
    LoadKind kind;
    Deadline* deadline;  // null: do not wait for a free buffer
    LoadBuffer* buffer;  // being filled; null: none yet
    ListPart* part;      // the last part in the buffer
    uint32 refinement;   // bytes of each; 0: they are not sent

    // Of one LoadedPage. A page of entries with long refinements is sent as several.
    uint32 most_entries() const {
        constexpr Size most_bytes = LoadBuffer::room / 4;
        if (refinement == 0) return layout.capacity;
        return std::clamp<uint32>(static_cast<uint32>(most_bytes / refinement), 1, layout.capacity);
    }
    Size most_bytes() const {
        return loaded_page_bytes(EntryLayout::with(layout.m, layout.attributes, layout.capacity),
                                 most_entries(), refinement);
    }
};
static_assert(sizeof(ListPart) + sizeof(LoadedPage) + BLCKSZ + LoadBuffer::room / 4 +
                  refinement_stride(max_refined_dims) <
              LoadBuffer::room);

bool ensure_room(ListSender* sender, Size bytes) {
    if (sender->buffer && sender->buffer->bytes + bytes <= LoadBuffer::room) return true;
    if (sender->buffer) post_buffer();
    sender->buffer = take_buffer(sender->device, sender->kind, sender->key, sender->deadline);
    return sender->buffer != nullptr;
}

void begin_part(ListSender* sender, const ListToSend& what, uint32 first_page) {
    auto* part = reinterpret_cast<ListPart*>(sender->buffer->data + sender->buffer->bytes);
    *part = {};
    part->list = what.list;
    part->m = sender->layout.m;
    part->attributes = sender->layout.attributes;
    part->first_page = first_page;
    part->from = what.from;
    sender->buffer->bytes += sizeof(ListPart);
    sender->part = part;
}

// Copies the refinements of entries of a page, which the caller has share-locked: so they stay
// those of its entries. False: one of them is of another row, and the index is damaged; a scan
// visits the rows.
bool add_refinements(Relation index, const ListSender& sender, Buffer page_buffer, uint32 first,
                     uint32 count, char* to) {
    const EntryLayout& layout = sender.layout;
    const RefinementLayout& refinement = layout.refinement;
    const ItemPointerData* tids = page_tids(BufferGetPage(page_buffer), layout);
    const Size bytes = refinement.bytes();
    Buffer buffer = InvalidBuffer;
    bool sound = true;
    for (uint32 slot = first; slot < first + count && sound; ++slot) {
        if (slot == first || slot % refinement.per_page == 0) {
            if (BufferIsValid(buffer)) UnlockReleaseBuffer(buffer);
            buffer = read_refinement_page(index, page_buffer, layout, slot, BUFFER_LOCK_SHARE);
        }
        Page page = BufferGetPage(buffer);
        sound = tid_number(page_record(page, refinement, slot)->tid) == tid_number(tids[slot]);
        copy_refinement(page, layout, slot, reinterpret_cast<uint8*>(to));
        memset(to + bytes, 0, sender.refinement - bytes);
        to += sender.refinement;
    }
    if (BufferIsValid(buffer)) UnlockReleaseBuffer(buffer);
    return sound;
}

// Copies `count` entries of a page from `first` on. The caller holds a share lock on the page.
void add_entries(Relation index, ListSender* sender, Buffer page_buffer, uint32 first,
                 uint32 count) {
    Page page = BufferGetPage(page_buffer);
    const EntryLayout& layout = sender->layout;
    // A page that is more than half full is copied with one memcpy, padding included, but without
    // the numbers of its refinement pages.
    const bool whole = first == 0 && count == page_tail(page)->count && count > layout.capacity / 2;
    const EntryLayout to_layout =
        EntryLayout::with(layout.m, layout.attributes, whole ? layout.capacity : count);
    auto* to = reinterpret_cast<LoadedPage*>(sender->buffer->data + sender->buffer->bytes);
    to->count = count;
    to->capacity = to_layout.capacity;
    to->unused = 0;
    to->refined = sender->refinement > 0 &&
                  add_refinements(index, *sender, page_buffer, first, count,
                                  reinterpret_cast<char*>(to) + loaded_columns_bytes(to_layout));
    char* columns = reinterpret_cast<char*>(to + 1);
    const char* from = page_data(page);
    const Size bytes = loaded_page_bytes(to_layout, count, to->refined ? sender->refinement : 0);
    if (whole) {
        memcpy(columns, from, to_layout.end());
    } else {
        for (uint32 j = 0; j < layout.m; ++j)
            memcpy(columns + Size{j} * count, from + Size{j} * layout.capacity + first, count);
        Size before = 0;
        for_each_attribute(layout.attributes, [&](uint32 width) {
            memcpy(columns + to_layout.attributes_at + before * count,
                   from + layout.attributes_at + before * layout.capacity + Size{first} * width,
                   Size{count} * width);
            before += width;
        });
        memcpy(columns + to_layout.offsets_at, from + layout.offsets_at + first * sizeof(float),
               count * sizeof(float));
        memcpy(columns + to_layout.tids_at, page_tids(page, layout) + first,
               count * sizeof(ItemPointerData));
    }
    sender->buffer->bytes += static_cast<uint32>(bytes);
    sender->part->bytes += static_cast<uint32>(bytes);
    ++sender->part->pages;
}

// The count to send with a list. Its pages must be read afterwards.
uint64 changes_before(Relation index, uint32 list) {
    // Replay counts nothing: what was read during recovery stays unknown after a promotion.
    if (!change_counts || RecoveryInProgress()) return unknown_changes;
    const uint64 changes = ListChanges(index).of(list);
    pg_read_barrier();
    return changes;
}

// Sends a list as it is now, or the entries appended to it. False: not sent whole. If the last part
// never comes, the worker drops the earlier parts when the next first part arrives. So a list that
// changes while it is sent can be started again, or left.
bool send_list(Relation index, const MetaPage& meta, const ListToSend& what, ListSender* sender) {
    const uint32 list = what.list;
    if (what.drop) {
        if (!ensure_room(sender, sizeof(ListPart))) return false;
        begin_part(sender, what, 0);
        sender->part->drop = 1;
        sender->part->last = 1;
        return true;
    }
    const Size page_bytes = sender->most_bytes();
    const uint32 most_entries = sender->most_entries();
    const uint64 changes = changes_before(index, list);
    const ListPlace before = read_place(index, meta, list);
    MirrorVersion version{before.generation, InvalidBlockNumber, 0, 1};
    if (what.from.resident) {
        if (before.generation != what.from.generation) return false;
        version = what.from;
    }
    // A list that was empty has no tail to continue from.
    uint32 first = version.items;
    BlockNumber block = BlockNumberIsValid(version.tail) ? version.tail : before.head;
    if (!ensure_room(sender, sizeof(ListPart) + page_bytes)) return false;
    begin_part(sender, what, 0);
    BlockNumber steps = 0;
    uint32 pages = 0;
    for (bool enters = true; BlockNumberIsValid(block);) {
        CHECK_FOR_INTERRUPTS();
        if (sender->buffer->bytes + page_bytes > LoadBuffer::room) {
            if (!ensure_room(sender, sizeof(ListPart) + page_bytes)) return false;
            begin_part(sender, what, pages);
        }
        if (enters) count_step(index, block, before, &steps);
        Buffer page_buffer;
        if (!read_list_page(index, block, list, sender->layout, BUFFER_LOCK_SHARE, &page_buffer))
            return false;
        const PageTail tail = *page_tail(BufferGetPage(page_buffer));
        const uint32 here =
            std::min(tail.count - std::min<uint32>(first, tail.count), most_entries);
        if (here > 0) {
            add_entries(index, sender, page_buffer, first, here);
            ++pages;
        }
        UnlockReleaseBuffer(page_buffer);
        if (tail.count < first) return false;
        version.tail = block;
        version.items = first + here;
        // The rest of the page comes next: it may have changed by then, as any other page may.
        enters = version.items == tail.count;
        first = enters ? 0 : version.items;
        if (enters) block = tail.next;
    }
    if (read_place(index, meta, list).generation != before.generation) return false;
    if (version == what.from && !what.even_same) return false;
    sender->part->last = 1;
    sender->part->changes = changes;
    sender->part->version = version;
    return true;
}

// A list that could not be sent whole leaves a part that is not the last. The worker must not take
// it for the beginning of the next list.
void close_part(ListSender* sender) {
    if (sender->buffer && sender->part && !sender->part->last && sender->part->first_page == 0) {
        // No part of this list was submitted: remove it from the buffer.
        sender->buffer->bytes =
            static_cast<uint32>(reinterpret_cast<char*>(sender->part) - sender->buffer->data);
    }
    sender->part = nullptr;
}

// --- models

// Sends a part of a model's floats. False: no buffer came free in time.
bool send_floats(ServiceDevice* device, const MirrorKey& key, const ModelPart& part,
                 const float* floats, Deadline* deadline) {
    LoadBuffer* buffer = take_buffer(device, LoadKind::model, key, deadline);
    if (!buffer) return false;
    memcpy(buffer->data, &part, sizeof(part));
    memcpy(buffer->data + sizeof(part), floats, part.floats * sizeof(float));
    buffer->bytes = static_cast<uint32>(sizeof(part) + part.floats * sizeof(float));
    post_buffer();
    return true;
}

// False: the worker did not take all parts, or did not want the model.
bool send_model(ServiceDevice* device, Relation index, const MetaPage& meta, const MirrorKey& key,
                Deadline* deadline) {
    forget_at_abort(index);
    const QuantizerShape shape = shape_of(meta);
    const uint32 dims = shape.dims;
    constexpr Size most_floats = (LoadBuffer::room - sizeof(ModelPart)) / sizeof(float);
    const auto rows_a_part = static_cast<uint32>(most_floats / dims);
    const Size codebook_floats = Size{shape.codebook_rows()} * codewords;
    const Size room = Max(Min(Size{rows_a_part}, Size{shape.lists}) * dims, codebook_floats);
    auto* floats =
        static_cast<float*>(MemoryContextAllocHuge(CurrentMemoryContext, room * sizeof(float)));
    bool taken = true;
    // No more than a part of the centroids at a time: there may be a gigabyte of them.
    for (uint32 row = 0; taken && row < shape.lists; row += rows_a_part) {
        CHECK_FOR_INTERRUPTS();
        const uint32 end = Min(shape.lists, row + rows_a_part);
        read_centroids(index, meta, row, end, floats);
        const ModelPart part{shape, meta.attributes, Size{row} * dims, Size{end - row} * dims};
        taken = send_floats(device, key, part, floats, deadline) && !is_refused(device, key);
    }
    if (taken) read_codebook(index, meta, floats);
    for (Size first = 0; taken && first < codebook_floats; first += most_floats) {
        CHECK_FOR_INTERRUPTS();
        const ModelPart part{shape, meta.attributes, Size{shape.lists} * dims + first,
                             Min(most_floats, codebook_floats - first)};
        taken = send_floats(device, key, part, floats + first, deadline);
    }
    pfree(floats);
    return taken;
}

// Waits a little for parts that another backend sends. False: the deadline has passed.
bool wait_for_others(Deadline* deadline) {
    ServiceDevice* device = deadline->device;
    const bool ends = must_stop_waiting(deadline);
    constexpr long most_ms = 20;
    if (!ends)
        ConditionVariableTimedSleep(&device->load_freed, Min(wait_milliseconds(*deadline), most_ms),
                                    compat_wait_event("PgwarpServiceLoad"));
    ConditionVariableCancelSleep();
    return !ends;
}

}  // namespace

bool bring_model(ServiceDevice* device, Relation index, const MetaPage& meta, bool asked,
                 bool insists, Deadline* deadline) {
    const MirrorKey key = mirror_key(index, meta);
    if (!insists) {
        if (asked) send_model(device, index, meta, key, deadline);
        return false;
    }
    for (bool sent = false;;) {
        if (asked) {
            // Asked again after `sent`: the model was lost, or did not help.
            if (sent || !send_model(device, index, meta, key, deadline) ||
                !wait_for_loads(deadline))
                return false;
            sent = true;
        }
        SearchSlot* slot = ask_service(key, {}, deadline);
        if (!slot) return false;
        const MirrorSearch::Outcome outcome = slot->outcome;
        asked = slot->bring_model;
        release_slot(slot);
        if (outcome != MirrorSearch::Outcome::unknown)
            return outcome == MirrorSearch::Outcome::found;
        if (!asked && !wait_for_others(deadline)) return false;
    }
}

uint32 send_lists(ServiceDevice* device, Relation index, const MetaPage& meta,
                  const ListToSend* lists, uint32 count, Deadline* deadline, LoadKind kind) {
    ListSender sender{
        device, mirror_key(index, meta), layout_of(meta, 0), kind, deadline, nullptr, nullptr, 0};
    if (keeps_refinements(index, meta)) sender.refinement = refinement_stride(meta.code_dims);
    const double end = kind == LoadKind::to_fill ? seconds_now() + fill_seconds : 0;
    volatile uint32 sent = 0;
    PG_TRY();
    {
        for (uint32 i = 0; i < count && (end == 0 || seconds_now() < end); ++i) {
            const bool whole = send_list(index, meta, lists[i], &sender);
            close_part(&sender);
            if (whole) sent = sent + 1;
            if (!whole && !sender.buffer) break;
        }
        if (sender.buffer) post_buffer();
    }
    PG_CATCH();
    {
        drop_filling();
        PG_RE_THROW();
    }
    PG_END_TRY();
    return sent;
}

bool wait_for_loads(Deadline* deadline) {
    ServiceDevice* device = deadline->device;
    uint64& mine = posted_to(device);
    while (true) {
        for (int i = 0; i < service->load_buffers; ++i) {
            // A buffer that is not ours any more is free, or owned by another backend.
            const LoadBuffer* buffer = service_load_buffer(device, i);
            const bool ours = pg_atomic_read_u32(const_cast<pg_atomic_uint32*>(&buffer->state)) ==
                                  static_cast<uint32>(LoadState::ready) &&
                              buffer->owner == compat_my_proc_number();
            if (!ours) mine &= ~(uint64{1} << i);
        }
        if (mine == 0 || must_stop_waiting(deadline)) break;
        ConditionVariableTimedSleep(&device->load_freed, wait_milliseconds(*deadline),
                                    compat_wait_event("PgwarpServiceLoad"));
    }
    ConditionVariableCancelSleep();
    return mine == 0 && worker_serves(device);
}

}  // namespace pgwarp
