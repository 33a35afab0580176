// The custom scan of a bitmap: makes the bitmap, tells the ordered scan its rows, and passes on
// that scan's.

#include <algorithm>

#include "extension/scan/limit.h"
#include "extension/conditions/bitmap_scan.h"
#include "extension/conditions/condition_scan.h"

extern "C" {
#include "executor/executor.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

enum class Way { ranked, lists, filtered };
constexpr const char* way_names[] = {"bitmap rows", "lists for bitmap rows", "lists for all rows"};

struct BitmapScan : ConditionScan {
    BitmapPlan plan;
    const RowSet* rows;
    int64 bitmaps;                     // that were made
    int64 taken[lengthof(way_names)];  // ways, by Way
};

// --- the bitmap

void read_bitmap(BitmapScan* state) {
    MemoryContextReset(state->context);
    Node* result = MultiExecProcNode(state->source);
    if (!result || !IsA(result, TIDBitmap)) elog(ERROR, "unrecognized result from subplan");
    auto* bitmap = reinterpret_cast<TIDBitmap*>(result);
    const MemoryContext before = MemoryContextSwitchTo(state->context);
    state->rows = make_row_set(bitmap, RelationGetNumberOfBlocks(state->ss.ss_currentRelation));
    MemoryContextSwitchTo(before);
    tbm_free(bitmap);
    state->made = true;
    ++state->bitmaps;
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
    if (state->ss.ps.state->es_epq_active) return;
    if (!state->made) read_bitmap(state);
    const Way way = choose_way(state);
    ++state->taken[static_cast<int>(way)];
    BitmapOfScan told = {state->rows, state->plan.passing, way == Way::ranked};
    if (way == Way::filtered) {
        const double all = state->plan.rows_of_page * std::max<double>(state->rows->end, 1);
        told = {nullptr, state->plan.passing * bitmap_rows(state) / std::max(all, 1.0), false};
    }
    set_bitmap(state->search, told);
}

// --- the custom scan

void begin_custom(CustomScanState* node, EState* estate, int flags) {
    auto* state = static_cast<BitmapScan*>(node);
    begin_children(state, estate, flags);
    state->plan = bitmap_plan_of(reinterpret_cast<const CustomScan*>(node->ss.ps.plan));
    state->context =
        AllocSetContextCreate(estate->es_query_cxt, "ivfpq bitmap scan", ALLOCSET_DEFAULT_SIZES);
}

TupleTableSlot* exec_custom(CustomScanState* node) {
    auto* state = static_cast<BitmapScan*>(node);
    if (!state->told) begin_search(state);
    TupleTableSlot* row = project_row(node, ExecProcNode(&state->search->ss.ps));
    // For WHERE CURRENT OF.
    const TupleTableSlot* scanned = state->search->ss.ss_ScanTupleSlot;
    node->ss.ss_ScanTupleSlot->tts_tid = scanned->tts_tid;
    node->ss.ss_ScanTupleSlot->tts_tableOid = scanned->tts_tableOid;
    return row;
}

// --- EXPLAIN

void explain_custom(CustomScanState* node, List*, ExplainState* es) {
    const auto* state = static_cast<const BitmapScan*>(node);
    if (!es->analyze || state->bitmaps == 0) return;
    List* ways = NIL;
    for (Size i = 0; i < lengthof(way_names); ++i)
        if (state->taken[i] > 0) ways = lappend(ways, const_cast<char*>(way_names[i]));
    ExplainPropertyList("Searched", ways, es);
    if (state->bitmaps > 1) ExplainPropertyInteger("Bitmaps", nullptr, state->bitmaps, es);
    if (!state->made) return;
    ExplainPropertyInteger("Bitmap Rows", nullptr, state->rows->exact_rows, es);
    ExplainPropertyInteger("Exact Heap Blocks", nullptr, state->rows->exact_pages, es);
    ExplainPropertyInteger("Lossy Heap Blocks", nullptr, state->rows->lossy_pages, es);
}

constexpr CustomExecMethods exec_methods = custom_exec_methods(
    bitmap_scan_name, begin_custom, exec_custom, end_children, rescan_children, explain_custom);

}  // namespace

const CustomScanMethods bitmap_scan_methods = custom_scan_methods<BitmapScan, exec_methods>;

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
