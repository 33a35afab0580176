// The custom scan: has the bitmap made, tells the ordered scan its rows, and passes on that scan's.
//
// The bitmap stays for the rescans that do not change its parameters: it has all rows that the
// query's snapshot sees and that pass.

#include <algorithm>

#include "extension/scan/limit.h"
#include "extension/bitmap/bitmap_scan.h"

extern "C" {
#include "executor/executor.h"
#include "nodes/plannodes.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

enum class Way { ranked, lists, filtered };
constexpr const char* way_names[] = {"bitmap rows", "lists for bitmap rows", "lists for all rows"};

struct BitmapScan {
    CustomScanState custom;
    BitmapPlan plan;
    PlanState* search;  // the ordered scan
    PlanState* bitmap;
    MemoryContext context;  // of `rows`
    const RowSet* rows;     // null: the bitmap has to be made
    bool told;              // the ordered scan has the rows
    int64 made;             // bitmaps
    int64 taken[3];         // ways, by Way
};

BitmapScan* state_of(CustomScanState* node) {
    return reinterpret_cast<BitmapScan*>(node);
}

// --- the bitmap

void read_bitmap(BitmapScan* state) {
    MemoryContextReset(state->context);
    Node* result = MultiExecProcNode(state->bitmap);
    if (!result || !IsA(result, TIDBitmap)) elog(ERROR, "unrecognized result from subplan");
    auto* bitmap = reinterpret_cast<TIDBitmap*>(result);
    const MemoryContext before = MemoryContextSwitchTo(state->context);
    state->rows =
        make_row_set(bitmap, RelationGetNumberOfBlocks(state->custom.ss.ss_currentRelation));
    MemoryContextSwitchTo(before);
    tbm_free(bitmap);
    ++state->made;
}

// Rows of the bitmap; of lossy pages, as many as pages of the table have.
double bitmap_rows(const BitmapScan* state) {
    return static_cast<double>(state->rows->exact_rows) +
           static_cast<double>(state->rows->lossy_pages) * state->plan.rows_of_page;
}

Way choose_way(const BitmapScan* state) {
    const double rows = bitmap_rows(state);
    if (rows <= state->plan.most_ranked) return Way::ranked;
    return rows < state->plan.least_filtered ? Way::lists : Way::filtered;
}

void begin_search(BitmapScan* state) {
    state->told = true;
    // A recheck of EvalPlanQual has its rows.
    if (state->custom.ss.ps.state->es_epq_active) return;
    if (!state->rows) read_bitmap(state);
    const Way way = choose_way(state);
    ++state->taken[static_cast<int>(way)];
    BitmapOfScan told = {state->rows, state->plan.passing, way == Way::ranked};
    if (way == Way::filtered) {
        const double all = state->plan.rows_of_page * std::max<double>(state->rows->end, 1);
        told = {nullptr, state->plan.passing * bitmap_rows(state) / std::max(all, 1.0), false};
    }
    set_bitmap(reinterpret_cast<IndexScanState*>(state->search), told);
}

// --- the custom scan

void begin_custom(CustomScanState* node, EState* estate, int flags) {
    BitmapScan* state = state_of(node);
    const auto* scan = reinterpret_cast<const CustomScan*>(node->ss.ps.plan);
    state->plan = bitmap_plan_of(scan);
    state->search = ExecInitNode(static_cast<Plan*>(linitial(scan->custom_plans)), estate, flags);
    state->bitmap = ExecInitNode(static_cast<Plan*>(lsecond(scan->custom_plans)), estate, flags);
    node->custom_ps = list_make2(state->search, state->bitmap);
    state->context =
        AllocSetContextCreate(estate->es_query_cxt, "ivfpq bitmap scan", ALLOCSET_DEFAULT_SIZES);
}

TupleTableSlot* exec_custom(CustomScanState* node) {
    BitmapScan* state = state_of(node);
    TupleTableSlot* slot = node->ss.ss_ScanTupleSlot;
    ProjectionInfo* projection = node->ss.ps.ps_ProjInfo;
    if (!state->told) begin_search(state);
    TupleTableSlot* row = ExecProcNode(state->search);
    ExecClearTuple(slot);
    if (TupIsNull(row)) return projection ? ExecClearTuple(projection->pi_state.resultslot) : slot;
    // Expressions over this node's rows were made for virtual tuples.
    const int count = slot->tts_tupleDescriptor->natts;
    slot_getallattrs(row);
    std::copy_n(row->tts_values, count, slot->tts_values);
    std::copy_n(row->tts_isnull, count, slot->tts_isnull);
    ExecStoreVirtualTuple(slot);
    // For WHERE CURRENT OF.
    const TupleTableSlot* scanned = reinterpret_cast<::ScanState*>(state->search)->ss_ScanTupleSlot;
    slot->tts_tid = scanned->tts_tid;
    slot->tts_tableOid = scanned->tts_tableOid;
    if (!projection) return slot;
    ExprContext* context = node->ss.ps.ps_ExprContext;
    ResetExprContext(context);
    context->ecxt_scantuple = slot;
    return ExecProject(projection);
}

void rescan_custom(CustomScanState* node) {
    BitmapScan* state = state_of(node);
    ExecClearTuple(node->ss.ss_ScanTupleSlot);
    if (node->ss.ps.chgParam) {
        UpdateChangedParamSet(state->search, node->ss.ps.chgParam);
        UpdateChangedParamSet(state->bitmap, node->ss.ps.chgParam);
    }
    // The ordered scan drops what it has of the rows before these go.
    ExecReScan(state->search);
    if (state->bitmap->chgParam) state->rows = nullptr;
    if (!state->rows && !state->bitmap->chgParam) ExecReScan(state->bitmap);
    state->told = false;
}

void end_custom(CustomScanState* node) {
    BitmapScan* state = state_of(node);
    ExecEndNode(state->search);
    ExecEndNode(state->bitmap);
}

// --- EXPLAIN

void explain_custom(CustomScanState* node, List*, ExplainState* es) {
    const BitmapScan* state = state_of(node);
    if (!es->analyze || state->made == 0) return;
    List* ways = NIL;
    for (int i = 0; i < 3; ++i)
        if (state->taken[i] > 0) ways = lappend(ways, const_cast<char*>(way_names[i]));
    ExplainPropertyList("Searched", ways, es);
    if (state->made > 1) ExplainPropertyInteger("Bitmaps", nullptr, state->made, es);
    if (!state->rows) return;
    ExplainPropertyInteger("Bitmap Rows", nullptr, state->rows->exact_rows, es);
    ExplainPropertyInteger("Exact Heap Blocks", nullptr, state->rows->exact_pages, es);
    ExplainPropertyInteger("Lossy Heap Blocks", nullptr, state->rows->lossy_pages, es);
}

const CustomExecMethods exec_methods = [] {
    CustomExecMethods methods = {};
    methods.CustomName = bitmap_scan_name;
    methods.BeginCustomScan = begin_custom;
    methods.ExecCustomScan = exec_custom;
    methods.EndCustomScan = end_custom;
    methods.ReScanCustomScan = rescan_custom;
    methods.ExplainCustomScan = explain_custom;
    return methods;
}();

Node* create_state(CustomScan*) {
    auto* state = static_cast<BitmapScan*>(palloc0(sizeof(BitmapScan)));
    NodeSetTag(state, T_CustomScanState);
    state->custom.methods = &exec_methods;
    return reinterpret_cast<Node*>(state);
}

}  // namespace

const CustomScanMethods bitmap_scan_methods = {bitmap_scan_name, create_state};

List* make_bitmap_private(const BitmapPlan& plan) {
    List* told = NIL;
    for (const double number :
         {plan.most_ranked, plan.least_filtered, plan.passing, plan.rows_of_page})
        // With an exponent: a plan that is written as text and read again has whole numbers as
        // Integer nodes otherwise.
        told = lappend(told, makeFloat(psprintf("%.9e", number)));
    return told;
}

BitmapPlan bitmap_plan_of(const CustomScan* scan) {
    const auto number = [scan](int i) { return floatVal(list_nth(scan->custom_private, i)); };
    return {number(0), number(1), number(2), number(3)};
}

}  // namespace pgwarp
