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
#include "extension/service/own_slots.h"
#include "extension/service/shards.h"
#include "extension/settings.h"
#include "extension/util/stopwatch.h"

extern "C" {
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/s_lock.h"
#include "utils/timestamp.h"
}

namespace pgwarp {

// The worker owns the slot of a running search until the search has finished.
void abandon(SearchSlot* slot) {
    if (change_state(slot, SlotState::submitted, SlotState::free)) {
        give_block_back(slot);
        // Perhaps the worker has not seen it: `queued` may be left over, with no number in the
        // ring.
        search_ring(device_of(slot)).shared->lost = 1;
    } else if (!change_state(slot, SlotState::running, SlotState::abandoned))
        release_slot(slot);
}

namespace {

SearchSlot* my_slot(const ServiceDevice* device) {
    return service_slot(device, compat_my_proc_number());
}

// Pops a free block. False: none came free in about the time that searching the pages takes.
bool take_block(Patience* patience, uint32* block) {
    constexpr int max_wait_ms = 20;
    ServiceDevice* device = patience->device;
    const int mine = compat_my_proc_number();
    if (take_free_block(device, mine, block)) return true;
    reclaim_blocks(device, mine);
    const TimestampTz began = GetCurrentTimestamp();
    bool taken = false;
    while (!taken && !patience_ends(patience) &&
           (patience->while_alive ||
            !TimestampDifferenceExceeds(began, GetCurrentTimestamp(), max_wait_ms))) {
        ConditionVariableTimedSleep(&device->block_freed,
                                    std::min(wait_milliseconds(*patience), long{max_wait_ms}),
                                    compat_wait_event("PgwarpServiceBlock"));
        taken = take_free_block(device, mine, block);
    }
    ConditionVariableCancelSleep();
    return taken;
}

void drop_filling();

void abandon_at_exit(int, Datum) {
    for (int i = 0; i < service->devices; ++i) {
        ServiceDevice* device = service_device(i);
        SearchSlot* slot = my_slot(device);
        abandon(slot);
        if (pg_atomic_read_u32(&slot->state) == static_cast<uint32>(SlotState::free))
            reclaim_blocks(device, compat_my_proc_number());
        for_own_block_slots(device, abandon);
    }
    drop_filling();
}

}  // namespace

void prepare_exit() {
    static bool prepared = false;
    if (prepared) return;
    prepared = true;
    before_shmem_exit(abandon_at_exit, Datum{0});
}

namespace {

bool is_answered(SearchSlot* slot) {
    return pg_atomic_read_u32(&slot->state) == static_cast<uint32>(SlotState::done);
}

// Nothing here may raise an error: the count must be taken back.
void wait_awake(ServiceDevice* device, SearchSlot* slot) {
    const int microseconds = service->awake_us;
    if (microseconds <= 0 || pg_atomic_read_u32(&device->in_flight) >= service->most_awake) return;
    if (pg_atomic_fetch_add_u32(&device->awake, 1) < service->most_awake) {
        const double end = seconds_now() + microseconds * 1e-6;
        do
            for (int i = 0; i < 32 && !is_answered(slot); ++i) SPIN_DELAY();
        while (!is_answered(slot) && seconds_now() < end);
    }
    pg_atomic_fetch_sub_u32(&device->awake, 1);
}

}  // namespace

bool wait_for_answer(SearchSlot* slot, Patience* patience) {
    if (pg_atomic_read_u32(&slot->silent) != 0) {
        // The worker looks at it after it has changed the state.
        pg_atomic_write_u32(&slot->silent, 0);
        pg_memory_barrier();
    }
    wait_awake(patience->device, slot);
    while (!is_answered(slot)) {
        if (patience_ends(patience)) {
            // The answer may have arrived since the loop condition was checked.
            if (is_answered(slot)) break;
            return false;
        }
        WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
                  wait_milliseconds(*patience), compat_wait_event("PgwarpServiceAnswer"));
        ResetLatch(MyLatch);
        CHECK_FOR_INTERRUPTS();
    }
    pg_read_barrier();
    pg_atomic_write_u32(&slot->seen, 1);
    for (const int backend : slot->to_wake) wake_backend(backend);
    return true;
}

namespace {

// --- load buffers

// The buffer that this backend is filling, and its device; drop_filling() frees it after an error.
// -1: none.
int filling = -1;
ServiceDevice* filling_of = nullptr;
// Bitmap of the buffers that this backend has submitted and not seen free since, by device.
uint64 posted[most_devices] = {};

uint64& posted_to(const ServiceDevice* device) {
    return posted[device_number(device)];
}

void drop_filling() {
    if (filling < 0) return;
    pg_memory_barrier();
    pg_atomic_write_u32(&service_load_buffer(filling_of, filling)->state,
                        static_cast<uint32>(LoadState::free));
    ConditionVariableBroadcast(&filling_of->load_freed);
    filling = -1;
}

bool try_take_buffer(ServiceDevice* device, LoadKind kind, const MirrorKey& key) {
    for (int i = 0; i < service->load_buffers; ++i) {
        LoadBuffer* buffer = service_load_buffer(device, i);
        uint32 expected = pg_atomic_read_u32(&buffer->state);
        // No state at all is as good as free.
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

// The buffer to fill next. Null: none is free, and patience is null or has ended.
LoadBuffer* take_buffer(ServiceDevice* device, LoadKind kind, const MirrorKey& key,
                        Patience* patience) {
    prepare_exit();
    while (!try_take_buffer(device, kind, key)) {
        if (!patience || patience_ends(patience)) {
            ConditionVariableCancelSleep();
            return nullptr;
        }
        ConditionVariableTimedSleep(&device->load_freed, wait_milliseconds(*patience),
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
    Patience* patience;  // null: do not wait for a free buffer
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
    sender->buffer = take_buffer(sender->device, sender->kind, sender->key, sender->patience);
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

}  // namespace

MirrorKey mirror_key(Relation index, const MetaPage& meta) {
    return {MyDatabaseId, RelationGetRelid(index), compat_tablespace(index),
            compat_file_number(index), meta.build_id};
}

const char* why_not_served(const ServiceDevice* device) {
    return device->why[0] ? device->why : "its worker is not running";
}

bool insists_on_service() {
    return settings.executor == static_cast<int>(ExecutorChoice::service);
}

bool service_serves(const char** reason) {
    if (any_worker_serves()) return true;
    *reason = service ? why_not_served(service_device(0))
                      : "the library was not preloaded, or pgwarp.devices is 'none'";
    return false;
}

bool service_is_silent() {
    for (int i = 0; i < service->devices; ++i)
        if (worker_serves(service_device(i)) && !is_suspect(service_device(i))) return false;
    // An idle worker that a session suspects by mistake has nothing else to wake it.
    for (int i = 0; i < service->devices; ++i) wake_worker(service_device(i));
    return true;
}

bool service_usable(Relation index, const char** reason) {
    const auto executor = static_cast<ExecutorChoice>(settings.executor);
    if (executor == ExecutorChoice::cpu) return false;
    if (service_serves(reason)) {
        if (RelationUsesLocalBuffers(index))
            *reason = "temporary tables are in the memory of their session";
        else if (executor == ExecutorChoice::automatic && service_is_silent())
            *reason = silent_reason;
        else if (executor == ExecutorChoice::automatic && statement_waited_in_vain())
            *reason = "the service did not answer this statement in time";
        else
            return true;
    } else if (executor == ExecutorChoice::service) {
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("the pgwarp service is not available: %s", *reason),
                        errhint("Set ivfpq.executor to 'auto', or see shared_preload_libraries and "
                                "pgwarp.devices.")));
    }
    return false;
}

ScanCosts service_costs(bool refines) {
    // For each list, a backend compares the version with that on the pages, or with the one that it
    // has seen there.
    constexpr double probe = 1750;
    // A device's selection of 1,000 has this many times the time of one of 100 (bench/notes).
    constexpr double slower_selection = 1.7;
    ScanCosts costs{probe, service->look_up_cost};
    costs.refines = refines;
    costs.refinement = service->look_up_cost;
    costs.many_candidates = refines && service->look_up_cost < 1 ? slower_selection : 1;
    return costs;
}

// Makes the worker look at a slot.
static void ask_worker(ServiceDevice* device, SearchSlot* slot) {
    if (pg_atomic_exchange_u32(&slot->queued, 1) == 0)
        ring_push(search_ring(device), static_cast<uint32>(slot_number(device, slot)));
    wake_worker(device);
}

SearchSlot* prepare_slot(const WantedSearch& wanted, Patience* patience) {
    ServiceDevice* device = patience->device;
    SearchSlot* slot = my_slot(device);
    // After an error, the slot may still hold an earlier answer.
    release_slot(slot);
    // Not free: the worker still runs a search that this backend has abandoned; or the backend that
    // had the slot before has left it so, and the worker frees it.
    if (pg_atomic_read_u32(&slot->state) != static_cast<uint32>(SlotState::free)) {
        search_ring(device).shared->lost = 1;
        wake_worker(device);
        return nullptr;
    }
    if (pg_atomic_read_u32(in_hand(device, compat_my_proc_number())) != 0) return nullptr;
    uint32 block = 0;
    if (wanted.k > 0 && !take_block(patience, &block)) return nullptr;
    slot->block = wanted.k > 0 ? static_cast<int>(block) : -1;
    return slot;
}

SearchSlot* submit_search(const MirrorKey& key, const WantedSearch& wanted, ServiceDevice* device,
                          SearchSlot* slot, bool silent) {
    if (!slot) return nullptr;
    pg_atomic_write_u32(&slot->silent, silent);
    slot->key = key;
    slot->dims = wanted.dims;
    slot->k = wanted.k;
    slot->probes = wanted.probes;
    slot->threshold = wanted.threshold;
    slot->radius_k = wanted.radius_k;
    slot->first_entries = wanted.first_entries;
    slot->first_lists = wanted.first_lists;
    slot->wider_k = wanted.wider_k;
    slot->refined_k = wanted.refined_k;
    slot->narrowed = wanted.narrowed;
    slot->wants_versions = wanted.wants_versions;
    slot->fills = wanted.fills;
    slot->first_probe = wanted.first_probe;
    slot->near_k = wanted.near_k;
    slot->floor = wanted.floor;
    slot->conditions = static_cast<uint32>(wanted.conditions.size());
    slot->values = count_values(wanted.conditions);
    if (wanted.k > 0) {
        SearchBlock* to = service_block(device, slot->block);
        memcpy(to->query, wanted.query, wanted.dims * sizeof(float));
        pack_conditions(wanted.conditions, to->conditions, to->values);
    }
    pg_write_barrier();
    pg_atomic_write_u32(&slot->state, static_cast<uint32>(SlotState::submitted));
    ask_worker(device, slot);
    return slot;
}

void ask_together(const MirrorKey& key, const WantedSearch& wanted, Patience* patiences, int count,
                  SearchSlot** slots) {
    prepare_exit();
    for (int i = 0; i < count; ++i) slots[i] = nullptr;
    PG_TRY();
    {
        for (int i = 0; i < count; ++i)
            slots[i] = submit_search(key, wanted, patiences[i].device,
                                     prepare_slot(wanted, &patiences[i]), false);
        for (int i = 0; i < count; ++i) {
            if (!slots[i] || wait_for_answer(slots[i], &patiences[i])) continue;
            abandon(slots[i]);
            slots[i] = nullptr;
        }
    }
    PG_CATCH();
    {
        for (int i = 0; i < count; ++i)
            if (slots[i]) abandon(slots[i]);
        PG_RE_THROW();
    }
    PG_END_TRY();
}

SearchSlot* ask_service(const MirrorKey& key, const WantedSearch& wanted, Patience* patience) {
    SearchSlot* slot;
    ask_together(key, wanted, patience, 1, &slot);
    return slot;
}

void release_slot(SearchSlot* slot) {
    if (pg_atomic_read_u32(&slot->state) != static_cast<uint32>(SlotState::done)) return;
    free_slot(slot);
}

bool send_model(ServiceDevice* device, Relation index, const MetaPage& meta, Patience* patience) {
    const MirrorKey key = mirror_key(index, meta);
    forget_at_abort(index);
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "pgwarp model to send", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);
    const Quantizer model = read_model(index, meta);
    MemoryContextSwitchTo(before);
    const QuantizerShape shape = shape_of(meta);
    const Size centroid_floats = Size{shape.lists} * shape.dims;
    const Size all = centroid_floats + Size{shape.codebook_rows()} * codewords;
    constexpr Size floats_a_part = (LoadBuffer::room - sizeof(ModelPart)) / sizeof(float);
    bool taken = true;
    for (Size first = 0; taken && first < all; first += floats_a_part) {
        CHECK_FOR_INTERRUPTS();
        LoadBuffer* buffer = take_buffer(device, LoadKind::model, key, patience);
        taken = buffer != nullptr;
        if (!taken) break;
        const Size floats = Min(floats_a_part, all - first);
        const ModelPart part{shape, meta.attributes, first, floats};
        memcpy(buffer->data, &part, sizeof(part));
        float* to = reinterpret_cast<float*>(buffer->data + sizeof(part));
        for (Size i = 0; i < floats; ++i) {
            const Size at = first + i;
            to[i] =
                at < centroid_floats ? model.centroids[at] : model.codebook[at - centroid_floats];
        }
        buffer->bytes = static_cast<uint32>(sizeof(part) + floats * sizeof(float));
        post_buffer();
    }
    MemoryContextDelete(context);
    return taken;
}

uint32 send_lists(ServiceDevice* device, Relation index, const MetaPage& meta,
                  const ListToSend* lists, uint32 count, Patience* patience, LoadKind kind) {
    ListSender sender{
        device, mirror_key(index, meta), layout_of(meta, 0), kind, patience, nullptr, nullptr, 0};
    if (keeps_refinements(index, meta)) sender.refinement = refinement_stride(meta.code_dims);
    volatile uint32 sent = 0;
    PG_TRY();
    {
        for (uint32 i = 0; i < count; ++i) {
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

bool wait_for_loads(Patience* patience) {
    ServiceDevice* device = patience->device;
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
        if (mine == 0 || patience_ends(patience)) break;
        ConditionVariableTimedSleep(&device->load_freed, wait_milliseconds(*patience),
                                    compat_wait_event("PgwarpServiceLoad"));
    }
    ConditionVariableCancelSleep();
    return mine == 0 && worker_serves(device);
}

bool count_resident(const MirrorKey& key, Patience* patience, uint32* lists) {
    SearchSlot* slot = ask_service(key, {}, patience);
    if (!slot) return false;
    const bool answered = slot->outcome == MirrorSearch::Outcome::found;
    *lists = slot->found_count;
    release_slot(slot);
    return answered;
}

}  // namespace pgwarp
