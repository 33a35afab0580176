// The cost estimate of a scan, in the planner's units.
//
// The startup cost is that of the first round: the scan reads the model, scans the probed lists,
// and visits the candidates' rows in the table. It visits every row of the pending list, too. After
// that, each further row costs its share of scanning everything. The planner charges a LIMIT query
// in proportion to its rows, so that only queries that reach further rounds pay for them.

#include <algorithm>
#include <cmath>

#include "extension/am/callbacks.h"
#include "extension/index/format.h"
#include "extension/index/effort.h"
#include "extension/index/model.h"
#include "extension/index/page.h"
#include "extension/service/client.h"
#include "extension/settings.h"

extern "C" {
#include "access/relation.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "utils/float.h"
#include "utils/selfuncs.h"
#include "utils/spccache.h"
}

namespace pgwarp {

namespace {

// The work of a scan with an index, real or hypothetical.
struct ScanPlan {
    double lists;          // 0: untrained
    double model_pages;    // read by every scan
    double pending_pages;  // every scan visits their rows
    double pending_rows;
    double code_bytes;
    double conditions;  // on attributes
    double passing;     // share of the entries that pass them
    Effort effort;
    bool by_service;
    ScanCosts costs;  // of scanning lists
};

// Whether scans will go to the service. Sends no request and reports nothing: the scan does that.
bool will_be_served(Relation index) {
    const char* reason;
    return settings.executor != static_cast<int>(ExecutorChoice::cpu) && service_serves(&reason) &&
           service_usable(index, &reason);
}

// What the plan asks of a scan.
struct WantedScan {
    uint32 k;           // rows from the index
    double conditions;  // on attributes
    double passing;     // share of the entries that pass them
};

// Of the lists, those in which a scan with conditions will look for its rows (scan/widening.h).
uint32 widened_probes(const MetaPage& meta, const WantedScan& wanted) {
    constexpr double least_share = 1e-9;
    const double lists = lists_for(meta, wanted.k / std::max(wanted.passing, least_share));
    return static_cast<uint32>(std::min<double>(meta.lists, std::ceil(lists)));
}

ScanPlan plan_scan(Relation index, double rows, const WantedScan& wanted) {
    const MetaPage meta = read_meta(index);
    const uint32 k = wanted.k;
    ScanPlan plan = {};
    plan.conditions = wanted.conditions;
    plan.passing = wanted.passing;
    plan.lists = meta.lists;
    plan.pending_pages = meta.pending.pages;
    plan.pending_rows = std::min(rows, plan.pending_pages * EntryLayout::pending().capacity);
    if (meta.lists == 0) return plan;
    plan.model_pages = static_cast<double>(meta.directory - meta.centroids);
    plan.code_bytes = meta.m;
    plan.costs = cpu_costs(meta);
    plan.effort = choose_effort(meta, k);
    if (wanted.conditions > 0)
        plan.effort.probes = std::max(plan.effort.probes, widened_probes(meta, wanted));
    else if (will_be_served(index)) {
        const Effort effort = choose_effort(meta, k, service_costs());
        plan.by_service =
            effort.candidates <= service_most_k && effort.probes <= service_most_probes;
        if (plan.by_service) {
            plan.effort = effort;
            plan.costs = service_costs();
        }
    }
    return plan;
}

// For a hypothetical index: assumes what a build would probably choose.
ScanPlan plan_hypothetical_scan(double rows, double pages, const WantedScan& wanted) {
    MetaPage meta = {};
    meta.lists = static_cast<uint32>(std::clamp(std::sqrt(rows), 1.0, double{max_lists}));
    meta.bits = default_bits;
    ScanPlan plan = {};
    plan.lists = meta.lists;
    plan.model_pages = pages / 10;
    plan.code_bytes = 32;
    plan.costs = cpu_costs(meta);
    plan.effort = choose_effort(meta, wanted.k);
    plan.conditions = wanted.conditions;
    plan.passing = wanted.passing;
    return plan;
}

// Visiting the pending rows in table order and keeping the k nearest.
double pending_cost(const ScanPlan& plan, double table_pages, double k, double expression,
                    double random_page, double sequential_page) {
    const double rows = plan.pending_rows;
    if (rows == 0) return 0;
    const double pages = std::max(1.0, table_pages);
    const double visited = std::max(1.0, pages * (1 - std::exp(-rows / pages)));
    const double page = random_page - (random_page - sequential_page) * std::sqrt(visited / pages);
    // Each row is fetched by its TID, not read in sequence: twice the cost of a tuple.
    const double row = cpu_index_tuple_cost + 2 * cpu_tuple_cost +
                       cpu_operator_cost * (1 + 2 * std::log2(2 * std::max(1.0, k))) + expression;
    return plan.pending_pages * sequential_page + visited * page + rows * row;
}

bool wants_null_vectors(const IndexPath* path) {
    for (const ListCell* cell = list_head(path->indexclauses); cell;
         cell = lnext(path->indexclauses, cell)) {
        const IndexClause* clause = lfirst_node(IndexClause, cell);
        const Node* condition = reinterpret_cast<Node*>(clause->rinfo->clause);
        if (clause->indexcol == 0 && IsA(condition, NullTest) &&
            reinterpret_cast<const NullTest*>(condition)->nulltesttype == IS_NULL)
            return true;
    }
    return false;
}

}  // namespace

void ivfpq_cost(PlannerInfo* root, IndexPath* path, double loop_count, Cost* startup_cost,
                Cost* total_cost, Selectivity* selectivity, double* correlation, double* pages) {
    *selectivity = 1;
    *correlation = 0;
    // The index supports ORDER BY one distance and nothing else. It has no entries of rows without
    // a vector.
    if (list_length(path->indexorderbys) != 1 || wants_null_vectors(path)) {
        *startup_cost = *total_cost = get_float8_infinity();
        *pages = 0;
        compat_disable(path);
        return;
    }

    GenericCosts costs = {};
    genericcostestimate(root, path, loop_count, &costs);
    *selectivity = costs.indexSelectivity;

    const IndexOptInfo* info = path->indexinfo;
    const double rows = std::max(1.0, info->tuples);
    const double index_pages = std::max(1.0, static_cast<double>(info->pages));
    double random_page, sequential_page;
    get_tablespace_page_costs(info->reltablespace, &random_page, &sequential_page);

    constexpr double most = 1 << 25;
    const double k = root->limit_tuples > 0 ? std::clamp(root->limit_tuples, 1.0, most) : 100;
    const WantedScan wanted{static_cast<uint32>(std::ceil(k)),
                            static_cast<double>(list_length(path->indexclauses)),
                            costs.indexSelectivity};
    ScanPlan plan;
    if (info->hypothetical) {
        plan = plan_hypothetical_scan(rows, index_pages, wanted);
    } else {
        Relation index = relation_open(info->indexoid, NoLock);
        plan = plan_scan(index, rows, wanted);
        relation_close(index, NoLock);
    }

    // An index's expression is evaluated for each row that is ranked.
    QualCost expression;
    cost_qual_eval(&expression, info->indexprs, root);
    double start = pending_cost(plan, static_cast<double>(info->rel->pages), k,
                                expression.per_tuple, random_page, sequential_page);
    const double list_rows = rows - plan.pending_rows;
    const double list_pages = std::max(0.0, index_pages - plan.model_pages - plan.pending_pages);
    double all = 0;
    if (plan.lists > 0) {
        // A look-up of a code's byte takes about a tenth of an operator's time.
        const double look_up = 0.1 * cpu_operator_cost;
        const double probes = std::min<double>(plan.effort.probes, plan.lists);
        const double share = probes / plan.lists;
        const double row = random_page + cpu_tuple_cost + cpu_operator_cost + expression.per_tuple;
        const double first_rows =
            std::min<double>(list_rows * plan.passing, plan.effort.candidates);
        // Lists are read sequentially; the rows of candidates are at random places in the table.
        // Only entries that pass have their codes looked up.
        const double entries =
            list_rows * (plan.conditions + plan.code_bytes * plan.passing) * look_up;
        const double lists = list_pages * sequential_page + entries;
        if (plan.by_service) {
            start += probes * plan.costs.probe * look_up + share * entries * plan.costs.look_up;
        } else {
            // Every scan reads the model, which therefore stays in the buffer cache.
            start += 0.1 * sequential_page * plan.model_pages + cpu_operator_cost * plan.lists;
            start += share * (list_pages * sequential_page + entries * plan.costs.look_up);
        }
        start += first_rows * row;
        all = (1 - share) * lists + std::max(0.0, list_rows * plan.passing - first_rows) * row;
    }
    *startup_cost = start;
    *total_cost = start + all;
    *pages = index_pages;
}

}  // namespace pgwarp
