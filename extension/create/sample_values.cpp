// Workers take ranges of the values, and hand vectors over in blocks of a pool. The leader copies
// them to their slots, and reads ranges itself while no block is full.
//
// A value can be read after its row's page was left: nothing removes it meanwhile. A build keeps
// VACUUM away from the table, and others from deleting rows; a concurrent build holds a snapshot,
// and VACUUM of the TOAST table leaves what rows had when that was taken.

#include "extension/create/sample_values.h"

#include <algorithm>
#include <cstring>

#include "extension/index/column.h"
#include "extension/table/block_pool.h"
#include "extension/table/parallel_reader.h"
#include "extension/table/toast_reader.h"

extern "C" {
#include "access/genam.h"
#include "access/parallel.h"
#include "access/table.h"
#include "access/xact.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/atomics.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
}

namespace pgwarp {

bool StoredValues::note(uint32 slot, Datum value) {
    const void* stored = DatumGetPointer(value);
    const Size at = Size{slot} * TOAST_POINTER_SIZE;
    if (!VARATT_IS_EXTERNAL_ONDISK(stored)) {
        if (pointers_) memset(pointers_ + at, 0, TOAST_POINTER_SIZE);
        return false;
    }
    if (!pointers_)
        pointers_ = static_cast<uint8*>(MemoryContextAllocExtended(
            context_, Size{room_} * TOAST_POINTER_SIZE, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
    memcpy(pointers_ + at, stored, TOAST_POINTER_SIZE);
    return true;
}

StoredValue* StoredValues::all(uint32* count) const {
    *count = 0;
    if (!pointers_) return nullptr;
    auto* values = static_cast<StoredValue*>(
        MemoryContextAllocHuge(CurrentMemoryContext, Size{room_} * sizeof(StoredValue)));
    for (uint32 slot = 0; slot < room_; ++slot) {
        const uint8* pointer = pointers_ + Size{slot} * TOAST_POINTER_SIZE;
        // The header of a TOAST pointer is not zero.
        if (pointer[0] == 0) continue;
        StoredValue* value = &values[(*count)++];
        value->slot = slot;
        memcpy(value->pointer, pointer, TOAST_POINTER_SIZE);
    }
    return values;
}

namespace {

enum ShmKey : uint64 {
    key_shared = 0x70677901,
    key_values,
    key_pool,
    key_query_text,
    key_usage,
    key_wal_usage,
};

// In dynamic shared memory.
struct SharedValues {
    Oid heap;
    Oid index;
    bool concurrent;
    Metric metric;
    uint32 dims;
    uint32 count;
    uint32 range;  // values that a process takes at a time
    pg_atomic_uint32 next;
};

// Reads values one by one; lives in the memory context that is current when it is made.
struct ValueReader {
    ValueReader(Relation heap, Relation index, Metric with_metric, uint32 with_dims)
        : type(type_of(index)),
          metric(with_metric),
          dims(with_dims),
          toast(open_toast_reader(heap)),
          context(AllocSetContextCreate(CurrentMemoryContext, "ivfpq sample value",
                                        ALLOCSET_DEFAULT_SIZES)) {}
    void close() {
        close_toast_reader(toast);
        MemoryContextDelete(context);
    }

    void read(const StoredValue& value, float* row) {
        CHECK_FOR_INTERRUPTS();
        const MemoryContext before = MemoryContextSwitchTo(context);
        const VectorView vector =
            type.view(read_value(toast, PointerGetDatum(const_cast<uint8*>(value.pointer))));
        row_form(metric, vector.values, dims, row);
        MemoryContextSwitchTo(before);
        MemoryContextReset(context);
    }

    VectorType type;
    Metric metric;
    uint32 dims;
    ToastReader* toast;
    MemoryContext context;
};

struct Range {
    uint32 begin, end;
    bool empty() const { return begin >= end; }
};
Range next_range(SharedValues* shared) {
    // Stops counting at the end: the counter would begin again otherwise.
    if (pg_atomic_read_u32(&shared->next) >= shared->count) return {shared->count, shared->count};
    const uint32 begin = pg_atomic_fetch_add_u32(&shared->next, shared->range);
    return {begin, begin < shared->count ? Min(shared->count, begin + shared->range) : begin};
}

struct ValueWorkers {
    ParallelContext* context;
    SharedValues* shared;
    BlockPool* pool;
    BufferUsage* usage;
    WalUsage* wal_usage;
};

void end_workers(ValueWorkers* workers) {
    DestroyParallelContext(workers->context);
    ExitParallelMode();
}

// False, and nothing is begun, where no worker can be had.
bool begin_workers(const SharedValues& values, const StoredValue* all, int wanted,
                   ValueWorkers* workers) {
    const RowShape row(values.dims, RowElements::float32);
    const Size memory = usual_pool_bytes();
    wanted = Min(wanted, workers_in_shared_memory(wanted, 1, row, memory));
    if (wanted <= 0) return false;
    const PoolShape shape = pool_shape(wanted, 1, row, memory);
    const Size text_bytes = debug_query_string ? strlen(debug_query_string) + 1 : 0;
    // In the order of ShmKey.
    const Size sizes[] = {sizeof(SharedValues),
                          Size{values.count} * sizeof(StoredValue),
                          block_pool_bytes(shape.blocks, shape.block_rows, row),
                          text_bytes,
                          mul_size(sizeof(BufferUsage), wanted),
                          mul_size(sizeof(WalUsage), wanted)};
    EnterParallelMode();
    ParallelContext* context = CreateParallelContext("pgwarp", "pgwarp_sample_worker", wanted);
    workers->context = context;
    for (const Size size : sizes) {
        shm_toc_estimate_chunk(&context->estimator, size);
        shm_toc_estimate_keys(&context->estimator, 1);
    }
    InitializeParallelDSM(context);
    if (context->seg == nullptr) {
        end_workers(workers);
        return false;
    }
    void* pieces[lengthof(sizes)];
    for (int i = 0; i < static_cast<int>(lengthof(sizes)); ++i) {
        pieces[i] = shm_toc_allocate(context->toc, sizes[i]);
        if (sizes[i] > 0) shm_toc_insert(context->toc, key_shared + i, pieces[i]);
    }
    workers->shared = static_cast<SharedValues*>(pieces[0]);
    *workers->shared = values;
    // Several ranges a process, so that no straggler holds up the end.
    workers->shared->range =
        std::clamp(values.count / (8 * static_cast<uint32>(wanted + 1)), 1u, shape.block_rows);
    pg_atomic_init_u32(&workers->shared->next, 0);
    memcpy(pieces[1], all, sizes[1]);
    workers->pool = init_block_pool(pieces[2], shape.blocks, shape.block_rows, row);
    if (text_bytes > 0) memcpy(pieces[3], debug_query_string, text_bytes);
    workers->usage = static_cast<BufferUsage*>(pieces[4]);
    workers->wal_usage = static_cast<WalUsage*>(pieces[5]);
    LaunchParallelWorkers(context);
    if (context->nworkers_launched > 0) return true;
    end_workers(workers);
    return false;
}

// The sample's rows.
struct Slots {
    float* rows;
    uint32 dims;

    float* row(uint64 slot) const { return rows + slot * dims; }
    void copy(const RowBlock& block) const {
        for (uint32 i = 0; i < *block.count; ++i)
            std::copy_n(block.floats() + Size{i} * dims, dims, row(block.tids[i]));
    }
};

void read_with(ValueWorkers* workers, const StoredValue* values, ValueReader* reader,
               const Slots& slots) {
    RowBlock block;
    const auto take_full = [&] {
        while (has_full_block(workers->pool) && take_full_block(workers->pool, &block)) {
            slots.copy(block);
            give_back(workers->pool, block);
        }
    };
    for (Range range = next_range(workers->shared); !range.empty();
         range = next_range(workers->shared))
        for (uint32 i = range.begin; i < range.end; ++i) {
            take_full();
            reader->read(values[i], slots.row(values[i].slot));
        }
    // Reports a worker that failed to start; without it the pool would wait for that worker
    // forever.
    WaitForParallelWorkersToAttach(workers->context);
    while (wait_for_full_block(workers->pool, workers->context->nworkers_launched, &block)) {
        slots.copy(block);
        give_back(workers->pool, block);
    }
    WaitForParallelWorkersToFinish(workers->context);
    for (int i = 0; i < workers->context->nworkers_launched; ++i)
        InstrAccumParallelQuery(&workers->usage[i], &workers->wal_usage[i]);
    end_workers(workers);
}

}  // namespace

void read_stored_values(Relation heap, Relation index, bool concurrent, Metric metric,
                        const StoredValues& values, uint32 dims, float* rows, int workers) {
    // Fewer take less time than workers do to start.
    constexpr uint32 worth_workers = 1024;
    uint32 count;
    StoredValue* all = values.all(&count);
    if (count == 0) return;
    ValueReader reader(heap, index, metric, dims);
    const Slots slots{rows, dims};
    const SharedValues shared{
        RelationGetRelid(heap), RelationGetRelid(index), concurrent, metric, dims, count, 0, {}};
    ValueWorkers running;
    if (count >= worth_workers && begin_workers(shared, all, workers, &running))
        read_with(&running, all, &reader, slots);
    else
        for (uint32 i = 0; i < count; ++i) reader.read(all[i], slots.row(all[i].slot));
    reader.close();
    pfree(all);
}

}  // namespace pgwarp

using namespace pgwarp;

void pgwarp_sample_worker(dsm_segment*, shm_toc* toc) {
    auto* shared = static_cast<SharedValues*>(shm_toc_lookup(toc, key_shared, false));
    const auto* values = static_cast<StoredValue*>(shm_toc_lookup(toc, key_values, false));
    auto* pool = static_cast<BlockPool*>(shm_toc_lookup(toc, key_pool, false));
    debug_query_string = static_cast<char*>(shm_toc_lookup(toc, key_query_text, true));
    pgstat_report_activity(STATE_RUNNING, debug_query_string);

    const LOCKMODE heap_lock = shared->concurrent ? ShareUpdateExclusiveLock : ShareLock;
    const LOCKMODE index_lock = shared->concurrent ? RowExclusiveLock : AccessExclusiveLock;
    Relation heap = table_open(shared->heap, heap_lock);
    Relation index = index_open(shared->index, index_lock);
    InstrStartParallelQuery();
    ValueReader reader(heap, index, shared->metric, shared->dims);
    for (Range range = next_range(shared); !range.empty(); range = next_range(shared)) {
        const RowBlock block = take_empty_block(pool);
        *block.count = range.end - range.begin;
        for (uint32 i = 0; i < *block.count; ++i) {
            const StoredValue& value = values[range.begin + i];
            block.tids[i] = value.slot;
            reader.read(value, block.floats() + Size{i} * shared->dims);
        }
        hand_over(pool, block);
    }
    leave_block_pool(pool);
    reader.close();
    auto* usage = static_cast<BufferUsage*>(shm_toc_lookup(toc, key_usage, false));
    auto* wal_usage = static_cast<WalUsage*>(shm_toc_lookup(toc, key_wal_usage, false));
    InstrEndParallelQuery(&usage[ParallelWorkerNumber], &wal_usage[ParallelWorkerNumber]);
    index_close(index, index_lock);
    table_close(heap, heap_lock);
}
