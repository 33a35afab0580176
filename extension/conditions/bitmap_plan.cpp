// Adds a custom scan for each ordered path of an ivfpq index, where another index has conditions.

#include <algorithm>
#include <cmath>

#include "extension/am/bitmap_costs.h"
#include "extension/conditions/bitmap_scan.h"
#include "extension/conditions/condition_scan.h"
#include "extension/scan/limit.h"
#include "extension/table/planned.h"

extern "C" {
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "optimizer/paths.h"
}

namespace pgwarp {

namespace {

set_rel_pathlist_hook_type previous_hook = nullptr;

// --- paths

// The indexes that may have a bitmap for conditions of the table, copied without plain index scans.
List* bitmap_indexes(RelOptInfo* relation) {
    List* indexes = NIL;
    for (const ListCell* cell = list_head(relation->indexlist); cell;
         cell = lnext(relation->indexlist, cell)) {
        const auto* index = lfirst_node(IndexOptInfo, cell);
        if (!index->amhasgetbitmap) continue;
        IndexOptInfo* copy = makeNode(IndexOptInfo);
        *copy = *index;
        copy->rel = relation;
        copy->amhasgettuple = false;
        indexes = lappend(indexes, copy);
    }
    return indexes;
}

// PostgreSQL's bitmap path for the table's conditions; null: it has none. The planner drops one
// that costs more than another path, so it is made again for a copy of the relation, without plain
// index scans and joins.
BitmapHeapPath* make_bitmap_path(PlannerInfo* root, const RelOptInfo* relation) {
    RelOptInfo* copy = makeNode(RelOptInfo);
    *copy = *relation;
    copy->indexlist = bitmap_indexes(copy);
    if (copy->indexlist == NIL) return nullptr;
    copy->pathlist = copy->partial_pathlist = copy->joininfo = NIL;
    copy->has_eclass_joins = copy->consider_parallel = false;
    create_index_paths(root, copy);
    for (const ListCell* cell = list_head(copy->pathlist); cell;
         cell = lnext(copy->pathlist, cell)) {
        Path* path = static_cast<Path*>(lfirst(cell));
        if (IsA(path, BitmapHeapPath) && !path->param_info)
            return reinterpret_cast<BitmapHeapPath*>(path);
    }
    return nullptr;
}

// --- costs

// The bitmap of a path.
struct PlannedBitmap {
    double cost;
    double rows;

    PlannedBitmap(const BitmapHeapPath* path, const RelOptInfo* relation) {
        Selectivity share;
        cost_bitmap_tree_node(path->bitmapqual, &cost, &share);
        rows = std::max(1.0, share * relation->tuples);
        // Copying a row's bit to the row set: not measured.
        cost += 0.1 * cpu_operator_cost * rows;
    }
};

BitmapCosts::Way cheapest_way(const BitmapCosts& costs, double rows) {
    const auto cheaper = [](const BitmapCosts::Way& a, const BitmapCosts::Way& b) {
        return a.first < b.first;
    };
    return std::min({costs.of_rows(rows), costs.of_lists(rows), costs.of_all(rows)}, cheaper);
}

// How the ways compare for some number of rows.
struct ComparedWays {
    double rows;
    double ranked;    // the logarithm of its cost over that of the cheapest other way
    double filtered;  // likewise

    ComparedWays(const BitmapCosts& costs, double rows) : rows(rows) {
        const double of_rows = costs.of_rows(rows).first;
        const double of_lists = costs.of_lists(rows).first;
        const double of_all = costs.of_all(rows).first;
        ranked = std::log(of_rows / std::min(of_lists, of_all));
        filtered = std::log(of_all / std::min(of_lists, of_rows));
    }
};

// Where a way that is the cheapest for `from` rows ceases to be; costs are about powers of the rows
// between two numbers.
double border(const ComparedWays& from, const ComparedWays& to, double ComparedWays::*way) {
    const double part = from.*way / (from.*way - to.*way);
    return from.rows * std::pow(to.rows / from.rows, std::isfinite(part) ? part : 0.5);
}

// From the expected rows on, up to where most rows pass, and down to where few do.
BitmapPlan plan_ways(const BitmapCosts& costs, const RelOptInfo* relation, double expected) {
    // Each number takes some microseconds. Between two, costs are about powers of the rows: see
    // border().
    constexpr double step = 8;
    const double most = std::max(2.0, costs.tuples);
    const ComparedWays start(costs, std::clamp(expected, 1.0, most));
    // A table that has grown has more than `most`.
    BitmapPlan plan = {};
    plan.most_ranked = start.ranked <= 0 ? most : 0;
    plan.least_filtered = start.filtered <= 0 ? 1 : 2 * most;
    for (ComparedWays few = start; few.filtered > 0 && few.rows < most;) {
        const ComparedWays more(costs, std::min(most, few.rows * step));
        if (few.ranked <= 0 && more.ranked > 0)
            plan.most_ranked = border(few, more, &ComparedWays::ranked);
        if (more.filtered <= 0) plan.least_filtered = border(more, few, &ComparedWays::filtered);
        few = more;
    }
    for (ComparedWays more = start; more.ranked > 0 && more.rows > 1;) {
        const ComparedWays few(costs, std::max(1.0, more.rows / step));
        if (few.filtered > 0 && more.filtered <= 0)
            plan.least_filtered = border(more, few, &ComparedWays::filtered);
        if (few.ranked <= 0) plan.most_ranked = border(few, more, &ComparedWays::ranked);
        more = few;
    }
    plan.passing = costs.passing;
    plan.rows_of_page = costs.tuples / std::max(1.0, static_cast<double>(relation->pages));
    return plan;
}

// --- the path

Plan* plan_custom_path(PlannerInfo* root, RelOptInfo* relation, CustomPath* path, List* target,
                       List*, List* children) {
    auto* ordered = static_cast<IndexPath*>(linitial(path->custom_paths));
    const auto* heap_path = static_cast<const BitmapHeapPath*>(lsecond(path->custom_paths));
    auto* search = castNode(IndexScan, linitial(children));
    const auto* heap = castNode(BitmapHeapScan, lsecond(children));
    const PlannedBitmap bitmap(heap_path, relation);
    const BitmapCosts costs(root, ordered, bitmap.rows);
    set_search_costs(search, path, bitmap.cost);
    CustomScan* scan = make_custom_scan(
        target, list_make2(search, heap->scan.plan.lefttree),
        make_bitmap_private(plan_ways(costs, relation, bitmap.rows)), &bitmap_scan_methods);
    scan->scan.scanrelid = relation->relid;
    return &scan->scan.plan;
}

const CustomPathMethods path_methods = {bitmap_scan_name, plan_custom_path, nullptr};

void add_custom_path(PlannerInfo* root, RelOptInfo* relation, IndexPath* ordered,
                     BitmapHeapPath* heap_path) {
    const PlannedBitmap bitmap(heap_path, relation);
    const BitmapCosts costs(root, ordered, bitmap.rows);
    BitmapCosts::Way way = cheapest_way(costs, bitmap.rows);
    // To find where other ways are cheaper, for the plan.
    constexpr double borders = 60000;
    way.startup += borders * cpu_operator_cost;
    way.total += borders * cpu_operator_cost;
    CustomPath* path = make_custom_path(list_make2(ordered, heap_path), &path_methods);
    path->path.startup_cost = bitmap.cost + way.startup + relation->baserestrictcost.startup +
                              relation->reltarget->cost.startup;
    // What the executor takes for the rows is that of the ordered scan.
    path->path.total_cost =
        bitmap.cost + way.total + std::max(0.0, ordered->path.total_cost - ordered->indextotalcost);
    path->path.total_cost = std::max(path->path.total_cost, path->path.startup_cost);
    add_path(relation, &path->path);
}

void add_custom_paths(PlannerInfo* root, RelOptInfo* relation) {
    // Conditions without a column become a Result above each child.
    if (!enable_indexscan || !enable_bitmapscan || relation->baserestrictinfo == NIL ||
        root->hasPseudoConstantQuals)
        return;
    const List* ordered = ordered_paths(relation);
    if (ordered == NIL) return;
    BitmapHeapPath* bitmap = make_bitmap_path(root, relation);
    if (!bitmap) return;
    for (const ListCell* cell = list_head(ordered); cell; cell = lnext(ordered, cell))
        add_custom_path(root, relation, static_cast<IndexPath*>(lfirst(cell)), bitmap);
}

void set_paths(PlannerInfo* root, RelOptInfo* relation, Index number, RangeTblEntry* entry) {
    if (previous_hook) previous_hook(root, relation, number, entry);
    if (entry->rtekind == RTE_RELATION && !entry->inh && !entry->tablesample &&
        !IS_DUMMY_REL(relation))
        add_custom_paths(root, relation);
}

}  // namespace

void install_bitmap_scans() {
    RegisterCustomScanMethods(&bitmap_scan_methods);
    previous_hook = install_path_hook(set_paths);
}

}  // namespace pgwarp
