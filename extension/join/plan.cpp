// Recognises joins with the nearest rows, and adds a path that searches for a batch of queries at a
// time.
//
// The inner relation is a LATERAL subquery: ORDER BY a distance from something of the outer
// relation, LIMIT, and an ivfpq index that gives this order. The path is a Nested Loop like the one
// that the planner made, with a custom scan above its outer path. What is not recognised keeps the
// planner's own paths.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "extension/am/callbacks.h"
#include "extension/device/session_device.h"
#include "extension/index/column.h"
#include "extension/index/effort.h"
#include "extension/index/page.h"
#include "extension/join/batch_scan.h"
#include "extension/knn/device.h"
#include "extension/knn/lists.h"
#include "extension/scan/exact.h"
#include "extension/scan/limit.h"
#include "extension/service/client.h"
#include "extension/settings.h"
#include "extension/util/custom_scan.h"

extern "C" {
#include "access/relation.h"
#include "access/sysattr.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "optimizer/paths.h"
#include "utils/lsyscache.h"
}

namespace pgwarp {

namespace {

set_join_pathlist_hook_type previous_hook = nullptr;

// --- the shape

// A walker: whether an expression has a parameter of the executor other than these, or a subplan.
bool has_other_parameter(Node* node, void* known) {
    if (!node) return false;
    if (IsA(node, SubPlan) || IsA(node, AlternativeSubPlan) || IsA(node, SubLink)) return true;
    if (IsA(node, Param)) {
        const Param* parameter = reinterpret_cast<const Param*>(node);
        return parameter->paramkind != PARAM_EXTERN &&
               !(parameter->paramkind == PARAM_EXEC &&
                 list_member_int(static_cast<List*>(known), parameter->paramid));
    }
    return compat_expression_walk(node, has_other_parameter, known);
}

// A walker: whether an expression depends on one of these parameters.
bool has_parameter(Node* node, void* known) {
    if (!node) return false;
    if (IsA(node, Param)) {
        const Param* parameter = reinterpret_cast<const Param*>(node);
        return parameter->paramkind == PARAM_EXEC &&
               list_member_int(static_cast<List*>(known), parameter->paramid);
    }
    return compat_expression_walk(node, has_parameter, known);
}

// The number of rows has to be the same for all queries of a batch.
bool has_constant_limit(const Query* query) {
    return query->limitCount && query->limitOption == LIMIT_OPTION_COUNT &&
           !has_other_parameter(query->limitCount, NIL) &&
           !has_other_parameter(query->limitOffset, NIL) &&
           !contain_volatile_functions(query->limitCount) &&
           !contain_volatile_functions(query->limitOffset);
}

List* parameters_of(const RelOptInfo* subquery) {
    List* numbers = NIL;
    for (const ListCell* cell = list_head(subquery->subplan_params); cell;
         cell = lnext(subquery->subplan_params, cell))
        numbers = lappend_int(numbers, static_cast<PlannerParamItem*>(lfirst(cell))->paramId);
    return numbers;
}

// Whether a condition is IS NOT NULL on the vector, which all entries meet.
bool has_no_effect(const IndexOptInfo* index, const Node* condition) {
    if (!IsA(condition, NullTest)) return false;
    const auto* test = reinterpret_cast<const NullTest*>(condition);
    if (test->nulltesttype != IS_NOT_NULL) return false;
    const int vector = index->indexkeys[0];
    if (vector == 0) return equal(test->arg, linitial(index->indexprs));
    return IsA(test->arg, Var) && reinterpret_cast<const Var*>(test->arg)->varattno == vector;
}

// Whether an expression has the column that the index is on; true for whole rows, too, and where
// the index is on an expression.
bool has_vector(const IndexOptInfo* index, Node* expression) {
    Bitmapset* columns = nullptr;
    pull_varattnos(expression, index->rel->relid, &columns);
    const int vector = index->indexkeys[0];
    return vector == 0 || bms_is_member(vector - FirstLowInvalidHeapAttributeNumber, columns) ||
           bms_is_member(-FirstLowInvalidHeapAttributeNumber, columns);
}

// Whether a batch may check the scan's conditions on rows that it reads, more than once and in any
// order. Bounds on the distance are left to scans, which end there.
bool has_simple_conditions(const IndexPath* path, List* parameters) {
    if (path->path.param_info) return false;
    const List* conditions = path->indexinfo->indrestrictinfo;
    for (const ListCell* cell = list_head(conditions); cell; cell = lnext(conditions, cell)) {
        Node* condition = reinterpret_cast<Node*>(lfirst_node(RestrictInfo, cell)->clause);
        if (has_no_effect(path->indexinfo, condition)) continue;
        if (contain_volatile_functions(condition) || has_other_parameter(condition, parameters) ||
            has_vector(path->indexinfo, condition))
            return false;
    }
    return true;
}

// The share of the rows that pass; 1: there are no conditions.
double passing_share(const IndexPath* path) {
    const RelOptInfo* table = path->indexinfo->rel;
    const List* conditions = path->indexinfo->indrestrictinfo;
    for (const ListCell* cell = list_head(conditions); cell; cell = lnext(conditions, cell))
        if (!has_no_effect(path->indexinfo,
                           reinterpret_cast<Node*>(lfirst_node(RestrictInfo, cell)->clause)))
            return std::clamp(table->rows / std::max(table->tuples, 1.0), 1e-6, 0.999);
    return 1;
}

// Whether a condition compares a partition key with something of the outer row: then each row has
// partitions of its own, which its scan is best left to. The executor finds further conditions.
bool chooses_partitions(const RelOptInfo* table, List* parameters) {
    if (!enable_partition_pruning || !table->part_scheme) return false;
    const auto compares_key = [table](const OpExpr* condition) {
        for (int key = 0; key < table->part_scheme->partnatts; ++key) {
            if (!op_in_opfamily(condition->opno, table->part_scheme->partopfamily[key])) continue;
            for (const ListCell* cell = list_head(condition->args); cell;
                 cell = lnext(condition->args, cell))
                if (list_member(table->partexprs[key], lfirst(cell))) return true;
        }
        return false;
    };
    const List* conditions = table->baserestrictinfo;
    for (const ListCell* cell = list_head(conditions); cell; cell = lnext(conditions, cell)) {
        Node* condition = reinterpret_cast<Node*>(lfirst_node(RestrictInfo, cell)->clause);
        if (IsA(condition, OpExpr) && has_parameter(condition, parameters) &&
            compares_key(reinterpret_cast<const OpExpr*>(condition)))
            return true;
    }
    return false;
}

// The index scans of a path that has their rows in order; false: another kind of path.
bool find_scans(Path* path, List* parameters, List** scans) {
    switch (nodeTag(path)) {
        case T_ProjectionPath:
            return find_scans(reinterpret_cast<ProjectionPath*>(path)->subpath, parameters, scans);
        case T_MergeAppendPath: {
            const List* paths = reinterpret_cast<MergeAppendPath*>(path)->subpaths;
            if (list_length(paths) > most_batch_scans ||
                chooses_partitions(path->parent, parameters))
                return false;
            for (const ListCell* cell = list_head(paths); cell; cell = lnext(paths, cell))
                if (!find_scans(static_cast<Path*>(lfirst(cell)), parameters, scans)) return false;
            return true;
        }
        case T_IndexPath: {
            IndexPath* index = reinterpret_cast<IndexPath*>(path);
            if (!compat_is_cost_function(index->indexinfo, ivfpq_cost) ||
                index->indexinfo->hypothetical || list_length(index->indexorderbys) != 1 ||
                path->pathtype != T_IndexScan || !has_simple_conditions(index, parameters))
                return false;
            Node* order = static_cast<Node*>(linitial(index->indexorderbys));
            // A query that is the same for all rows is searched for once.
            if (has_other_parameter(order, parameters) || !has_parameter(order, parameters))
                return false;
            *scans = lappend(*scans, index);
            return true;
        }
        default:
            return false;
    }
}

// The index scans below the subquery's LIMIT; NIL: it is no search for nearest rows.
List* scans_of(const SubqueryScanPath* subquery, List* parameters) {
    Path* path = subquery->subpath;
    while (IsA(path, ProjectionPath)) path = reinterpret_cast<ProjectionPath*>(path)->subpath;
    if (!IsA(path, LimitPath)) return NIL;
    List* scans = NIL;
    if (!find_scans(reinterpret_cast<LimitPath*>(path)->subpath, parameters, &scans)) return NIL;
    return scans;
}

// --- bitmaps of other indexes

// What a path above another one costs, where that costs something else.
void change_costs(Path* path, const Path* from, const Path* to) {
    path->startup_cost += to->startup_cost - from->startup_cost;
    path->total_cost += to->total_cost - from->total_cost;
}

// The same part of the rows is read.
void change_limit_costs(Path* limit, const Path* from, const Path* to) {
    const double all = from->total_cost - from->startup_cost;
    const auto changed = [&](double cost) {
        const double part = all > 0 ? (cost - from->startup_cost) / all : 1;
        return to->startup_cost + part * (to->total_cost - to->startup_cost);
    };
    limit->startup_cost = changed(limit->startup_cost);
    limit->total_cost = changed(limit->total_cost);
}

template <typename Parent>
Path* with_child(const Parent* path, Path* Parent::*child, Path* other,
                 void (*change)(Path* path, const Path* from, const Path* to)) {
    auto* copy = static_cast<Parent*>(palloc(sizeof(Parent)));
    *copy = *path;
    copy->*child = other;
    change(reinterpret_cast<Path*>(copy), path->*child, other);
    return reinterpret_cast<Path*>(copy);
}

// The path with ordered scans in place of those that have a bitmap, too (conditions/): a batch
// checks conditions on rows.
Path* without_bitmaps(Path* path) {
    const auto change = [path]<typename Parent>(Path* Parent::*child, auto change_costs) {
        auto* parent = reinterpret_cast<Parent*>(path);
        Path* other = without_bitmaps(parent->*child);
        return other == parent->*child ? path : with_child(parent, child, other, change_costs);
    };
    switch (nodeTag(path)) {
        case T_SubqueryScanPath:
            return change(&SubqueryScanPath::subpath, change_costs);
        case T_ProjectionPath:
            return change(&ProjectionPath::subpath, change_costs);
        case T_LimitPath:
            return change(&LimitPath::subpath, change_limit_costs);
        case T_CustomPath: {
            const auto* custom = reinterpret_cast<const CustomPath*>(path);
            const bool has_bitmap = strcmp(custom->methods->CustomName, bitmap_scan_name) == 0;
            return has_bitmap ? static_cast<Path*>(linitial(custom->custom_paths)) : path;
        }
        case T_MergeAppendPath: {
            auto* copy = static_cast<MergeAppendPath*>(palloc(sizeof(MergeAppendPath)));
            *copy = *reinterpret_cast<MergeAppendPath*>(path);
            const List* members = copy->subpaths;
            copy->subpaths = NIL;
            for (const ListCell* cell = list_head(members); cell; cell = lnext(members, cell)) {
                auto* member = static_cast<Path*>(lfirst(cell));
                Path* other = without_bitmaps(member);
                change_costs(&copy->path, member, other);
                copy->subpaths = lappend(copy->subpaths, other);
            }
            return &copy->path;
        }
        default:
            return path;
    }
}

// --- costs

// What batches cost and save.
struct BatchCosts {
    bool pays;
    double start;  // of reading the lists
    double share;  // of the cost of a scan, for each query
};

// Whether the service answers scans, and batches.
bool is_served(Relation index) {
    return insists_on_service() || service_would_be_used(index);
}

BatchCosts costs_of(const IndexPath* scan, double limit, double queries,
                    const BatchMemory& memory) {
    // Measured (bench/notes/joins.md). Parts of a scan's cost for each query: if lists are scanned
    // for several queries at once and rows visited in the order of the table; if all rows are
    // visited for all queries; if the service is asked for many at once. Then, in tuples, the cost
    // of copying an entry, and a number of the model.
    constexpr double batched = 0.7;
    constexpr double all_at_once = 0.1;
    constexpr double asked_at_once = 0.5;
    constexpr double copied = 9;
    constexpr double of_model = 2;
    constexpr double most = 1 << 20;  // rows; choose_effort() takes a uint32
    const IndexOptInfo* info = scan->indexinfo;
    Relation index = relation_open(info->indexoid, NoLock);
    const MetaPage meta = read_meta(index);
    BatchCosts costs = {};
    if (meta.lists == 0 || searches_exactly(meta)) {
        costs = {queries >= 2, 0, all_at_once};
    } else if (is_served(index)) {
        // A batch of fewer queries does not pay.
        constexpr double few = 8;
        costs = {queries >= few, 0, asked_at_once};
    } else {
        const double passing = passing_share(scan);
        const Effort effort =
            choose_effort(meta, static_cast<uint32>(std::clamp(limit / passing, 1.0, most)), false);
        const double candidates = effort.candidates;
        const double pages = std::max(1.0, static_cast<double>(info->pages)) -
                             static_cast<double>(meta.refinement_pages);
        // The executor estimates the rows again, and must not find that lists do not fit.
        constexpr double more = 1.05;
        const bool fits = would_fit_all_lists(meta, pages, more * info->tuples, memory.lists) &&
                          candidates <= max_list_k;
        const double model = static_cast<double>(meta.dims) * (meta.lists + codewords);
        costs = {
            fits && queries * effort.probes >= 2.0 * meta.lists,
            pages * seq_page_cost + (info->tuples * copied + model * of_model) * cpu_tuple_cost,
            batched};
    }
    relation_close(index, NoLock);
    return costs;
}

// --- the path

Plan* plan_custom_path(PlannerInfo*, RelOptInfo*, CustomPath* path, List* target, List*,
                       List* children) {
    return make_batch_scan(target, path->custom_private, static_cast<Plan*>(linitial(children)));
}

const CustomPathMethods path_methods = {batch_scan_name, plan_custom_path, nullptr};

Path* make_batch_path(Path* outer, List* scans, double start, bool on_device) {
    CustomPath* path = make_custom_path(list_make1(outer), &path_methods);
    path->path.startup_cost += start;
    path->path.total_cost += start + outer->rows * 2 * cpu_tuple_cost;
    List* indexes = NIL;
    for (const ListCell* cell = list_head(scans); cell; cell = lnext(scans, cell))
        indexes = lappend_oid(indexes, static_cast<IndexPath*>(lfirst(cell))->indexinfo->indexoid);
    path->custom_private = make_batch_private(indexes, on_device);
    return &path->path;
}

struct Join {
    PlannerInfo* root;
    RelOptInfo* relation;
    JoinType type;
    JoinPathExtraData* extra;
};

// A Nested Loop with a custom scan above its outer path. `share`: of the cost of a scan, for each
// query; `first`: of the whole cost, until the first row comes.
void add_nested_loop(const Join& join, Path* outer, Path* inner, Path* batched, double share,
                     double first) {
    JoinCostWorkspace workspace;
    compat_initial_cost_nestloop(join.root, &workspace, join.type, batched, inner, join.extra);
    NestPath* path = create_nestloop_path(
        join.root, join.relation, join.type, &workspace, join.extra, batched, inner,
        join.extra->restrictlist,
        build_join_pathkeys(join.root, join.relation, join.type, outer->pathkeys), nullptr);
    Path* cost = reinterpret_cast<Path*>(path);
    const double saved = outer->rows * inner->total_cost * (1 - share);
    const double startup = std::max(cost->startup_cost - inner->startup_cost * (1 - share), 0.0);
    cost->total_cost = std::max(cost->total_cost - saved, startup);
    cost->startup_cost = startup + first * (cost->total_cost - startup);
    add_path(join.relation, cost);
}

// Whether a device may compare all rows with all queries: the scan has to mean all rows of a table.
bool fits_device(const IndexPath* scan, double limit) {
    const IndexOptInfo* info = scan->indexinfo;
    return limit >= 1 && limit <= most_device_rows / 2 && info->indexkeys[0] > 0 &&
           info->indpred == NIL && passing_share(scan) == 1 && settings.probes == 0 &&
           settings.max_probes == 0;
}

// By the estimates of knn_join, in seconds.
void add_device_path(const Join& join, Path* outer, Path* inner, List* scans, double limit) {
    // Of a scan by the service, measured.
    constexpr double served_scan = 1.8e-4;
    // What a batch of the CPU takes of the time of as many scans. A device has to take less of it.
    constexpr double batched = 0.65;
    if (!wants_device(min_work_for_a_device)) return;
    double by_scans = 0;
    double on_device = seconds_of_start;
    for (const ListCell* cell = list_head(scans); cell; cell = lnext(scans, cell)) {
        const auto* scan = static_cast<const IndexPath*>(lfirst(cell));
        if (!fits_device(scan, limit)) return;
        Relation index = relation_open(scan->indexinfo->indexoid, NoLock);
        const double dims = dims_of(index);
        by_scans +=
            is_served(index) ? outer->rows * served_scan : seconds_in_lists(outer->rows) / batched;
        const bool exact = searches_exactly(read_meta(index));
        relation_close(index, NoLock);
        if (exact) return;
        on_device += seconds_on_device(scan->indexinfo->rel->tuples, dims, outer->rows);
    }
    if (on_device >= batched * by_scans) return;
    // No row comes before nearly all of the work is done.
    constexpr double first = 0.95;
    add_nested_loop(join, outer, inner, make_batch_path(outer, scans, 0, true),
                    on_device / by_scans, first);
}

void add_batch_path(const Join& join, Path* outer, Path* inner, List* scans, double limit) {
    add_device_path(join, outer, inner, scans, limit);
    double start = 0;
    double share = 0;
    const auto pages_of = [](const ListCell* cell) {
        return static_cast<double>(static_cast<const IndexPath*>(lfirst(cell))->indexinfo->pages);
    };
    double pages = 0;
    for (const ListCell* cell = list_head(scans); cell; cell = lnext(scans, cell))
        pages += pages_of(cell);
    for (const ListCell* cell = list_head(scans); cell; cell = lnext(scans, cell)) {
        BatchMemory memory = batch_memory();
        memory.lists = memory_of_lists(memory.lists, list_length(scans),
                                       pages_of(cell) / std::max(pages, 1.0));
        const BatchCosts costs =
            costs_of(static_cast<const IndexPath*>(lfirst(cell)), limit, outer->rows, memory);
        if (!costs.pays) return;
        start += costs.start;
        share = std::max(share, costs.share);
    }
    // The first rows come with the first batch, a part of all.
    constexpr double first_part = 0.1;
    add_nested_loop(join, outer, inner, make_batch_path(outer, scans, start, false), share,
                    first_part);
}

// Whether rows of the query are locked or changed: they would be read again, one by one, where
// another transaction has changed them.
bool rereads_rows(const Query* query) {
    return query->rowMarks != NIL ||
           (query->commandType != CMD_SELECT && query->commandType != CMD_INSERT);
}

// Whether subqueries lock rows, which reading ahead would lock before they are needed.
bool locks_rows(const PlannerInfo* root) {
    if (root->parse->rowMarks != NIL) return true;
    for (int i = 1; i < root->simple_rel_array_size; ++i) {
        const RelOptInfo* relation = root->simple_rel_array[i];
        if (relation && relation->subroot && locks_rows(relation->subroot)) return true;
    }
    return false;
}

bool subqueries_lock_rows(const PlannerInfo* root) {
    // Of WITH, too.
    const List* others = root->glob->subroots;
    for (const ListCell* cell = list_head(others); cell; cell = lnext(others, cell))
        if (locks_rows(static_cast<const PlannerInfo*>(lfirst(cell)))) return true;
    return locks_rows(root);
}

void add_batch_paths(const Join& join, const RelOptInfo* outer, const RelOptInfo* inner) {
    if (join.type != JOIN_INNER && join.type != JOIN_LEFT) return;
    if (inner->reloptkind != RELOPT_BASEREL || inner->rtekind != RTE_SUBQUERY || !inner->subroot ||
        bms_is_empty(inner->lateral_relids) ||
        !bms_is_subset(inner->lateral_relids, outer->relids) || IS_OTHER_REL(outer) ||
        rereads_rows(join.root->parse) || !has_constant_limit(inner->subroot->parse) ||
        inner->subroot->parse->rowMarks != NIL || subqueries_lock_rows(join.root))
        return;
    List* parameters = parameters_of(inner);
    for (const ListCell* cell = list_head(inner->pathlist); cell;
         cell = lnext(inner->pathlist, cell)) {
        Path* path = static_cast<Path*>(lfirst(cell));
        if (!IsA(path, SubqueryScanPath) || !bms_is_subset(PATH_REQ_OUTER(path), outer->relids))
            continue;
        path = without_bitmaps(path);
        List* scans = scans_of(reinterpret_cast<SubqueryScanPath*>(path), parameters);
        if (scans == NIL) continue;
        for (const ListCell* other = list_head(outer->pathlist); other;
             other = lnext(outer->pathlist, other)) {
            Path* outer_path = static_cast<Path*>(lfirst(other));
            if (PATH_REQ_OUTER(outer_path)) continue;
            add_batch_path(join, outer_path, path, scans, inner->subroot->limit_tuples);
        }
    }
}

void plan_join(PlannerInfo* root, RelOptInfo* relation, RelOptInfo* outer, RelOptInfo* inner,
               JoinType type, JoinPathExtraData* extra) {
    if (previous_hook) previous_hook(root, relation, outer, inner, type, extra);
    if (settings.enable_batched_join) add_batch_paths({root, relation, type, extra}, outer, inner);
}

}  // namespace

void install_join_planner() {
    previous_hook = set_join_pathlist_hook;
    set_join_pathlist_hook = plan_join;
}

}  // namespace pgwarp
