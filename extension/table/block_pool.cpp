#include <sys/statvfs.h>
#include <algorithm>

#include "extension/table/block_pool.h"

extern "C" {
#include "pgstat.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/dsm_impl.h"
#include "storage/spin.h"
}

namespace pgwarp {

// Followed in memory by the numbers of empty blocks, the numbers of full ones, the blocks' counts
// and positions, then their TIDs, rows and other bytes. Both arrays of numbers are stacks: the
// order of blocks does not matter.
struct BlockPool {
    uint32 blocks;
    uint32 block_rows;
    uint32 vector_bytes;  // of a row; a multiple of an element's
    uint32 other_bytes;
    ConditionVariable emptied;
    ConditionVariable filled;  // a block was filled, or a worker left
    pg_atomic_uint32 full;     // written under `mutex`, read without it
    slock_t mutex;
    // Under `mutex`:
    uint32 empty;
    int left;
};

namespace {

uint32* empty_numbers(BlockPool* pool) {
    return reinterpret_cast<uint32*>(reinterpret_cast<char*>(pool) + MAXALIGN(sizeof(BlockPool)));
}

uint32* full_numbers(BlockPool* pool) {
    return empty_numbers(pool) + pool->blocks;
}

RowBlock block_of(BlockPool* pool, uint32 number) {
    uint32* counts = full_numbers(pool) + pool->blocks;
    char* positions = reinterpret_cast<char*>(empty_numbers(pool)) +
                      MAXALIGN(3 * Size{pool->blocks} * sizeof(uint32));
    char* tids = positions + Size{pool->blocks} * sizeof(uint64);
    const Size rows_before = Size{number} * pool->block_rows;
    char* rows = tids + Size{pool->blocks} * pool->block_rows * sizeof(uint64);
    char* others = rows + Size{pool->blocks} * pool->block_rows * pool->vector_bytes;
    return {number,
            counts + number,
            reinterpret_cast<uint64*>(positions) + number,
            rows + rows_before * pool->vector_bytes,
            reinterpret_cast<uint64*>(tids) + rows_before,
            reinterpret_cast<uint8*>(others) + rows_before * pool->other_bytes};
}

}  // namespace

Size block_pool_bytes(uint32 blocks, uint32 block_rows, RowShape row) {
    return MAXALIGN(sizeof(BlockPool)) + MAXALIGN(3 * Size{blocks} * sizeof(uint32)) +
           Size{blocks} * sizeof(uint64) + Size{blocks} * block_rows * row.bytes();
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

int workers_in_shared_memory(int workers, uint32 held, RowShape row, Size memory) {
    // shared_memory_room() is a fraction of the free memory, so twice that is still no error.
    const Size room = 2 * shared_memory_room();
    while (workers > 0) {
        const PoolShape shape = pool_shape(workers, held, row, memory);
        if (block_pool_bytes(shape.blocks, shape.block_rows, row) <= room) break;
        workers /= 2;
    }
    return workers;
}

PoolShape pool_shape(int workers, uint32 held, RowShape row, Size memory) {
    constexpr Size max_rows = 65536;
    const uint32 blocks = 2 * static_cast<uint32>(workers) + 2 + held;
    const Size bytes = Min(memory, shared_memory_room());
    const Size rows = bytes / blocks / row.bytes();
    return {blocks, static_cast<uint32>(Max(Min(rows, max_rows), min_rows))};
}

BlockPool* init_block_pool(void* memory, uint32 blocks, uint32 block_rows, RowShape row) {
    BlockPool* pool = static_cast<BlockPool*>(memory);
    pool->blocks = blocks;
    pool->block_rows = block_rows;
    pool->vector_bytes = static_cast<uint32>(row.vector_bytes());
    pool->other_bytes = row.other_bytes;
    ConditionVariableInit(&pool->emptied);
    ConditionVariableInit(&pool->filled);
    pg_atomic_init_u32(&pool->full, 0);
    SpinLockInit(&pool->mutex);
    pool->empty = blocks;
    pool->left = 0;
    for (uint32 i = 0; i < blocks; ++i) empty_numbers(pool)[i] = i;
    return pool;
}

uint32 block_rows_of(const BlockPool* pool) {
    return pool->block_rows;
}

RowBlock take_empty_block(BlockPool* pool) {
    while (true) {
        SpinLockAcquire(&pool->mutex);
        const bool there = pool->empty > 0;
        const uint32 number = there ? empty_numbers(pool)[--pool->empty] : 0;
        SpinLockRelease(&pool->mutex);
        if (there) {
            ConditionVariableCancelSleep();
            const RowBlock block = block_of(pool, number);
            *block.count = 0;
            return block;
        }
        ConditionVariableSleep(&pool->emptied, PG_WAIT_EXTENSION);
    }
}

void hand_over(BlockPool* pool, const RowBlock& block) {
    SpinLockAcquire(&pool->mutex);
    const uint32 full = pg_atomic_read_u32(&pool->full);
    full_numbers(pool)[full] = block.number;
    pg_atomic_write_u32(&pool->full, full + 1);
    SpinLockRelease(&pool->mutex);
    ConditionVariableSignal(&pool->filled);
}

void leave_block_pool(BlockPool* pool) {
    SpinLockAcquire(&pool->mutex);
    ++pool->left;
    SpinLockRelease(&pool->mutex);
    ConditionVariableSignal(&pool->filled);
}

bool has_full_block(const BlockPool* pool) {
    return pg_atomic_read_u32(const_cast<pg_atomic_uint32*>(&pool->full)) > 0;
}

bool take_full_block(BlockPool* pool, RowBlock* block) {
    SpinLockAcquire(&pool->mutex);
    const uint32 full = pg_atomic_read_u32(&pool->full);
    const uint32 number = full > 0 ? full_numbers(pool)[full - 1] : 0;
    if (full > 0) pg_atomic_write_u32(&pool->full, full - 1);
    SpinLockRelease(&pool->mutex);
    if (full == 0) return false;
    *block = block_of(pool, number);
    return true;
}

bool wait_for_full_block(BlockPool* pool, int workers, RowBlock* block) {
    while (true) {
        // A worker hands over its last block before it leaves: checking `left` first and full
        // blocks second misses none.
        SpinLockAcquire(&pool->mutex);
        const bool all_left = pool->left == workers;
        SpinLockRelease(&pool->mutex);
        const bool there = take_full_block(pool, block);
        if (there || all_left) {
            ConditionVariableCancelSleep();
            return there;
        }
        ConditionVariableSleep(&pool->filled, PG_WAIT_EXTENSION);
    }
}

void give_back(BlockPool* pool, const RowBlock& block) {
    SpinLockAcquire(&pool->mutex);
    empty_numbers(pool)[pool->empty++] = block.number;
    SpinLockRelease(&pool->mutex);
    ConditionVariableSignal(&pool->emptied);
}

}  // namespace pgwarp
