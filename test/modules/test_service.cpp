// Leaves in the shared memory of the service what a backend that has gone wrong might (service.h
// says what the worker does not trust):
//
//   service_damage(index, other, seed, first, count, what, size)
//       damage number `first`, `first` + 1 and so on, of a seed. `what`: slots, loads, rings or
//       forgets. Searches that are made up ask for either index. Loads are of `index` only: columns
//       of lists are trusted, so that nothing can be said of its answers afterwards.
//
// Slots are those of backends that are gone, as they may have left them, and this backend's own.
#include <cerrno>
#include <csignal>

#include "extension/service/layout.h"

extern "C" {
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/builtins.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(service_damage);
}

using namespace pgwarp;

namespace {

// As in test_fuzz.c: each damage has its own sequence.
uint64 state;

uint64 next_random() {
    uint64 z = (state += UINT64CONST(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64CONST(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64CONST(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint32 below(uint32 end) {
    return static_cast<uint32>(next_random() % end);
}

uint32 odd_number(uint32 was) {
    switch (below(7)) {
        case 0:
            return 0;
        case 1:
            return PG_UINT32_MAX;
        case 2:
            return below(4096);
        case 3:
            return was + 1 + below(3);
        case 4:
            return was - 1 - below(3);
        case 5:
            return 1U << below(32);
        default:
            return static_cast<uint32>(next_random());
    }
}

void mutate(void* bytes, Size length, uint32 most) {
    char* at = static_cast<char*>(bytes);
    for (uint32 i = 1 + below(most); i > 0; --i) {
        const Size where = next_random() % (length / 4) * 4;
        uint32 word;
        memcpy(&word, at + where, 4);
        word = odd_number(word);
        const uint32 width = below(3) == 0 ? 1 : 4;
        memcpy(at + where, &word, width);
    }
}

struct Area {
    char* begin;
    ServiceShared* shared;
    ServiceCounts counts;
    ServiceLayout layout;
    ServiceDevice* device;

    template <typename Part>
    Part* part(Size offset) const {
        return reinterpret_cast<Part*>(reinterpret_cast<char*>(device) + offset);
    }
    SearchSlot* slot(int i) const {
        return part<SearchSlot>(layout.slots + static_cast<Size>(i) * slot_bytes);
    }
    SearchBlock* block(int i) const {
        return part<SearchBlock>(layout.blocks + static_cast<Size>(i) * block_bytes);
    }
    LoadBuffer* buffer(int i) const {
        return part<LoadBuffer>(layout.load_buffers + static_cast<Size>(i) * load_buffer_bytes);
    }
    NumberRing* ring(uint32 which) const {
        const Size offsets[] = {layout.search_ring, layout.load_ring, layout.block_ring};
        return part<NumberRing>(offsets[which]);
    }
    uint32 size(uint32 which) const {
        const int sizes[] = {counts.slots, counts.load_buffers, counts.blocks};
        return static_cast<uint32>(sizes[which]);
    }
};

// `size` is what pg_shmem_allocations says.
Area find_area(Size size) {
    Area area;
    bool found = false;
    area.begin = static_cast<char*>(ShmemInitStruct("pgwarp", size, &found));
    if (!found) elog(ERROR, "pgwarp is not preloaded");
    area.shared = reinterpret_cast<ServiceShared*>(area.begin);
    area.counts = {area.shared->devices, area.shared->slots, area.shared->blocks,
                   area.shared->load_buffers};
    area.layout = service_layout(area.counts);
    if (area.layout.end != size) elog(ERROR, "the service's memory has another layout");
    area.device = reinterpret_cast<ServiceDevice*>(area.begin + area.layout.first_device);
    return area;
}

void wake(const Area& area) {
    Latch* latch = *static_cast<Latch* const volatile*>(&area.device->worker_latch);
    if (latch) SetLatch(latch);
}

void push(const Area& area, uint32 which, uint32 number) {
    NumberRing* ring = area.ring(which);
    const uint32 size = area.size(which);
    SpinLockAcquire(&ring->mutex);
    if (ring->head < size && ring->count < size)
        ring->numbers[(ring->head + ring->count++) % size] = number;
    SpinLockRelease(&ring->mutex);
}

// A search that looks like one of a session, in a slot that no session has: a backend's, or that of
// a block which is free.
void damage_slot(const Area& area, Oid index, Oid other) {
    int number = -1;
    for (int tries = 0; tries < 1000 && number < 0; ++tries) {
        const int i = static_cast<int>(below(static_cast<uint32>(area.shared->backends)));
        const int pid = ProcGlobal->allProcs[i].pid;
        if (i == compat_my_proc_number() || pid == 0 || (kill(pid, 0) != 0 && errno == ESRCH))
            number = i;
    }
    if (number < 0) return;
    uint32 block = static_cast<uint32>(area.counts.blocks);
    NumberRing* ring = area.ring(2);
    SpinLockAcquire(&ring->mutex);
    if (ring->count > 0 && ring->count <= area.size(2) && ring->head < area.size(2)) {
        block = ring->numbers[ring->head];
        ring->head = (ring->head + 1) % area.size(2);
        --ring->count;
    }
    SpinLockRelease(&ring->mutex);
    const bool of_block = block < area.size(2) && below(2);
    if (of_block) number = area.shared->backends + static_cast<int>(block);
    auto* owners = area.part<pg_atomic_uint64>(area.layout.block_owners);
    uint64 no_owner = 0;
    // Of a process that is gone: then the worker finds the block, and a session gets its slot.
    constexpr uint32 unused_pid = 0x7fffff00;
    const uint64 pid = of_block ? unused_pid : static_cast<uint32>(MyProcPid);
    const bool owns = block < area.size(2) &&
                      pg_atomic_compare_exchange_u64(&owners[block], &no_owner,
                                                     pid << 32 | (static_cast<uint32>(number) + 1));
    if (of_block && !owns) return;
    SearchSlot* slot = area.slot(number);
    // What another slot asked last, if that was of one of the indexes.
    for (int i = 0; i < area.counts.slots; ++i) {
        const SearchSlot* real = area.slot(static_cast<int>(below(area.size(0))));
        if (real->key.index != (below(2) ? index : other)) continue;
        const auto bytes = sizeof(SearchSlot) - offsetof(SearchSlot, key);
        memcpy(&slot->key, &real->key, bytes);
        break;
    }
    // A block of its own, where one is free.
    if (owns) {
        slot->block = static_cast<int>(block);
        SearchBlock* mine = area.block(slot->block);
        mutate(mine->conditions, sizeof(mine->conditions), 40);
        mutate(mine->values, sizeof(mine->values), 40);
        mutate(mine->query, 64 * sizeof(float), 4);
    }
    if (below(3) > 0)
        mutate(&slot->key, sizeof(SearchSlot) - offsetof(SearchSlot, key), 3);
    else
        mutate(&slot->dims, offsetof(SearchSlot, block) - offsetof(SearchSlot, dims), 2);
    const uint32 states = below(8);
    pg_write_barrier();
    pg_atomic_write_u32(&slot->state,
                        states < 6 ? static_cast<uint32>(SlotState::submitted) : odd_number(2));
    pg_atomic_write_u32(&slot->queued, below(2));
    push(area, 0, static_cast<uint32>(number));
    wake(area);
    // As a backend that exits: its block goes back, or is lost.
    if (!of_block && below(2)) {
        pg_usleep(2000);
        if (below(2)) mutate(slot, sizeof(SearchSlot), 2);
    }
}

void damage_load(const Area& area, Oid index) {
    static MirrorKey key = {};
    static LoadKind kind = LoadKind::lists;
    static char* copy = nullptr;  // of the last sound load of the index
    static uint32 bytes = 0;
    if (!copy) copy = static_cast<char*>(malloc(LoadBuffer::room));
    for (int tries = 0; tries < 64; ++tries) {
        LoadBuffer* buffer = area.buffer(static_cast<int>(below(area.size(1))));
        const auto number = static_cast<uint32>(
            (reinterpret_cast<char*>(buffer) - reinterpret_cast<char*>(area.buffer(0))) /
            static_cast<ptrdiff_t>(load_buffer_bytes));
        uint32 free = static_cast<uint32>(LoadState::free);
        if (!pg_atomic_compare_exchange_u32(&buffer->state, &free,
                                            static_cast<uint32>(LoadState::filling)))
            continue;
        if (buffer->key.index == index && buffer->bytes <= LoadBuffer::room &&
            buffer->owner != compat_my_proc_number()) {
            key = buffer->key;
            kind = buffer->kind;
            bytes = buffer->bytes;
            memcpy(copy, buffer->data, bytes);
        }
        buffer->kind = below(8) ? kind : static_cast<LoadKind>(odd_number(1));
        buffer->owner = compat_my_proc_number();
        buffer->owner_pid = below(4) ? MyProcPid : static_cast<pid_t>(odd_number(1));
        buffer->key = key;
        buffer->bytes = bytes;
        memcpy(buffer->data, copy, bytes);
        if (bytes > 64) {
            // The heads of the load, of its first part and its first page; or anywhere.
            const Size length = below(3) ? 160 : bytes;
            mutate(buffer->data, Min(length, bytes), 3);
        }
        if (below(4) == 0) buffer->bytes = odd_number(buffer->bytes);
        if (below(8) == 0) buffer->owner = static_cast<int>(odd_number(1));
        if (below(8) == 0) mutate(&buffer->key, sizeof(buffer->key), 1);
        pg_write_barrier();
        pg_atomic_write_u32(&buffer->state, static_cast<uint32>(LoadState::ready));
        push(area, 1, below(16) ? number : odd_number(number));
        wake(area);
        if (below(16) == 0) pg_atomic_write_u32(&buffer->state, odd_number(2) | 4);
        return;
    }
}

void damage_ring(const Area& area) {
    const uint32 which = below(3);
    NumberRing* ring = area.ring(which);
    SpinLockAcquire(&ring->mutex);
    switch (below(5)) {
        case 0:
            ring->head = odd_number(ring->head);
            break;
        case 1:
            ring->count = odd_number(ring->count);
            break;
        case 2:
            ring->pushed = next_random();
            break;
        case 3:
            ring->lost = odd_number(ring->lost);
            break;
        default:
            // Blocks twice, slots that were not submitted, numbers of nothing.
            ring->numbers[below(area.size(which))] =
                below(2) ? odd_number(1) : below(area.size(which));
    }
    SpinLockRelease(&ring->mutex);
    wake(area);
}

void damage_forgets(const Area& area) {
    ForgetQueue* queue = &area.device->forgets;
    SpinLockAcquire(&queue->mutex);
    switch (below(4)) {
        case 0:
            queue->head = odd_number(queue->head);
            break;
        case 1:
            queue->count = odd_number(queue->count);
            break;
        case 2:
            mutate(&queue->forgets[below(ForgetQueue::size)], sizeof(Forget), 3);
            break;
        default:
            if (queue->head < ForgetQueue::size)
                mutate(&queue->forgets[queue->head], sizeof(Forget), 2);
            queue->count = 1;
    }
    SpinLockRelease(&queue->mutex);
    if (below(4) == 0) {
        pg_atomic_write_u32(&area.device->suspect, odd_number(0));
        pg_atomic_write_u32(&area.device->awake, odd_number(0));
        pg_atomic_write_u32(&area.shared->sent_at[below(ServiceShared::send_times)], odd_number(0));
    }
    wake(area);
}

}  // namespace

extern "C" Datum service_damage(PG_FUNCTION_ARGS) {
    const Oid index = PG_GETARG_OID(0);
    const Oid other = PG_GETARG_OID(1);
    const int64 seed = PG_GETARG_INT64(2);
    const int first = PG_GETARG_INT32(3);
    const int count = PG_GETARG_INT32(4);
    const char* what = text_to_cstring(PG_GETARG_TEXT_PP(5));
    const Area area = find_area(static_cast<Size>(PG_GETARG_INT64(6)));
    for (int i = first; i < first + count; ++i) {
        CHECK_FOR_INTERRUPTS();
        state =
            static_cast<uint64>(seed) * UINT64CONST(0x9e3779b97f4a7c15) + static_cast<uint64>(i);
        if (strcmp(what, "slots") == 0)
            damage_slot(area, index, other);
        else if (strcmp(what, "loads") == 0)
            damage_load(area, index);
        else if (strcmp(what, "rings") == 0)
            damage_ring(area);
        else if (strcmp(what, "forgets") == 0)
            damage_forgets(area);
        else
            elog(ERROR, "nothing to damage is called \"%s\"", what);
        pg_usleep(200);
    }
    PG_RETURN_VOID();
}
