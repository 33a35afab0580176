#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/distance.h"
#include "kernels/row_pass.h"
#include "extension/curve/true_neighbors.h"
#include "extension/device/executor.h"
#include "extension/guard.h"
#include "extension/index/column.h"
#include "extension/index/lists.h"

extern "C" {
#include "access/tableam.h"
#include "catalog/index.h"
#include "miscadmin.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

// The largest k of k-selection on a device.
constexpr uint32 device_most_k = 2048;

// The size of one of the two blocks of rows.
Size block_bytes() {
    return std::min(size_t{4} << 20, static_cast<Size>(maintenance_work_mem) * 1024 / 4);
}

// Rows pass in two blocks: one is filled while the other is compared with the queries.
struct Truth {
    VectorType type;
    Metric metric;
    uint32 dims;
    Owned<RowPass>* passes[most_query_sets];
    int pass_count;
    struct {
        float* rows;
        uint64* tids;
    } blocks[2];
    uint32 room;  // of a block
    uint32 count;
    uint32 filling;
    bool in_flight;  // the comparison of the other block
    MemoryContext row_context;
};

void finish_block(Truth* truth) {
    for (int i = 0; i < truth->pass_count && truth->in_flight; ++i)
        guarded_interruptibly([&] { truth->passes[i]->object->finish(); });
    truth->in_flight = false;
}

void compare_block(Truth* truth) {
    finish_block(truth);
    if (truth->count == 0) return;
    const auto& block = truth->blocks[truth->filling];
    for (int i = 0; i < truth->pass_count; ++i)
        guarded_interruptibly(
            [&] { truth->passes[i]->object->start(block.rows, block.tids, truth->count); });
    truth->in_flight = true;
    truth->filling = 1 - truth->filling;
    truth->count = 0;
}

void compare_row(Relation, ItemPointer tid, Datum* values, bool* nulls, bool, void* state) {
    Truth* truth = static_cast<Truth*>(state);
    if (nulls[0]) return;
    CHECK_FOR_INTERRUPTS();
    MemoryContextReset(truth->row_context);
    const MemoryContext before = MemoryContextSwitchTo(truth->row_context);
    const VectorView row = truth->type.view(values[0]);
    MemoryContextSwitchTo(before);
    check_same_dims(truth->dims, row.dims, truth->type.name());
    if (!has_distances(truth->metric, row.values, row.dims)) return;
    const auto& block = truth->blocks[truth->filling];
    index_form(truth->metric, row.values, truth->dims,
               block.rows + Size{truth->count} * truth->dims);
    block.tids[truth->count] = tid_number(*tid);
    if (++truth->count == truth->room) compare_block(truth);
}

void begin_passes(const SearchedTable& table, const QuerySet* sets, int set_count,
                  Executor* executor, Truth* truth) {
    for (int i = 0; i < set_count; ++i) {
        if (sets[i].count == 0) continue;
        Owned<RowPass>* pass = owned_by<RowPass>(CurrentMemoryContext);
        truth->passes[truth->pass_count++] = pass;
        guarded_interruptibly([&] {
            RowPassInput input;
            input.dims = table.dims;
            input.metric = table.metric;
            input.block_rows = truth->room;
            input.expected_rows = static_cast<size_t>(table.rows);
            input.queries = sets[i].queries;
            input.query_count = sets[i].count;
            input.k = sets[i].k;
            pass->object = executor->begin_pass(input).release();
        });
    }
}

void end_passes(const QuerySet* sets, int set_count, Truth* truth) {
    int at = 0;
    for (int i = 0; i < set_count; ++i) {
        if (sets[i].count == 0) continue;
        Owned<RowPass>* pass = truth->passes[at++];
        guarded_interruptibly([&] { pass->object->nearest(sets[i].nearest); });
        // A pass must end before its device is closed.
        guarded([&] { delete std::exchange(pass->object, nullptr); });
    }
}

}  // namespace

bool has_distances(Metric metric, const float* vector, uint32 dims) {
    if (!normalizes(metric)) return true;
    // The same norm as in exact_distance().
    const float norm = cosine_parts(vector, vector, dims).squared_norm_a;
    return norm > 0 && std::isfinite(norm);
}

Size search_bytes(uint32 dims, const QuerySet* sets, int set_count) {
    Size bytes = 2 * block_bytes();
    // As much work as there can be: how much there is, is not known yet.
    const auto devices = static_cast<Size>(devices_for(std::numeric_limits<double>::infinity()));
    // Two copies of each query, and of its neighbors the caller's, and two of each device's pass.
    const Size copies = 1 + 2 * std::max<Size>(devices, 1);
    for (int i = 0; i < set_count; ++i)
        bytes += Size{sets[i].count} *
                 (2 * Size{dims} * sizeof(float) + copies * Size{sets[i].k} * sizeof(Neighbor));
    return bytes;
}

void find_true_neighbors(const SearchedTable& table, const QuerySet* sets, int set_count) {
    Truth truth = {};
    truth.type = type_of(table.index);
    truth.metric = table.metric;
    truth.dims = table.dims;
    truth.row_context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq truth", ALLOCSET_DEFAULT_SIZES);
    const Size row_bytes = truth.dims * sizeof(float);
    truth.room = static_cast<uint32>(std::clamp<Size>(block_bytes() / row_bytes, 16, 65536));
    const auto alloc = [](Size bytes) {
        return MemoryContextAllocHuge(CurrentMemoryContext, bytes);
    };
    for (auto& block : truth.blocks) {
        block.rows = static_cast<float*>(alloc(truth.room * row_bytes));
        block.tids = static_cast<uint64*>(alloc(truth.room * sizeof(uint64)));
    }
    double queries = 0;
    uint32 most_k = 0;
    for (int i = 0; i < set_count; ++i) {
        queries += sets[i].count;
        most_k = std::max(most_k, sets[i].k);
    }
    BuildExecutor executor = open_build_executor(
        most_k > device_most_k ? "a device finds at most 2047 neighbors" : nullptr,
        table.rows * queries * table.dims, 1 + max_parallel_maintenance_workers);
    begin_passes(table, sets, set_count, executor.executor, &truth);

    IndexInfo* info = BuildIndexInfo(table.index);
    info->ii_Concurrent = true;
    TableScanDesc scan = table_beginscan_strat(table.heap, table.snapshot, 0, nullptr, true, true);
    table_index_build_scan(table.heap, table.index, info, true, false, compare_row, &truth, scan);
    compare_block(&truth);
    finish_block(&truth);
    end_passes(sets, set_count, &truth);
    close_build_executor(&executor);
    for (const auto& block : truth.blocks) {
        pfree(block.rows);
        pfree(block.tids);
    }
}

}  // namespace pgwarp
