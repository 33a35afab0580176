// The custom scan of a semi-join: reads the keys, tells the ordered scan, and passes on its rows
// that have one of them.

#include <algorithm>

#include "extension/scan/limit.h"
#include "extension/conditions/condition_scan.h"
#include "extension/conditions/semi_join.h"
#include "extension/types/attribute.h"

extern "C" {
#include "access/skey.h"
#include "executor/executor.h"
#include "utils/array.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/sortsupport.h"
#include "utils/typcache.h"
}

namespace pgwarp {

namespace {

struct SemiJoinScan : ConditionScan {
    SemiJoinPlan plan;
    SortSupportData order;
    int16 length;  // of the type
    bool by_value;
    char align;
    Datum* keys;  // sorted, each once
    Size count;
    ScanKeyData condition;
};

// --- keys

int compare(const SemiJoinScan* state, Datum a, Datum b) {
    return ApplySortComparator(a, false, b, false, const_cast<SortSupport>(&state->order));
}

int compare_keys(const void* a, const void* b, void* state) {
    return compare(static_cast<const SemiJoinScan*>(state), *static_cast<const Datum*>(a),
                   *static_cast<const Datum*>(b));
}

void sort_keys(SemiJoinScan* state) {
    qsort_arg(state->keys, state->count, sizeof(Datum), compare_keys, state);
    Size kept = 0;
    for (Size i = 0; i < state->count; ++i)
        if (kept == 0 || compare(state, state->keys[kept - 1], state->keys[i]) != 0)
            state->keys[kept++] = state->keys[i];
    state->count = kept;
}

// Null is equal to nothing.
void read_keys(SemiJoinScan* state) {
    MemoryContextReset(state->context);
    Size room = 64;
    state->count = 0;
    state->keys = static_cast<Datum*>(MemoryContextAlloc(state->context, room * sizeof(Datum)));
    while (true) {
        TupleTableSlot* row = ExecProcNode(state->source);
        if (TupIsNull(row)) break;
        bool is_null;
        const Datum key =
            slot_getattr(row, static_cast<AttrNumber>(state->plan.key_column), &is_null);
        if (is_null) continue;
        if (state->count == room)
            state->keys =
                static_cast<Datum*>(repalloc_huge(state->keys, (room *= 2) * sizeof(Datum)));
        const MemoryContext before = MemoryContextSwitchTo(state->context);
        state->keys[state->count++] = datumCopy(key, state->by_value, state->length);
        MemoryContextSwitchTo(before);
    }
    sort_keys(state);
}

bool has_key(const SemiJoinScan* state, Datum value) {
    const Datum* end = state->keys + state->count;
    const Datum* at =
        std::lower_bound(static_cast<const Datum*>(state->keys), end, value,
                         [state](Datum a, Datum b) { return compare(state, a, b) < 0; });
    return at != end && compare(state, *at, value) == 0;
}

void make_condition(SemiJoinScan* state) {
    const MemoryContext before = MemoryContextSwitchTo(state->context);
    const ArrayType* array =
        construct_array(state->keys, static_cast<int>(state->count), state->plan.type,
                        state->length, state->by_value, state->align);
    ScanKeyEntryInitialize(
        &state->condition, SK_SEARCHARRAY, static_cast<AttrNumber>(state->plan.attribute),
        static_cast<StrategyNumber>(AttributeStrategy::equal), state->plan.type,
        state->plan.collation, get_opcode(state->plan.equality), PointerGetDatum(array));
    MemoryContextSwitchTo(before);
    state->made = true;
}

void begin_search(SemiJoinScan* state) {
    state->told = true;
    if (!state->made) {
        read_keys(state);
        make_condition(state);
    }
    set_further_key(state->search, &state->condition);
}

// --- the custom scan

void begin_custom(CustomScanState* node, EState* estate, int flags) {
    auto* state = static_cast<SemiJoinScan*>(node);
    begin_children(state, estate, flags);
    state->plan = semi_join_plan_of(reinterpret_cast<const CustomScan*>(node->ss.ps.plan));
    state->context =
        AllocSetContextCreate(estate->es_query_cxt, "ivfpq semi-join", ALLOCSET_DEFAULT_SIZES);
    get_typlenbyvalalign(state->plan.type, &state->length, &state->by_value, &state->align);
    state->order.ssup_cxt = estate->es_query_cxt;
    state->order.ssup_collation = state->plan.collation;
    PrepareSortSupportComparisonShim(
        lookup_type_cache(state->plan.type, TYPECACHE_CMP_PROC)->cmp_proc, &state->order);
}

// The next row of the ordered scan that has a key; null: there is none.
TupleTableSlot* next_row(SemiJoinScan* state) {
    if (state->count == 0) return nullptr;
    while (true) {
        TupleTableSlot* row = ExecProcNode(&state->search->ss.ps);
        if (TupIsNull(row)) return nullptr;
        bool is_null;
        const Datum value =
            slot_getattr(row, static_cast<AttrNumber>(state->plan.column), &is_null);
        if (!is_null && has_key(state, value)) return row;
        InstrCountFiltered1(&state->ss.ps, 1);
    }
}

TupleTableSlot* exec_custom(CustomScanState* node) {
    auto* state = static_cast<SemiJoinScan*>(node);
    if (!state->told) begin_search(state);
    return project_row(node, next_row(state));
}

void explain_custom(CustomScanState* node, List*, ExplainState* es) {
    const auto* state = static_cast<const SemiJoinScan*>(node);
    const auto* search = reinterpret_cast<const IndexScan*>(state->search->ss.ps.plan);
    char* column =
        get_attname(search->indexid, static_cast<AttrNumber>(state->plan.attribute), true);
    if (column) ExplainPropertyText("Column", column, es);
    if (es->analyze && state->made)
        ExplainPropertyInteger("Keys", nullptr, static_cast<int64>(state->count), es);
}

constexpr CustomExecMethods exec_methods = custom_exec_methods(
    semi_join_name, begin_custom, exec_custom, end_children, rescan_children, explain_custom);

}  // namespace

const CustomScanMethods semi_join_methods = custom_scan_methods<SemiJoinScan, exec_methods>;

List* make_semi_join_private(const SemiJoinPlan& plan) {
    return list_make2(list_make3_int(plan.column, plan.key_column, plan.attribute),
                      list_make3_oid(plan.equality, plan.type, plan.collation));
}

SemiJoinPlan semi_join_plan_of(const CustomScan* scan) {
    const auto* places = static_cast<const List*>(linitial(scan->custom_private));
    const auto* types = static_cast<const List*>(lsecond(scan->custom_private));
    return {linitial_int(places), lsecond_int(places), lthird_int(places),
            linitial_oid(types),  lsecond_oid(types),  lthird_oid(types)};
}

}  // namespace pgwarp
