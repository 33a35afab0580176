#include "kernels/row_pass.h"
#include "extension/create/device_blocks.h"
#include "extension/create/progress.h"
#include "extension/index/column.h"
#include "extension/index/tid.h"
#include "extension/table/page_scan.h"
#include "extension/util/stopwatch.h"

extern "C" {
#include "access/tableam.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "utils/memutils.h"
}

namespace pgwarp {

PoolShape pool_for(int workers, uint32 held, RowShape row) {
    return pool_shape(workers, held, row, static_cast<Size>(maintenance_work_mem) * 1024 / 4);
}

namespace {

// State of a worker that fills blocks.
struct Filling {
    VectorType type;
    const IndexAttributes* attributes;
    BlockPool* pool;
    RowBlock block;  // block.count is null: none taken yet
    Metric metric;
    uint32 dims;
    RowElements elements;  // of the blocks
    float* vector;         // (dims)
    MemoryContext row_context;
    double rows;
};

// Puts the vector into the block as the device takes it: see EncodeInput::elements().
void fill_vector(Filling* filling, const varlena* value, uint32 at) {
    const Size before_it = Size{at} * filling->dims;
    if (filling->elements == RowElements::float16) {
        filling->type.copy_elements(value, filling->dims,
                                    static_cast<float16*>(filling->block.rows) + before_it);
        return;
    }
    filling->type.read(value, filling->dims, filling->vector);
    row_form(filling->metric, filling->vector, filling->dims, filling->block.floats() + before_it);
}

void fill_row(Relation, ItemPointer tid, Datum* values, bool* nulls, bool, void* argument) {
    if (nulls[0]) return;
    Filling* filling = static_cast<Filling*>(argument);
    if (!filling->block.count) filling->block = take_empty_block(filling->pool);
    MemoryContextReset(filling->row_context);
    const MemoryContext before = MemoryContextSwitchTo(filling->row_context);
    const auto* value =
        pg_detoast_datum_packed(reinterpret_cast<varlena*>(DatumGetPointer(values[0])));
    const uint32 at = (*filling->block.count)++;
    pack_attributes(*filling->attributes, values, nulls,
                    filling->block.others + Size{at} * filling->attributes->layout.entry_bytes());
    fill_vector(filling, value, at);
    MemoryContextSwitchTo(before);
    filling->block.tids[at] = tid_number(*tid);
    ++filling->rows;
    if (at + 1 < block_rows_of(filling->pool)) return;
    hand_over(filling->pool, filling->block);
    filling->block = {};
}

}  // namespace

void fill_blocks(const BuildTable& table, SharedBuild* shared, BlockPool* pool) {
    Filling filling = {};
    filling.type = type_of(table.index);
    filling.attributes = copy_attributes(table.index);
    filling.pool = pool;
    filling.metric = shared->shape.metric;
    filling.dims = shared->rotated_from > 0 ? shared->rotated_from : shared->shape.dims;
    filling.elements = normalizes(filling.metric) ? RowElements::float32 : filling.type.elements();
    filling.vector = static_cast<float*>(palloc(filling.dims * sizeof(float)));
    filling.row_context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq row", ALLOCSET_DEFAULT_SIZES);
    double heap_rows;
    if (may_scan_pages(table.heap, table.info)) {
        heap_rows =
            scan_pages(table.heap, table.index, table.info, scan_of(shared), fill_row, &filling);
    } else {
        TableScanDesc scan = compat_beginscan_parallel(table.heap, scan_of(shared));
        heap_rows = table_index_build_scan(table.heap, table.index, table.info, true, false,
                                           fill_row, &filling, scan);
    }
    if (filling.block.count) hand_over(pool, filling.block);
    report_share(shared, heap_rows, filling.rows, table.info);
    leave_block_pool(pool);
}

namespace {

// State of the leader, which reads rows itself while no block is full.
struct Taking {
    BlockPool* pool;
    EncodePass* pass;
};

void take_row(Relation index, ItemPointer tid, Datum* values, bool* nulls, bool alive,
              void* argument) {
    Taking* taking = static_cast<Taking*>(argument);
    RowBlock block;
    while (has_full_block(taking->pool) && take_full_block(taking->pool, &block))
        encode_block(taking->pass, taking->pool, block);
    encode_row(index, tid, values, nulls, alive, taking->pass);
}

}  // namespace

void take_blocks(const BuildTable& table, ParallelContext* context, const BuildMemory& memory,
                 EncodePass* pass) {
    SharedBuild* shared = memory.shared;
    BlockPool* pool = memory.pool;
    Taking taking{pool, pass};
    double heap_rows = 0;
    // With many workers, feeding the device keeps the leader busy: it reads no rows itself.
    constexpr int many_workers = 4;
    if (context->nworkers_launched < many_workers) {
        TableScanDesc scan = compat_beginscan_parallel(table.heap, scan_of(shared));
        heap_rows = table_index_build_scan(table.heap, table.index, table.info, true, true,
                                           take_row, &taking, scan);
        flush_encode(pass);
    }
    WaitForParallelWorkersToAttach(context);
    RowBlock block;
    double waiting = 0;
    for (Stopwatch watch; wait_for_full_block(pool, context->nworkers_launched, &block);) {
        waiting += watch.lap();
        encode_block(pass, pool, block);
        report_progress(PROGRESS_CREATEIDX_TUPLES_DONE, static_cast<int64>(rows_of(pass)));
        watch.lap();
    }
    ereport(DEBUG1, (errmsg_internal("%.3f s to wait for blocks of rows", waiting)));
    flush_encode(pass);
    // `rows` already holds the workers' counts: add only the leader's own.
    report_share(shared, heap_rows, rows_of(pass) - shared->rows, table.info);
}

}  // namespace pgwarp
