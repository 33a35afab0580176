#include <sys/statvfs.h>
#include <algorithm>

#include "extension/table/block_ring.h"

extern "C" {
#include "pgstat.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/dsm_impl.h"
#include "storage/spin.h"
}

namespace pgwarp {

// Followed in memory by the numbers of empty blocks, the numbers of full ones, the blocks' counts
// and positions, then their TIDs and rows. Both arrays of numbers are stacks: the order of blocks
// does not matter.
struct BlockRing {
    uint32 blocks;
    uint32 block_rows;
    uint32 dims;
    ConditionVariable emptied;
    ConditionVariable filled;  // a block was filled, or a worker left
    pg_atomic_uint32 full;     // written under `mutex`, read without it
    slock_t mutex;
    // Under `mutex`:
    uint32 empty;
    int left;
};

namespace {

uint32* empty_numbers(BlockRing* ring) {
    return reinterpret_cast<uint32*>(reinterpret_cast<char*>(ring) + MAXALIGN(sizeof(BlockRing)));
}

uint32* full_numbers(BlockRing* ring) {
    return empty_numbers(ring) + ring->blocks;
}

RowBlock block_of(BlockRing* ring, uint32 number) {
    uint32* counts = full_numbers(ring) + ring->blocks;
    char* positions = reinterpret_cast<char*>(empty_numbers(ring)) +
                      MAXALIGN(3 * Size{ring->blocks} * sizeof(uint32));
    char* tids = positions + Size{ring->blocks} * sizeof(uint64);
    const Size rows_before = Size{number} * ring->block_rows;
    char* rows = tids + Size{ring->blocks} * ring->block_rows * sizeof(uint64);
    return {number, counts + number, reinterpret_cast<uint64*>(positions) + number,
            reinterpret_cast<float*>(rows) + rows_before * ring->dims,
            reinterpret_cast<uint64*>(tids) + rows_before};
}

}  // namespace

Size block_ring_bytes(uint32 blocks, uint32 block_rows, uint32 dims) {
    return MAXALIGN(sizeof(BlockRing)) + MAXALIGN(3 * Size{blocks} * sizeof(uint32)) +
           Size{blocks} * sizeof(uint64) +
           Size{blocks} * block_rows * (sizeof(uint64) + dims * sizeof(float));
}

namespace {

// Bytes that one segment of dynamic shared memory may take. Containers usually have 64 MB in all,
// and allocating more than is free is an error.
Size shared_memory_room() {
    constexpr Size most = Size{64} << 20;
    struct statvfs room;
    if (dynamic_shared_memory_type != DSM_IMPL_POSIX) return most;
    if (statvfs("/dev/shm", &room) != 0) return most / 4;
    return Min(Size{room.f_bavail} * room.f_frsize / 4, most);
}

constexpr Size min_rows = 64;

}  // namespace

int workers_in_shared_memory(int workers, uint32 held, uint32 dims, Size memory) {
    // shared_memory_room() is a fraction of the free memory, so twice that is still no error.
    const Size room = 2 * shared_memory_room();
    while (workers > 0) {
        const RingShape shape = ring_shape(workers, held, dims, memory);
        if (block_ring_bytes(shape.blocks, shape.block_rows, dims) <= room) break;
        workers /= 2;
    }
    return workers;
}

RingShape ring_shape(int workers, uint32 held, uint32 dims, Size memory) {
    constexpr Size max_rows = 65536;
    const uint32 blocks = 2 * static_cast<uint32>(workers) + 2 + held;
    const Size bytes = Min(memory, shared_memory_room());
    const Size rows = bytes / blocks / (dims * sizeof(float) + sizeof(uint64));
    return {blocks, static_cast<uint32>(Max(Min(rows, max_rows), min_rows))};
}

BlockRing* init_block_ring(void* memory, uint32 blocks, uint32 block_rows, uint32 dims) {
    BlockRing* ring = static_cast<BlockRing*>(memory);
    ring->blocks = blocks;
    ring->block_rows = block_rows;
    ring->dims = dims;
    ConditionVariableInit(&ring->emptied);
    ConditionVariableInit(&ring->filled);
    pg_atomic_init_u32(&ring->full, 0);
    SpinLockInit(&ring->mutex);
    ring->empty = blocks;
    ring->left = 0;
    for (uint32 i = 0; i < blocks; ++i) empty_numbers(ring)[i] = i;
    return ring;
}

uint32 block_rows_of(const BlockRing* ring) {
    return ring->block_rows;
}

RowBlock take_empty_block(BlockRing* ring) {
    while (true) {
        SpinLockAcquire(&ring->mutex);
        const bool there = ring->empty > 0;
        const uint32 number = there ? empty_numbers(ring)[--ring->empty] : 0;
        SpinLockRelease(&ring->mutex);
        if (there) {
            ConditionVariableCancelSleep();
            const RowBlock block = block_of(ring, number);
            *block.count = 0;
            return block;
        }
        ConditionVariableSleep(&ring->emptied, PG_WAIT_EXTENSION);
    }
}

void hand_over(BlockRing* ring, const RowBlock& block) {
    SpinLockAcquire(&ring->mutex);
    const uint32 full = pg_atomic_read_u32(&ring->full);
    full_numbers(ring)[full] = block.number;
    pg_atomic_write_u32(&ring->full, full + 1);
    SpinLockRelease(&ring->mutex);
    ConditionVariableSignal(&ring->filled);
}

void leave_block_ring(BlockRing* ring) {
    SpinLockAcquire(&ring->mutex);
    ++ring->left;
    SpinLockRelease(&ring->mutex);
    ConditionVariableSignal(&ring->filled);
}

bool has_full_block(const BlockRing* ring) {
    return pg_atomic_read_u32(const_cast<pg_atomic_uint32*>(&ring->full)) > 0;
}

bool take_full_block(BlockRing* ring, RowBlock* block) {
    SpinLockAcquire(&ring->mutex);
    const uint32 full = pg_atomic_read_u32(&ring->full);
    const uint32 number = full > 0 ? full_numbers(ring)[full - 1] : 0;
    if (full > 0) pg_atomic_write_u32(&ring->full, full - 1);
    SpinLockRelease(&ring->mutex);
    if (full == 0) return false;
    *block = block_of(ring, number);
    return true;
}

bool wait_for_full_block(BlockRing* ring, int workers, RowBlock* block) {
    while (true) {
        // A worker hands over its last block before it leaves: checking `left` first and full
        // blocks second misses none.
        SpinLockAcquire(&ring->mutex);
        const bool all_left = ring->left == workers;
        SpinLockRelease(&ring->mutex);
        const bool there = take_full_block(ring, block);
        if (there || all_left) {
            ConditionVariableCancelSleep();
            return there;
        }
        ConditionVariableSleep(&ring->filled, PG_WAIT_EXTENSION);
    }
}

void give_back(BlockRing* ring, const RowBlock& block) {
    SpinLockAcquire(&ring->mutex);
    empty_numbers(ring)[ring->empty++] = block.number;
    SpinLockRelease(&ring->mutex);
    ConditionVariableSignal(&ring->emptied);
}

}  // namespace pgwarp
