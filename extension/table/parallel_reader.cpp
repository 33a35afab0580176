#include <algorithm>
#include <cstring>

#include "extension/table/parallel_reader.h"

extern "C" {
#include "access/parallel.h"
#include "access/table.h"
#include "access/xact.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "optimizer/paths.h"
#include "pgstat.h"
#include "storage/spin.h"
#include "tcop/tcopprot.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

namespace {

enum ShmKey : uint64 {
    key_shared = 0x70677801,
    key_snapshot,
    key_pool,
    key_query_text,
    key_usage,
    key_wal_usage,
};

struct Member {
    TableMember table;
    uint64 first_range;
};

// In dynamic shared memory; the members follow it.
struct SharedRead {
    // Set by the leader before the workers start:
    SharedTable table;
    RowIds ids;
    RowForm form;
    BlockNumber range_blocks;
    uint64 ranges;
    int member_count;

    pg_atomic_uint64 next_range;
    slock_t mutex;
    // Under `mutex`, added by each worker at its end:
    ParallelCounts counts;

    Member* members() { return reinterpret_cast<Member*>(this + 1); }
    static Size bytes(int members) { return sizeof(SharedRead) + members * sizeof(Member); }
};

// A block's position: the number of its range, then this many bits for its number within the range.
constexpr int part_bits = 24;

// The tables that workers read.
struct Members {
    const TableMember* tables;
    int count;

    double pages() const {
        double pages = 0;
        for (int i = 0; i < count; ++i) pages += tables[i].blocks;
        return pages;
    }
};

// At most `most`.
int workers_for(const Members& members, int most) {
    if (members.count == 0 || IsInParallelMode() || most <= 0) return 0;
    double pages = members.pages();
    int option = -1;
    for (int i = 0; i < members.count; ++i) {
        Relation relation = table_open(members.tables[i].table, NoLock);
        option = Max(option, RelationGetParallelWorkers(relation, -1));
        // Long vectors lie in TOAST, where reading a row costs more.
        if (OidIsValid(relation->rd_rel->reltoastrelid)) {
            Relation toast = table_open(relation->rd_rel->reltoastrelid, AccessShareLock);
            pages += RelationGetNumberOfBlocks(toast);
            table_close(toast, AccessShareLock);
        }
        table_close(relation, NoLock);
    }
    if (option >= 0) return Min(option, most);
    // The planner's rule: one worker more for each tripling of the size.
    int workers = 0;
    for (double size = Max(min_parallel_table_scan_size, 1); pages >= size; size *= 3) ++workers;
    return Min(workers, most);
}

}  // namespace

struct ParallelReader {
    TableReader* table;
    Executor* device;
    PoolShape shape;
    uint32 held;
    bool attached;  // every worker that will ever start has attached

    // With workers:
    ParallelContext* context;  // null: no workers, this process reads
    SharedRead* shared;
    BlockPool* pool;
    BufferUsage* usage;
    WalUsage* wal_usage;

    // Without:
    BlockFiller filler;
    RowBlock own[2];
    uint32 own_counts[2];
    uint64 own_positions[2];
    bool own_taken[2];
    uint64 next_position;
    bool finished;
};

namespace {

RowShape row_shape(const TableReader* table, const ParallelRead& wanted) {
    return {dims_of(table), elements_of(table, wanted.form)};
}

void begin_alone(ParallelReader* reader, const ParallelRead& wanted) {
    const Size row_bytes = row_shape(reader->table, wanted).vector_bytes();
    reader->filler =
        new_block_filler(reader->table, wanted.ids, wanted.form, reader->shape.block_rows);
    for (uint32 i = 0; i < 2; ++i) {
        reader->own[i].number = i;
        reader->own[i].count = &reader->own_counts[i];
        reader->own[i].position = &reader->own_positions[i];
        reader->own[i].rows =
            MemoryContextAllocHuge(CurrentMemoryContext, reader->shape.block_rows * row_bytes);
        reader->own[i].tids = static_cast<uint64*>(MemoryContextAllocHuge(
            CurrentMemoryContext, reader->shape.block_rows * sizeof(uint64)));
    }
}

// The size of a range, in table blocks: about as many rows as fit into a block of the pool.
BlockNumber blocks_of_range(const TableReader* table, const Members& members, int workers,
                            uint32 block_rows) {
    const double pages = members.pages();
    const double rows = Max(estimated_rows(table), 1.0);
    const double fitting = block_rows * 0.95 * Max(pages, 1.0) / rows;
    // Several ranges a worker, so that no straggler holds up the end.
    const double fair = pages / (8.0 * (workers + 1));
    return static_cast<BlockNumber>(std::clamp(std::min(fitting, fair), 1.0, 8192.0));
}

SharedRead* init_shared_read(void* memory, const ParallelReader* reader, const ParallelRead& wanted,
                             const Members& members, int workers) {
    SharedRead* shared = static_cast<SharedRead*>(memory);
    memset(memory, 0, SharedRead::bytes(members.count));
    shared->table = share_table(reader->table);
    shared->ids = wanted.ids;
    shared->form = wanted.form;
    shared->range_blocks =
        blocks_of_range(reader->table, members, workers, reader->shape.block_rows);
    shared->member_count = members.count;
    for (int i = 0; i < members.count; ++i) {
        const TableMember& table = members.tables[i];
        shared->members()[i] = {table, shared->ranges};
        shared->ranges += (table.blocks + shared->range_blocks - 1) / shared->range_blocks;
    }
    pg_atomic_init_u64(&shared->next_range, 0);
    SpinLockInit(&shared->mutex);
    return shared;
}

// Terminates the workers that still run, and waits for them.
void end_workers(ParallelReader* reader) {
    DestroyParallelContext(reader->context);
    ExitParallelMode();
    reader->context = nullptr;
}

// False, and nothing is begun, where no worker can be had.
bool begin_with_workers(ParallelReader* reader, const ParallelRead& wanted, const Members& members,
                        int workers) {
    const Snapshot snapshot = snapshot_of(reader->table);
    const PoolShape& shape = reader->shape;
    const RowShape row = row_shape(reader->table, wanted);
    const Size text_bytes = debug_query_string ? strlen(debug_query_string) + 1 : 0;
    // In the order of ShmKey.
    const Size sizes[] = {SharedRead::bytes(members.count),
                          EstimateSnapshotSpace(snapshot),
                          block_pool_bytes(shape.blocks, shape.block_rows, row),
                          text_bytes,
                          mul_size(sizeof(BufferUsage), workers),
                          mul_size(sizeof(WalUsage), workers)};
    EnterParallelMode();
    ParallelContext* context = CreateParallelContext("pgwarp", "pgwarp_read_worker", workers);
    reader->context = context;
    for (const Size size : sizes) {
        shm_toc_estimate_chunk(&context->estimator, size);
        shm_toc_estimate_keys(&context->estimator, 1);
    }
    InitializeParallelDSM(context);
    if (context->seg == nullptr) {
        end_workers(reader);
        return false;
    }
    void* chunks[lengthof(sizes)];
    for (int i = 0; i < static_cast<int>(lengthof(sizes)); ++i) {
        chunks[i] = shm_toc_allocate(context->toc, sizes[i]);
        if (sizes[i] > 0) shm_toc_insert(context->toc, key_shared + i, chunks[i]);
    }
    reader->shared = init_shared_read(chunks[0], reader, wanted, members, workers);
    SerializeSnapshot(snapshot, static_cast<char*>(chunks[1]));
    reader->pool = init_block_pool(chunks[2], shape.blocks, shape.block_rows, row);
    if (text_bytes > 0) memcpy(chunks[3], debug_query_string, text_bytes);
    reader->usage = static_cast<BufferUsage*>(chunks[4]);
    reader->wal_usage = static_cast<WalUsage*>(chunks[5]);
    LaunchParallelWorkers(context);
    if (context->nworkers_launched == 0) {
        end_workers(reader);
        return false;
    }
    if (reader->device) reader->device->register_memory(chunks[2], sizes[2]);
    return true;
}

}  // namespace

ParallelReader* open_parallel_reader(TableReader* table, const ParallelRead& wanted,
                                     Executor* device) {
    ParallelReader* reader = static_cast<ParallelReader*>(palloc0(sizeof(ParallelReader)));
    reader->table = table;
    reader->device = device;
    rewind_table_reader(table);
    TableMember* tables = nullptr;
    const int count = members_of(table, &tables);
    const Members members{tables, count};
    int workers = workers_for(members, wanted.workers);
    const RowShape row = row_shape(table, wanted);
    workers =
        Min(workers, workers_in_shared_memory(workers, Max(wanted.held, 1u), row, wanted.memory));
    reader->held = Max(wanted.held, 1u);
    reader->shape = pool_shape(workers, reader->held, row, wanted.memory);
    if (workers == 0 || !begin_with_workers(reader, wanted, members, workers))
        begin_alone(reader, wanted);
    return reader;
}

uint32 most_block_rows(const ParallelReader* reader) {
    return reader->shape.block_rows;
}

uint32 most_taken_blocks(const ParallelReader* reader) {
    return reader->context ? reader->held : Min(reader->held, 2u);
}

bool next_block(ParallelReader* reader, RowBlock* block) {
    // Workers start while the caller prepares. Waiting for attachment reports a worker that failed
    // to start; without it the pool would wait for that worker forever.
    if (reader->context && !reader->attached) {
        WaitForParallelWorkersToAttach(reader->context);
        reader->attached = true;
    }
    if (reader->context)
        return wait_for_full_block(reader->pool, reader->context->nworkers_launched, block);
    if (reader->finished) return false;
    const int free = reader->own_taken[0] ? 1 : 0;
    if (reader->own_taken[free]) elog(ERROR, "all blocks of a reader are taken");
    const Size count = fill_block(&reader->filler, reader->own[free], reader->shape.block_rows);
    reader->finished = count < reader->shape.block_rows;
    if (count == 0) return false;
    reader->own_positions[free] = reader->next_position++;
    reader->own_taken[free] = true;
    *block = reader->own[free];
    return true;
}

void give_back(ParallelReader* reader, const RowBlock& block) {
    if (reader->context)
        give_back(reader->pool, block);
    else
        reader->own_taken[block.number] = false;
}

void abandon_parallel_reader(ParallelReader* reader) {
    if (!reader->context) return;
    if (reader->device) reader->device->unregister_memory(reader->pool);
    end_workers(reader);
}

ParallelCounts close_parallel_reader(ParallelReader* reader) {
    if (!reader->context) {
        const TableCounts read = counts_of(reader->table);
        return {read.rows, read.nulls, reader->filler.odd};
    }
    ParallelContext* context = reader->context;
    WaitForParallelWorkersToFinish(context);
    for (int i = 0; i < context->nworkers_launched; ++i)
        InstrAccumParallelQuery(&reader->usage[i], &reader->wal_usage[i]);
    const ParallelCounts counts = reader->shared->counts;
    if (reader->device) reader->device->unregister_memory(reader->pool);
    end_workers(reader);
    return counts;
}

}  // namespace pgwarp

using namespace pgwarp;

void pgwarp_read_worker(dsm_segment*, shm_toc* toc) {
    SharedRead* shared = static_cast<SharedRead*>(shm_toc_lookup(toc, key_shared, false));
    BlockPool* pool = static_cast<BlockPool*>(shm_toc_lookup(toc, key_pool, false));
    debug_query_string = static_cast<char*>(shm_toc_lookup(toc, key_query_text, true));
    pgstat_report_activity(STATE_RUNNING, debug_query_string);
    InstrStartParallelQuery();
    TableReader* table = open_shared_reader(
        shared->table,
        RestoreSnapshot(static_cast<char*>(shm_toc_lookup(toc, key_snapshot, false))));
    BlockFiller filler = new_block_filler(table, shared->ids, shared->form, block_rows_of(pool));

    RowBlock block = {};
    int member = 0;
    for (uint64 range;
         (range = pg_atomic_fetch_add_u64(&shared->next_range, 1)) < shared->ranges;) {
        CHECK_FOR_INTERRUPTS();
        // A worker gets ascending range numbers. A member without blocks has no range.
        const Member* members = shared->members();
        while (member + 1 < shared->member_count && range >= members[member + 1].first_range)
            ++member;
        const BlockNumber first =
            static_cast<BlockNumber>(range - members[member].first_range) * shared->range_blocks;
        const BlockNumber end = Min(members[member].table.blocks, first + shared->range_blocks);
        read_blocks(table, members[member].table.table, first, end);
        for (uint64 part = 0;; ++part) {
            if (!block.count) block = take_empty_block(pool);
            const Size count = fill_block(&filler, block, block_rows_of(pool));
            *block.position = range << part_bits | part;
            if (count > 0) {
                hand_over(pool, block);
                block = {};
            }
            if (count < block_rows_of(pool)) break;
        }
    }
    const TableCounts counts = counts_of(table);
    SpinLockAcquire(&shared->mutex);
    shared->counts.rows += counts.rows;
    shared->counts.nulls += counts.nulls;
    shared->counts.odd |= filler.odd;
    SpinLockRelease(&shared->mutex);
    leave_block_pool(pool);
    close_table_reader(table);
    BufferUsage* usage = static_cast<BufferUsage*>(shm_toc_lookup(toc, key_usage, false));
    WalUsage* wal_usage = static_cast<WalUsage*>(shm_toc_lookup(toc, key_wal_usage, false));
    InstrEndParallelQuery(&usage[ParallelWorkerNumber], &wal_usage[ParallelWorkerNumber]);
}
