// Adds a custom scan for each ordered path of an ivfpq index that has the column of a semi-join.

#include <algorithm>
#include <cmath>

#include "extension/am/bitmap_costs.h"
#include "extension/conditions/condition_scan.h"
#include "extension/conditions/semi_join.h"
#include "extension/scan/limit.h"
#include "extension/types/attribute.h"

extern "C" {
#include "nodes/nodeFuncs.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "optimizer/paths.h"
#include "utils/lsyscache.h"
#include "utils/typcache.h"
}

namespace pgwarp {

namespace {

set_join_pathlist_hook_type previous_hook = nullptr;

// The condition of a semi-join, `column = key`.
struct SemiJoin {
    Expr* column;  // of the ordered side
    Expr* key;     // of the other side
    const OpExpr* condition;
};

// The column itself, which a side's rows have, without a cast to a type that is stored alike.
const Expr* column_of(const Expr* expression) {
    while (IsA(expression, RelabelType))
        expression = reinterpret_cast<const RelabelType*>(expression)->arg;
    return expression;
}

bool is_column(const Expr* expression) {
    const Expr* column = column_of(expression);
    return IsA(column, Var) && reinterpret_cast<const Var*>(column)->varattno > 0;
}

// Keys are sorted, and rows' values looked up, by the type's usual order: the operator has to be
// the equality of that.
bool compares_in_order(const OpExpr* condition, Oid type) {
    const TypeCacheEntry* cache = lookup_type_cache(type, TYPECACHE_EQ_OPR | TYPECACHE_CMP_PROC);
    return cache->eq_opr == condition->opno && OidIsValid(cache->cmp_proc);
}

// Whether the restrictions of a join are one equality of a column of each side.
bool find_condition(const List* restrictions, const RelOptInfo* outer, SemiJoin* join) {
    if (list_length(restrictions) != 1) return false;
    const auto* restriction = linitial_node(RestrictInfo, restrictions);
    // A binary operator with different relations on its sides. That these are the sides of the join
    // is known when both have the columns (add_paths).
    if (!restriction->can_join) return false;
    const auto* condition = reinterpret_cast<const OpExpr*>(restriction->clause);
    auto* left = static_cast<Expr*>(linitial(condition->args));
    auto* right = static_cast<Expr*>(lsecond(condition->args));
    if (!is_column(left) || !is_column(right)) return false;
    if (bms_is_subset(restriction->left_relids, outer->relids))
        *join = {left, right, condition};
    else
        *join = {right, left, condition};
    const Oid type = exprType(reinterpret_cast<const Node*>(join->column));
    return type == exprType(reinterpret_cast<const Node*>(join->key)) &&
           compares_in_order(condition, type);
}

// Whether the join has a row of the outer side at most once, and none of the inner side's columns.
bool is_semi_join(const RelOptInfo* relation, const RelOptInfo* inner, JoinType type,
                  const JoinPathExtraData* extra, PlannerInfo* root) {
    if (type == JOIN_SEMI) return true;
    if (type != JOIN_INNER || !extra->inner_unique) return false;
    const Relids relids = pull_varnos(root, reinterpret_cast<Node*>(relation->reltarget->exprs));
    return !bms_overlap(relids, inner->relids);
}

// The index column that is the attribute; 0: the index has none.
int attribute_of_index(IndexOptInfo* info, const SemiJoin& join) {
    for (int i = 1; i < info->nkeycolumns; ++i)
        if (match_index_to_operand(reinterpret_cast<Node*>(join.column), i, info) &&
            info->indexcollations[i] == join.condition->inputcollid &&
            get_op_opfamily_strategy(join.condition->opno, info->opfamily[i]) ==
                static_cast<int>(AttributeStrategy::equal))
            return i + 1;
    return 0;
}

AttrNumber place_in(const List* target, const Expr* expression) {
    for (const ListCell* cell = list_head(target); cell; cell = lnext(target, cell))
        if (equal(lfirst_node(TargetEntry, cell)->expr, expression))
            return lfirst_node(TargetEntry, cell)->resno;
    elog(ERROR, "a side of a semi-join lacks its column");
}

Plan* plan_custom_path(PlannerInfo*, RelOptInfo*, CustomPath* path, List* target, List*,
                       List* children) {
    auto* search = castNode(IndexScan, linitial(children));
    const auto* keys = static_cast<const Plan*>(lsecond(children));
    const auto* column = static_cast<const Expr*>(linitial(path->custom_private));
    const auto* key = static_cast<const Expr*>(lsecond(path->custom_private));
    const auto* numbers = static_cast<const List*>(lthird(path->custom_private));
    SemiJoinPlan plan = {};
    plan.column = place_in(search->scan.plan.targetlist, column_of(column));
    plan.key_column = place_in(keys->targetlist, column_of(key));
    plan.attribute = static_cast<int>(linitial_oid(numbers));
    plan.equality = lsecond_oid(numbers);
    plan.collation = lthird_oid(numbers);
    plan.type = exprType(reinterpret_cast<const Node*>(column));
    set_search_costs(search, path, keys->total_cost);
    return &make_custom_scan(target, children, make_semi_join_private(plan), &semi_join_methods)
                ->scan.plan;
}

const CustomPathMethods path_methods = {semi_join_name, plan_custom_path, nullptr};

void add_path_of(PlannerInfo* root, RelOptInfo* relation, const RelOptInfo* outer, Path* keys,
                 IndexPath* ordered, const SemiJoin& join, int attribute) {
    const double share = std::clamp(relation->rows / std::max(outer->rows, 1.0), least_share, 1.0);
    const KeyedCost cost = cost_with_keys(root, ordered, share, relation->rows);
    CustomPath* path = make_custom_path(list_make2(ordered, keys), &path_methods);
    path->path.parent = relation;
    path->path.pathtarget = relation->reltarget;
    path->path.rows = relation->rows;
    // Keys are sorted, and rows' values looked up.
    const double sort = comparison_cost() * std::log2(keys->rows + 2);
    const double before = keys->total_cost + keys->rows * sort;
    path->path.startup_cost = before + cost.startup + relation->reltarget->cost.startup;
    path->path.total_cost =
        std::max(path->path.startup_cost,
                 before + cost.total + relation->rows * (cpu_tuple_cost + sort) +
                     std::max(0.0, ordered->path.total_cost - ordered->indextotalcost) * share);
    path->custom_private =
        list_make3(join.column, join.key,
                   list_make3_oid(static_cast<Oid>(attribute), join.condition->opno,
                                  join.condition->inputcollid));
    add_path(relation, &path->path);
}

void add_paths(PlannerInfo* root, RelOptInfo* relation, const RelOptInfo* outer,
               const RelOptInfo* inner, JoinType type, const JoinPathExtraData* extra) {
    // LIMIT says how many rows the scan searches for only where no other join is above. Rows that
    // are locked or changed would be read again, one by one.
    if (!enable_indexscan || outer->reloptkind != RELOPT_BASEREL ||
        outer->rtekind != RTE_RELATION || root->parse->commandType != CMD_SELECT ||
        root->hasPseudoConstantQuals || root->rowMarks != NIL ||
        !bms_is_subset(root->all_baserels, relation->relids) ||
        !is_semi_join(relation, inner, type, extra, root))
        return;
    SemiJoin join;
    Path* keys = inner->cheapest_total_path;
    if (!keys || PATH_REQ_OUTER(keys) || !bms_is_empty(outer->lateral_relids) ||
        !find_condition(extra->restrictlist, outer, &join) ||
        !list_member(inner->reltarget->exprs, column_of(join.key)) ||
        !list_member(outer->reltarget->exprs, column_of(join.column)))
        return;
    const List* paths = ordered_paths(outer);
    for (const ListCell* cell = list_head(paths); cell; cell = lnext(paths, cell)) {
        auto* ordered = static_cast<IndexPath*>(lfirst(cell));
        const int attribute = attribute_of_index(ordered->indexinfo, join);
        if (attribute > 0) add_path_of(root, relation, outer, keys, ordered, join, attribute);
    }
}

void plan_join(PlannerInfo* root, RelOptInfo* relation, RelOptInfo* outer, RelOptInfo* inner,
               JoinType type, JoinPathExtraData* extra) {
    if (previous_hook) previous_hook(root, relation, outer, inner, type, extra);
    add_paths(root, relation, outer, inner, type, extra);
}

}  // namespace

void install_semi_joins() {
    RegisterCustomScanMethods(&semi_join_methods);
    previous_hook = set_join_pathlist_hook;
    set_join_pathlist_hook = plan_join;
}

}  // namespace pgwarp
