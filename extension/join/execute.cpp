// The custom scan: reads rows of its child ahead, and has an index searched for all of them.
//
// The hook that runs after ExecutorStart finds the Nested Loop above a custom scan, and the index
// scans on its inner side. For each row that it reads, the custom scan sets the parameters that the
// Nested Loop will set, and evaluates the query of the index scan by the scan's own expression. So
// whatever the expression is, the search is for what the scan will ask for. The scan gets rows only
// if it asks for exactly that vector.
//
// The rows of a search are visible to the query's snapshot, as those of the scan are, and are valid
// for the whole query by the rule for batches (README.md, "Freshness").
//
// Where the planner has found that it pays, all rows of the child, or as many as memory holds, are
// read first, and a device compares them with the whole table. Its distances are rounded, so it
// names some rows more than are wanted, and these are ranked as candidates of a batch are. Nothing
// of the device is held between two rows.
//
// Parameters are left as the child left them whenever it is asked for a row: a Nested Loop below
// may use the same ones.

#include <algorithm>
#include <cstring>

#include "kernels/executor.h"
#include "extension/index/column.h"
#include "extension/index/table_rows.h"
#include "extension/join/batch_state.h"
#include "extension/knn/batch.h"
#include "extension/knn/device.h"
#include "extension/knn/lists.h"
#include "extension/scan/given.h"
#include "extension/settings.h"

extern "C" {
#include "access/skey.h"
#include "executor/executor.h"
#include "nodes/nodeFuncs.h"
#include "nodes/plannodes.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

namespace {

ExecutorStart_hook_type previous_hook = nullptr;
// Whether a custom scan was made since the executor hook looked for them.
bool scans_made = false;

// --- giving rows to scans

BatchScan* giving = nullptr;

void stop_giving(void* state) {
    for (BatchScan** at = &giving; *at; at = &(*at)->next)
        if (*at == state) {
            *at = (*at)->next;
            return;
        }
}

const SearchedIndex* find_index(const BatchScan* state, IndexScanDesc scan) {
    for (int i = 0; i < state->index_count; ++i)
        if (state->indexes[i].scan->iss_ScanDesc == scan) return &state->indexes[i];
    return nullptr;
}

// Whether the scan has the query that was searched for.
bool has_query(IndexScanDesc scan, const float* vector, uint32 dims) {
    const ScanKey key = &scan->orderByData[0];
    if (scan->numberOfOrderBys != 1 || (key->sk_flags & SK_ISNULL)) return false;
    const VectorView wanted = type_of(scan->indexRelation).view(key->sk_argument);
    return wanted.dims == dims && memcmp(wanted.values, vector, dims * sizeof(float)) == 0;
}

bool give_found_rows(IndexScanDesc scan, GivenRows* given) {
    for (const BatchScan* state = giving; state; state = state->next) {
        const SearchedIndex* index = find_index(state, scan);
        if (!index) continue;
        if (!state->searched || state->next_row == 0) return false;
        const int32 query = state->rows[state->next_row - 1].query;
        const uint32 dims = index->index.dims;
        const uint32 in_window = static_cast<uint32>(query) - state->window_begin;
        if (query < 0 || static_cast<uint32>(query) < state->window_begin ||
            in_window >= state->window_count ||
            scan->xs_snapshot != state->ss.ps.state->es_snapshot ||
            !has_query(scan, state->vectors + static_cast<Size>(query) * dims, dims))
            return false;
        if (!is_complete(index->batch, in_window)) return false;
        const KnnRows found = rows_of(*index->found, in_window);
        given->count = 0;
        given->tids = static_cast<ItemPointerData*>(
            palloc(Max(Size{found.count}, Size{1}) * sizeof(ItemPointerData)));
        for (uint32 i = 0; i < found.count; ++i)
            if (found.rows[i].part == index->index.part)
                given->tids[given->count++] = found.rows[i].place;
        return true;
    }
    return false;
}

// --- searching

// Rows that LIMIT wants of each search; 0: unknown, none, or an error that the Limit node reports.
uint32 wanted_rows(const BatchScan* state) {
    constexpr int64 most = 1 << 20;
    ExprContext* context = state->limit->ps.ps_ExprContext;
    const auto value_of = [context](ExprState* expression, int64 otherwise) {
        if (!expression) return otherwise;
        bool is_null;
        const Datum value = ExecEvalExprSwitchContext(expression, context, &is_null);
        return is_null ? otherwise : DatumGetInt64(value);
    };
    const int64 count = value_of(state->limit->limitCount, 0);
    const int64 offset = value_of(state->limit->limitOffset, 0);
    if (count <= 0 || count > most || offset < 0 || offset > most) return 0;
    return static_cast<uint32>(count + offset);
}

// How many of the indexes have rows of their own.
int index_groups(const BatchScan* state) {
    return state->compares_all ? 1 : state->index_count;
}

// False: batches do not pay, or do not fit into memory. If several have rows of their own, each has
// half of the memory for queries while it searches; the other half keeps what they have found.
bool open_batches(BatchScan* state) {
    if (state->gave_up) return false;
    if (state->indexes[0].batch) return true;
    const uint32 k = wanted_rows(state);
    const BatchMemory memory = batch_memory();
    double pages = 0;
    for (int i = 0; i < state->index_count; ++i)
        pages += RelationGetNumberOfBlocks(state->indexes[i].index.index);
    const MemoryContext before = MemoryContextSwitchTo(state->ss.ps.state->es_query_cxt);
    // Entries of rows that are too old for a snapshot may be gone: only a scan looks for that.
    state->gave_up = k == 0 || compat_old_snapshots_end();
    state->k = k;
    // A batch searches with the active snapshot.
    PushActiveSnapshot(state->ss.ps.state->es_snapshot);
    if (!state->threads) state->threads = make_search_threads();
    for (int i = 0; i < state->index_count && !state->gave_up; ++i) {
        SearchedIndex& index = state->indexes[i];
        const double part = RelationGetNumberOfBlocks(index.index.index) / std::max(pages, 1.0);
        index.batch = try_knn_batch(index.index, k,
                                    {index_groups(state) > 1 ? memory.queries / 2 : memory.queries,
                                     memory_of_lists(memory.lists, state->index_count, part)},
                                    state->threads);
        state->gave_up = !index.batch;
        index.found = i < index_groups(state) ? open_nearest_rows(k) : state->indexes[0].found;
    }
    PopActiveSnapshot();
    MemoryContextSwitchTo(before);
    return !state->gave_up;
}

uint32 most_queries(const BatchScan* state) {
    uint32 most = UINT32_MAX;
    if (index_groups(state) > 1) {
        const Size bytes = static_cast<Size>(index_groups(state)) * found_bytes(state->k);
        most = static_cast<uint32>(std::clamp<Size>(batch_memory().queries / 2 / bytes, 1, most));
    }
    for (int i = 0; i < state->index_count; ++i)
        most = std::min(most, most_queries(state->indexes[i].batch));
    return most;
}

uint32 least_queries(const BatchScan* state) {
    uint32 least = 0;
    for (int i = 0; i < state->index_count; ++i)
        least = std::max(least, least_queries(state->indexes[i].batch));
    return least;
}

// Whether a batch can have as many queries as make it pay; else scans search by themselves.
bool batches_pay(BatchScan* state) {
    if (least_queries(state) > most_queries(state)) state->gave_up = true;
    return !state->gave_up;
}

// The parameters of a row: `with` sets them.
template <typename With>
void for_each_parameter(const BatchScan* state, With&& with) {
    ParamExecData* all = state->ss.ps.state->es_param_exec_vals;
    int i = 0;
    for (const ListCell* cell = list_head(state->join->nestParams); cell;
         cell = lnext(state->join->nestParams, cell), ++i) {
        const auto* parameter = static_cast<const NestLoopParam*>(lfirst(cell));
        with(i, parameter, &all[parameter->paramno]);
    }
}

}  // namespace

// The scan's keys come first: they may be a policy of row security, or keep a filter from an error.
bool passes_conditions(void* argument, uint32 query, TupleTableSlot* row) {
    const auto* index = static_cast<const SearchedIndex*>(argument);
    const BatchScan* state = index->join;
    const ParamExecData* values =
        state->query_parameters + static_cast<Size>(state->parameter_count) * query;
    for_each_parameter(state, [&](int i, const NestLoopParam*, ParamExecData* parameter) {
        *parameter = values[i];
    });
    ExprContext* context = state->row_context;
    ResetExprContext(context);
    context->ecxt_scantuple = row;
    return ExecQual(index->scan->indexqualorig, context) &&
           ExecQual(index->scan->ss.ps.qual, context);
}

namespace {

// Queries for which a batch found too few rows are left to the scans; if there are many of these,
// all queries are.
void count_incomplete(BatchScan* state) {
    uint32 incomplete = 0;
    for (uint32 query = 0; query < state->window_count; ++query)
        for (int i = 0; i < state->index_count; ++i)
            if (!is_complete(state->indexes[i].batch, query)) {
                ++incomplete;
                break;
            }
    state->queries -= incomplete;
    state->singles += incomplete;
    state->gave_up = incomplete > state->window_count / 4;
}

// Searches all indexes, as one where their rows are compared, or ranks what a device has found.
void search_indexes(const BatchScan* state, const float* vectors, const FoundPlaces& near) {
    auto* batches =
        static_cast<KnnBatch**>(palloc(static_cast<Size>(state->index_count) * sizeof(KnnBatch*)));
    for (int i = 0; i < state->index_count; ++i) batches[i] = state->indexes[i].batch;
    const int groups = index_groups(state);
    const int at_once = state->index_count / groups;
    for (int i = 0; i < groups; ++i) {
        NearestRows* found = state->indexes[i].found;
        begin_rows(found, state->window_count);
        if (!near.places) search_batches(batches + i, at_once, vectors, found);
        for (int j = i; j < i + at_once && near.places; ++j)
            rank_batch(batches[j], vectors, near, found);
        sort_rows(found, state->indexes[i].index);
    }
    pfree(batches);
}

// Searches for the queries from `begin` on, as many as a batch can have.
void search_window(BatchScan* state, uint32 begin) {
    state->window_begin = begin;
    state->window_count = std::min(state->query_count - begin, most_queries(state));
    const Size first = begin;
    FoundPlaces near = state->near;
    if (near.places) near = {near.places + first * near.most, near.found + first, near.most};
    search_indexes(state, state->vectors + first * state->indexes[0].index.dims, near);
    state->searched = true;
    state->queries += state->window_count;
    ++state->batches;
    count_incomplete(state);
}

// --- a device

// Rows that a device names for each query: its distances are rounded.
uint32 named_rows(const BatchScan* state) {
    const uint32 k = wanted_rows(state);
    return std::min(k + std::max(k / 8, 2u), most_device_rows);
}

// Queries that are read ahead for a device, in the memory of a batch's queries and lists.
uint32 device_queries(const BatchScan* state) {
    const BatchMemory memory = batch_memory();
    const Size bytes = 2 * state->indexes[0].index.dims * sizeof(float) +
                       named_rows(state) * (sizeof(Neighbor) + sizeof(uint64)) +
                       sizeof(BufferedRow) + 64;
    constexpr Size most = 1 << 20;
    return static_cast<uint32>(std::clamp<Size>(memory.queries / bytes, 1, most));
}

// Whether an open device is worth its work for the queries that were read.
bool device_pays(const BatchScan* state) {
    double rows = 0;
    for (int i = 0; i < state->index_count; ++i) {
        const KnnIndex& index = state->indexes[i].index;
        rows += table_rows(index.heap, index.index);
    }
    return seconds_on_device(rows, state->whole.dims, state->query_count) <
           state->index_count * seconds_in_lists(state->query_count);
}

// Has a device find the rows of all queries. False: there is none, or it could not.
bool find_on_device(BatchScan* state) {
    const uint32 most = named_rows(state);
    const MemoryContext context = AllocSetContextCreate(
        CurrentMemoryContext, "ivfpq batch on a device", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);
    // A device reads with the active snapshot, too.
    PushActiveSnapshot(state->ss.ps.state->es_snapshot);
    const double expected = std::max<double>(state->query_count, state->child->plan->plan_rows);
    KnnDevice* device = open_knn_device(state->whole, most, expected);
    bool found = false;
    if (device) {
        found = state->query_count <= most_queries(device) &&
                search_on_device(device, state->vectors, state->query_count);
        if (found) {
            const auto alloc = [state](Size bytes) {
                return MemoryContextAllocHuge(state->rows_context, bytes);
            };
            auto* places =
                static_cast<uint64*>(alloc(Size{state->query_count} * most * sizeof(uint64)));
            auto* counts = static_cast<uint32*>(alloc(state->query_count * sizeof(uint32)));
            for (uint32 i = 0; i < state->query_count; ++i)
                counts[i] = places_of(device, i, places + Size{i} * most);
            state->near = {places, counts, most};
        }
        close_knn_device(device);
    }
    PopActiveSnapshot();
    MemoryContextSwitchTo(before);
    MemoryContextDelete(context);
    state->wants_device = found;
    state->by_device |= found;
    return found;
}

// --- reading ahead

// What the Nested Loop will do with the row.
void set_parameters(const BatchScan* state, TupleTableSlot* row) {
    for_each_parameter(state, [&](int, const NestLoopParam* parameter, ParamExecData* value) {
        value->value = slot_getattr(row, parameter->paramval->varattno, &value->isnull);
    });
}

void keep_parameters(const BatchScan* state, ParamExecData* to) {
    for_each_parameter(
        state, [&](int i, const NestLoopParam*, const ParamExecData* value) { to[i] = *value; });
}

void restore_parameters(const BatchScan* state) {
    for_each_parameter(state, [&](int i, const NestLoopParam*, ParamExecData* value) {
        *value = state->parameters[i];
    });
}

// The child's next row as this node returns it; null: there are no more. Valid until the next call.
TupleTableSlot* read_row(BatchScan* state) {
    if (state->ended) return nullptr;
    TupleTableSlot* row = ExecProcNode(state->child);
    if (TupIsNull(row)) {
        state->ended = true;
        return nullptr;
    }
    return project_row(state, row);
}

// Adds the query of a row to the batch. False: it has none that a batch can search for.
bool add_query(BatchScan* state, TupleTableSlot* row) {
    set_parameters(state, row);
    ResetExprContext(state->query_context);
    bool is_null;
    const Datum query = ExecEvalExprSwitchContext(state->query, state->query_context, &is_null);
    if (is_null) return false;
    const KnnIndex& index = state->indexes[0].index;
    const MemoryContext before = MemoryContextSwitchTo(state->query_context->ecxt_per_tuple_memory);
    const VectorView vector = type_of(index.index).view(query);
    MemoryContextSwitchTo(before);
    if (vector.dims != index.dims) return false;
    memcpy(state->vectors + Size{state->query_count} * index.dims, vector.values,
           index.dims * sizeof(float));
    return true;
}

void begin_batch(BatchScan* state, uint32 rows) {
    MemoryContextReset(state->rows_context);
    const auto alloc = [state](Size bytes) {
        return MemoryContextAllocHuge(state->rows_context, bytes);
    };
    state->rows = static_cast<BufferedRow*>(alloc(rows * sizeof(BufferedRow)));
    state->vectors =
        static_cast<float*>(alloc(Size{rows} * state->indexes[0].index.dims * sizeof(float)));
    state->row_room = rows;
    state->row_count = state->next_row = state->query_count = 0;
    state->window_begin = state->window_count = 0;
    state->near = {};
    state->searched = false;
}

// Parameters of all queries, for conditions: they point to the rows' tuples.
void keep_query_parameters(BatchScan* state) {
    if (!state->row_context) return;
    state->query_parameters = static_cast<ParamExecData*>(MemoryContextAllocHuge(
        state->rows_context, Max(Size{state->query_count}, Size{1}) *
                                 static_cast<Size>(Max(state->parameter_count, 1)) *
                                 sizeof(ParamExecData)));
    for (uint32 i = 0; i < state->row_count; ++i) {
        const BufferedRow& row = state->rows[i];
        if (row.query < 0) continue;
        ExecStoreMinimalTuple(row.tuple, state->stored, false);
        set_parameters(state, state->stored);
        keep_parameters(
            state, state->query_parameters +
                       static_cast<Size>(row.query) * static_cast<Size>(state->parameter_count));
    }
}

// Reads rows ahead, after a first one, and searches for them.
void read_batch(BatchScan* state, TupleTableSlot* slot) {
    const bool ahead = state->wants_device;
    const uint32 most = ahead ? device_queries(state) : most_queries(state);
    // The caller may stop early. So the first batch is just worth its lists, and later ones grow.
    constexpr uint32 first_rows = 64;
    if (state->batch_rows == 0) state->batch_rows = std::max(first_rows, 2 * least_queries(state));
    begin_batch(state, ahead ? most : std::min(state->batch_rows, most));
    state->batch_rows = std::min(4 * Size{state->batch_rows}, Size{most});

    // A device takes no lists, whose memory is for rows then.
    const Size most_bytes =
        std::max(static_cast<Size>(work_mem) * 1024, ahead ? batch_memory().lists : Size{0});
    Size bytes = 0;
    while (slot) {
        CHECK_FOR_INTERRUPTS();
        const MemoryContext before = MemoryContextSwitchTo(state->rows_context);
        BufferedRow* row = &state->rows[state->row_count++];
        row->tuple = ExecCopySlotMinimalTuple(slot);
        MemoryContextSwitchTo(before);
        bytes += row->tuple->t_len;
        row->query = -1;
        if (add_query(state, slot)) row->query = static_cast<int32>(state->query_count++);
        keep_parameters(state, state->parameters);
        const bool has_room = state->row_count < state->row_room && bytes < most_bytes;
        slot = has_room ? read_row(state) : nullptr;
    }
    state->has_parameters = true;
    keep_query_parameters(state);
    const bool found =
        ahead && state->query_count > 0 && device_pays(state) && find_on_device(state);
    if (found || (state->query_count > 0 &&
                  std::min(state->query_count, most_queries(state)) >= least_queries(state)))
        search_window(state, 0);
    else if (bytes >= most_bytes)
        state->gave_up = true;  // memory never holds enough rows
    state->singles += state->row_count - (state->searched ? state->query_count : 0);
}

TupleTableSlot* buffered_row(BatchScan* state, uint32 number) {
    ExecStoreMinimalTuple(state->rows[number].tuple, state->stored, false);
    return store_values(state->stored, state->result);
}

// --- the custom scan

void begin_custom(CustomScanState* node, EState* estate, int flags) {
    auto* state = static_cast<BatchScan*>(node);
    const auto* plan = reinterpret_cast<const CustomScan*>(node->ss.ps.plan);
    state->child = ExecInitNode(static_cast<Plan*>(linitial(plan->custom_plans)), estate, flags);
    node->custom_ps = list_make1(state->child);
    state->wants_device = intVal(linitial(plan->custom_private)) != 0;
    state->stored =
        ExecInitExtraTupleSlot(estate, node->ss.ps.ps_ResultTupleDesc, &TTSOpsMinimalTuple);
    state->result = ExecInitExtraTupleSlot(estate, node->ss.ps.ps_ResultTupleDesc, &TTSOpsVirtual);
    scans_made = true;
}

TupleTableSlot* exec_custom(CustomScanState* node) {
    auto* state = static_cast<BatchScan*>(node);
    if (state->next_row == state->row_count) {
        state->next_row = state->row_count = 0;
        if (state->has_parameters) restore_parameters(state);
        state->has_parameters = false;
        // Read first: without a row, nothing of the indexes is read.
        TupleTableSlot* row = read_row(state);
        if (!row) return ExecClearTuple(state->result);
        // In a recheck of EvalPlanQual, the node is not bound.
        if (!state->join || !open_batches(state) || (!state->wants_device && !batches_pay(state))) {
            ++state->singles;
            return row;
        }
        read_batch(state, row);
    }
    // If there are more queries than a batch can have: the next ones.
    const int32 query = state->rows[state->next_row].query;
    const uint32 end = state->window_begin + state->window_count;
    if (state->searched && query >= 0 && static_cast<uint32>(query) >= end && !state->gave_up)
        search_window(state, end);
    return buffered_row(state, state->next_row++);
}

void rescan_custom(CustomScanState* node) {
    auto* state = static_cast<BatchScan*>(node);
    ExecClearTuple(state->stored);
    ExecClearTuple(state->result);
    state->next_row = state->row_count = 0;
    state->searched = state->ended = state->has_parameters = false;
    state->batch_rows = 0;
    if (node->ss.ps.chgParam) UpdateChangedParamSet(state->child, node->ss.ps.chgParam);
    if (!state->child->chgParam) ExecReScan(state->child);
}

void end_custom(CustomScanState* node) {
    auto* state = static_cast<BatchScan*>(node);
    stop_giving(state);
    state->row_count = state->next_row = 0;
    for (int i = 0; i < state->index_count; ++i)
        if (state->indexes[i].batch) close_knn_batch(state->indexes[i].batch);
    state->index_count = 0;
    ExecEndNode(state->child);
}

void explain_custom(CustomScanState* node, List*, ExplainState* es) {
    const auto* state = static_cast<const BatchScan*>(node);
    const List* told = reinterpret_cast<const CustomScan*>(node->ss.ps.plan)->custom_private;
    const List* indexes = static_cast<const List*>(lsecond(told));
    List* names = NIL;
    for (const ListCell* cell = list_head(indexes); cell; cell = lnext(indexes, cell))
        names = lappend(names, get_rel_name(lfirst_oid(cell)));
    ExplainPropertyList(list_length(names) > 1 ? "Indexes" : "Index", names, es);
    if (!es->analyze) return;
    const bool served = std::any_of(
        state->indexes, state->indexes + state->index_count,
        [](const SearchedIndex& index) { return index.batch && effort_of(index.batch).served; });
    ExplainPropertyText("Executor", state->by_device ? "device" : served ? "service" : "cpu", es);
    ExplainPropertyInteger("Batches", nullptr, state->batches, es);
    ExplainPropertyInteger("Queries", nullptr, state->queries, es);
    ExplainPropertyInteger("Single Scans", nullptr, state->singles, es);
    // Partitions differ.
    if (state->index_count != 1 || !state->indexes[0].batch) return;
    const KnnEffort effort = effort_of(state->indexes[0].batch);
    if (effort.exact) {
        ExplainPropertyText("Search", "exact", es);
    } else if (effort.lists > 0) {
        ExplainPropertyInteger("Lists", nullptr, effort.lists, es);
        ExplainPropertyInteger("Probes", nullptr, effort.probes, es);
        ExplainPropertyInteger("Candidates", nullptr, effort.candidates, es);
    }
}

constexpr CustomExecMethods exec_methods = custom_exec_methods(
    batch_scan_name, begin_custom, exec_custom, end_custom, rescan_custom, explain_custom);
const CustomScanMethods scan_methods = custom_scan_methods<BatchScan, exec_methods>;

// --- binding custom scans to index scans

void begin_giving(BatchScan* state) {
    state->next = giving;
    giving = state;
    state->callback = {stop_giving, state, nullptr};
    MemoryContextRegisterResetCallback(state->ss.ps.state->es_query_cxt, &state->callback);
}

bool find_joins(PlanState* node, void*) {
    if (!node) return false;
    if (IsA(node, NestLoopState)) {
        PlanState* outer = outerPlanState(node);
        if (IsA(outer, CustomScanState) &&
            reinterpret_cast<CustomScanState*>(outer)->methods == &exec_methods) {
            BatchScan* state = reinterpret_cast<BatchScan*>(outer);
            // A subplan is met twice.
            if (!state->join && bind_scan(state, reinterpret_cast<NestLoopState*>(node)))
                begin_giving(state);
        }
    }
    compat_planstate_walk(node, find_joins, nullptr);
    return false;
}

void start_executor(QueryDesc* query, int flags) {
    if (previous_hook)
        previous_hook(query, flags);
    else
        standard_ExecutorStart(query, flags);
    if (!scans_made || (flags & EXEC_FLAG_EXPLAIN_ONLY)) return;
    scans_made = false;
    find_joins(query->planstate, nullptr);
    for (const ListCell* cell = list_head(query->estate->es_subplanstates); cell;
         cell = lnext(query->estate->es_subplanstates, cell))
        find_joins(static_cast<PlanState*>(lfirst(cell)), nullptr);
}

}  // namespace

BatchMemory batch_memory() {
    // Copies of lists serve all rows of the join, as a hash table does. 64 MB by default.
    constexpr Size work_mems = 16;
    const Size bytes = work_mems * static_cast<Size>(work_mem) * 1024;
    return {bytes / 4, bytes * 3 / 4};
}

Size memory_of_lists(Size all, int indexes, double part) {
    // Half of the memory is shared out by pages; the other half equally, for models.
    const double half = static_cast<double>(all) / 2;
    return static_cast<Size>(half / indexes + half * part);
}

List* make_batch_private(List* indexes, bool on_device) {
    return list_make2(makeInteger(on_device), indexes);
}

Plan* make_batch_scan(List* target, List* custom_private, Plan* child) {
    return &make_custom_scan(target, list_make1(child), custom_private, &scan_methods)->scan.plan;
}

void install_join_executor() {
    RegisterCustomScanMethods(&scan_methods);
    give_rows = give_found_rows;
    previous_hook = ExecutorStart_hook;
    ExecutorStart_hook = start_executor;
}

}  // namespace pgwarp
