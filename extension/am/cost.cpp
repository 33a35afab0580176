// The cost estimate of a scan, in the planner's units.
//
// For the first rows, as many as LIMIT wants, the scan reads the model, scans lists, and visits the
// rows of candidates in the table. Conditions on attributes make it scan more lists, those that the
// index does not have make it visit more rows. It visits every row of the pending list, too. After
// that, each further row costs its share of scanning everything. An exact search visits all rows
// that pass the conditions. The executor then fetches each row that it is given once more.
//
// Candidates are visited in the order of their TIDs, like the rows of a bitmap scan, and their
// pages cost what a bitmap scan's do. So the plans that compete for a query are compared fairly.
//
// As far as the effort grows with LIMIT, so does the cost.

#include <algorithm>
#include <cmath>

#include "kernels/list_levels.h"
#include "extension/am/bitmap_costs.h"
#include "extension/am/callbacks.h"
#include "extension/am/shares.h"
#include "extension/index/format.h"
#include "extension/index/effort.h"
#include "extension/index/model.h"
#include "extension/index/page.h"
#include "extension/scan/exact.h"
#include "extension/scan/state.h"
#include "extension/service/client.h"
#include "extension/service/shards.h"
#include "extension/limits.h"
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

// Costs of a scan where its lists are, on this CPU or in the service. The unit is one look-up in a
// table by this CPU.
struct ScanCosts {
    double probe;    // per list, without its entries
    double look_up;  // per byte of a code
    // Candidates are ordered by their refinements, and few rows are visited. Else all are.
    bool refines;
};
ScanCosts cpu_costs(const MetaPage& meta, bool refines) {
    // With four bits, an instruction looks up sixteen entries or more.
    constexpr double byte_of_nibbles = 0.2;
    return {0, meta.bits == 4 ? byte_of_nibbles : 1, refines};
}
// `refines`: a device scores candidates by their refinements.
ScanCosts service_costs(bool refines) {
    // For each list, a backend compares the version with that on the pages, or with the one that it
    // has seen there.
    constexpr double probe = 1750;
    return {probe, service_look_up_cost(), refines};
}
// About how many rows a scan visits for the k nearest by refinements: some are left undecided.
double refined_visits(double k) {
    return 1.25 * k + 1;
}

// What the plan asks of a scan.
struct WantedScan {
    uint32 k;  // rows from the index that pass all conditions
    PassingShares shares;
};

// Whether no condition drops rows.
bool is_plain(const PassingShares& shares) {
    return shares.conditions == 0 && shares.rows >= 1;
}

// The work of a scan with an index, real or hypothetical.
struct ScanPlan {
    double lists;          // 0: untrained
    double model_pages;    // read by every scan
    double compared;       // centroids that the query is compared with
    double pending_pages;  // every scan visits their rows
    double pending_rows;
    double code_dims;
    double code_bytes;
    bool nibbles;  // codes of four bits
    double probes;
    double candidates;  // rows visited in the table for the first k
    double refined;     // candidates whose refinements are read, to visit fewer
    double refinement_pages;
    bool by_service;
    bool exact;       // all rows that pass the conditions are visited, without looking up codes
    ScanCosts costs;  // of scanning lists
};

// Whether scans will go to the service. Sends no request and reports nothing: the scan does that.
bool will_be_served(Relation index) {
    return service_would_be_used(index);
}

// The effort for a scan on this CPU.
void plan_effort(const MetaPage& meta, const WantedScan& wanted, double rows, ScanPlan* plan) {
    const PassingShares& shares = wanted.shares;
    const double passing = std::max(shares.entries, least_share);
    const double share = std::max(shares.rows, least_share);
    plan->costs = cpu_costs(
        meta, shares.rows >= 1 && settings.refine && meta.refinement != RefinementKind::none);
    // The rows that are wanted are among this many that pass the conditions.
    const double nearest = std::min(wanted.k / share, rows);
    const bool checks = shares.conditions > 0;
    const Effort effort = choose_effort(meta, static_cast<uint32>(nearest), checks);
    plan->probes = effort.probes;
    if (effort.threshold > 0)
        plan->probes = std::max(plan->probes, expected_lists(meta, nearest, passing, checks));
    plan->candidates = expected_candidates(meta, wanted.k, nearest, effort);
    plan->candidates = std::min(plan->candidates, rows * passing);
    // Lists that hold the candidates.
    plan->probes = std::max(plan->probes, plan->lists * plan->candidates / (rows * passing));
    plan->probes = std::min(plan->probes, plan->lists);
    if (settings.max_probes > 0) plan->probes = std::min<double>(plan->probes, settings.max_probes);
    plan->exact = searches_exactly(meta);
    if (!plan->exact && plan->costs.refines) {
        plan->refined = plan->candidates;
        plan->candidates = std::min(plan->candidates, refined_visits(wanted.k));
    }
    if (!plan->exact) return;
    plan->probes = plan->lists;
    plan->candidates = rows * passing;
}

// The effort of a scan by the service, if it can have it.
void plan_service(Relation index, const MetaPage& meta, const WantedScan& wanted, ScanPlan* plan) {
    const double candidates = std::max(plan->candidates, plan->refined);
    const bool refines =
        plan->costs.refines && wanted.shares.conditions == 0 && keeps_refinements(index, meta);
    if (candidates > service_most_k) return;
    plan->by_service = true;
    // A device refines candidates at next to no cost.
    plan->candidates = refines ? std::min(candidates, refined_visits(wanted.k)) : candidates;
    plan->refined = 0;
    plan->costs = service_costs(refines);
}

// `served`: by the service, if it can be.
ScanPlan plan_scan(Relation index, double rows, const WantedScan& wanted, bool served) {
    const MetaPage meta = read_meta(index);
    ScanPlan plan = {};
    plan.lists = meta.lists;
    plan.pending_pages = meta.pending.pages;
    plan.pending_rows = std::min(rows, plan.pending_pages * EntryLayout::without_codes().capacity);
    if (meta.lists == 0) return plan;
    const double other_pages =
        static_cast<double>(meta.directory - meta.centroids) - centroid_pages(meta);
    plan.refinement_pages = meta.refinement_pages;
    plan.code_dims = meta.code_dims;
    plan.code_bytes = meta.m;
    plan.nibbles = meta.bits == 4;
    plan_effort(meta, wanted, std::max(1.0, rows - plan.pending_rows), &plan);
    const double lists = meta.parents == 0
                             ? meta.lists
                             : static_cast<double>(lists_to_compare(
                                   static_cast<uint64>(std::ceil(plan.probes)), meta.lists));
    plan.compared = meta.parents + lists;
    plan.model_pages = other_pages + centroid_pages(meta) * lists / meta.lists;
    if (served && !plan.exact && will_be_served(index)) plan_service(index, meta, wanted, &plan);
    return plan;
}

// For a hypothetical index: assumes what a build would probably choose.
ScanPlan plan_hypothetical_scan(double rows, double pages, const WantedScan& wanted) {
    MetaPage meta = {};
    meta.lists = static_cast<uint32>(std::clamp(std::sqrt(rows), 1.0, double{max_plain_lists}));
    meta.bits = default_bits;
    meta.rows_at_build = static_cast<uint64>(rows);
    ScanPlan plan = {};
    plan.lists = meta.lists;
    plan.model_pages = pages / 10;
    plan.compared = meta.lists;
    plan.code_dims = 64;
    plan.code_bytes = 32;
    plan_effort(meta, wanted, rows, &plan);
    return plan;
}

// Costs of pages of the table and of its index, and of visiting rows in the table.
struct PageCosts {
    double random;
    double sequential;

    explicit PageCosts(Oid tablespace) {
        get_tablespace_page_costs(tablespace, &random, &sequential);
    }
    // Of visiting `visited` of the pages in their order, as PostgreSQL's bitmap scans. The more of
    // the pages, the less each costs. From the share on at which all of them together would cost
    // less, they cost the same.
    double in_order(double visited, double pages) const {
        const double most = random > sequential ? 2 * random / (3 * (random - sequential)) : 1;
        const double share = std::min(visited / pages, most * most);
        return share * pages * (random - (random - sequential) * std::sqrt(share));
    }
    // Of `share` of all pages of lists, which are read in the order of their distance: the more of
    // them are, the more often a page lies next to another one.
    double of_lists(double share, double pages) const {
        const double most = random > sequential ? random / (2 * (random - sequential)) : 1;
        share = std::min(share, most);
        return share * pages * (random - (random - sequential) * share);
    }
};

struct TableCosts {
    PlannerInfo* root;
    const IndexOptInfo* info;
    double loops;  // scans of a nested loop, for which pages may stay in memory
    PageCosts page;
    double row;  // without its page

    double pages() const { return std::max(1.0, static_cast<double>(info->rel->pages)); }
    double visited(double rows) const {
        const double visited =
            loops > 1
                ? index_pages_fetched(rows * loops, info->rel->pages, info->pages, root) / loops
                : 2 * pages() * rows / (2 * pages() + rows);
        return std::min(pages(), visited);
    }
    // In parts, each in the order of its TIDs.
    double visit(double rows, double parts = 1) const {
        return parts * page.in_order(visited(rows / parts), pages()) + rows * row;
    }
    // Of further rows, in rounds.
    double visit_more(double rows, double more) const {
        return (visited(rows + more) - visited(rows)) * page.random + more * row;
    }
};

// Visiting the pending rows in table order and keeping the k nearest.
double pending_cost(const ScanPlan& plan, const TableCosts& table, const PageCosts& index,
                    double k) {
    const double rows = plan.pending_rows;
    if (rows == 0) return 0;
    const double row = comparison_cost() * std::log2(2 * std::max(1.0, k));
    return plan.pending_pages * index.sequential + table.visit(rows) + rows * row;
}

// Scanning lists: those of the first rows, and the others.
struct ListCosts {
    double first;
    double others;
};

// In operators: what a look-up of a code's byte takes, and about so a condition on an entry and a
// dimension of a centroid.
constexpr double look_up_operators = 0.1;

// Sorting numbers, in a fraction of the time of a Sort node's comparisons.
constexpr double number_comparison = 0.2;

// Look-ups of an entry's code (scan/passing.cpp), where one is a look-up of a page's entries
// together.
double looked_up(const ScanPlan& plan, const PassingShares& shares, double entries_of_page) {
    // An entry alone: its bytes are far apart, in a cache line each.
    constexpr double alone = 12;
    // The least that a page takes, in its entries.
    constexpr double sampled = 8;
    if (shares.conditions == 0 || plan.nibbles || shares.entries * alone >= 1) return 1;
    return std::min(1.0, alone * (shares.entries + sampled / std::max(sampled, entries_of_page)));
}

ListCosts list_costs(const ScanPlan& plan, const WantedScan& wanted, double rows, double pages,
                     const PageCosts& page) {
    // Scans read the model and some of the lists again and again, which therefore stay in the
    // buffer cache. But where rows are filtered, plans by other indexes compete, and PostgreSQL has
    // their pages cost as much as on disk. A plain scan competes with a sort of the table, whose
    // unit takes longer than that of a look-up, and with hnsw, whose unit takes longer still
    // (bench/notes/plans.md).
    constexpr double cached = 0.1;
    constexpr double plain_look_up = 0.4;
    const PassingShares& shares = wanted.shares;
    const bool plain = is_plain(shares) || shares.beside_plain;
    const double look_up = (plain ? plain_look_up : 1) * look_up_operators * cpu_operator_cost;
    if (plan.exact) {
        const double sort = number_comparison * cpu_operator_cost * std::log2(plan.candidates + 1);
        return {
            pages * page.sequential + rows * shares.conditions * look_up + plan.candidates * sort,
            0};
    }
    const double codes = plan.code_bytes * looked_up(plan, shares, rows / std::max(1.0, pages));
    const double check = plan.by_service ? plan.costs.look_up : 1;
    const double entries =
        rows * (shares.conditions * check + codes * plan.costs.look_up) * look_up;
    const double share = plan.probes / plan.lists;
    const double first_pages =
        plain ? cached * page.sequential * share * pages : page.of_lists(share, pages);
    const double other_pages = (1 - share) * pages * page.random;
    if (plan.by_service) {
        // The rest may have to be read from pages. There is none where conditions take all lists.
        const double rest = shares.conditions > 0 ? 1 - share : 1;
        return {plan.probes * plan.costs.probe * look_up + share * entries,
                rest * (pages * page.random + rows * plan.code_bytes * look_up)};
    }
    const double codebook = plan.nibbles ? 16 : 256;
    const double model = cached * page.sequential * plan.model_pages +
                         (plan.compared + codebook) * plan.code_dims * look_up;
    return {model + first_pages + share * entries, other_pages + (1 - share) * entries};
}

// Reading the refinements of candidates, which lie on pages here and there, and scoring them.
double refinement_cost(const ScanPlan& plan, const PageCosts& page) {
    if (plan.refined == 0) return 0;
    const double pages = std::max(1.0, plan.refinement_pages);
    const double visited = std::min(pages, 2 * pages * plan.refined / (2 * pages + plan.refined));
    return visited * page.random +
           plan.refined * plan.code_dims * look_up_operators * cpu_operator_cost;
}

// Ranking the candidates in the table. More than memory holds are ranked in parts, after all
// entries of the lists were sorted (scan/lists.cpp).
double ranking_cost(const ScanPlan& plan, const TableCosts& table, double entries) {
    const double held = static_cast<double>(most_candidates());
    if (plan.exact || plan.candidates <= held) return table.visit(plan.candidates);
    return table.visit(plan.candidates, std::ceil(plan.candidates / held)) +
           entries * comparison_cost() * std::log2(entries + 2);
}

// Handing out k rows: they are sorted, and the executor fetches each of them once more, from a page
// that is in memory.
double hand_out_cost(const PageCosts& page, double k) {
    constexpr double in_memory = 0.2;
    return k *
           (in_memory * page.sequential + number_comparison * cpu_operator_cost * std::log2(k + 1));
}

// Scanning to the end of the index: a scan reads a list up to three times (scan/lists.cpp). It
// visits each row, and the executor visits it again, in another order.
double further_cost(double lists, const TableCosts& table, double first, double all) {
    if (all <= first) return 3 * lists;
    const double sort = comparison_cost() * std::log2(all - first + 1);
    return 3 * lists + 2 * table.visit_more(first, all - first) + (all - first) * sort;
}

// An exact search has visited all rows for its first ones. For the rest it visits them again if
// they exceed memory, and sorts them; the executor visits them in that order.
double rest_of_exact_cost(const TableCosts& table, double rows) {
    const double in_memory = work_mem * 1024.0 / 64;
    const double sort = comparison_cost() * std::log2(rows + 1);
    return (rows > in_memory ? table.visit(rows) : 0) + table.visit_more(0, rows) + rows * sort;
}

// The planner takes the cost of a part of the rows from the line between startup and total cost.
// This startup cost puts the cost of the first rows, a `part` of all, on the line.
double startup_of(double first, double all, double part) {
    return part < 1 ? std::max(0.0, (first - all * part) / (1 - part)) : first;
}

// The share that this relation has of the rows of the table that the query names: 1, unless it is a
// partition or a child.
double share_of_parent(const PlannerInfo* root, const RelOptInfo* relation) {
    const RelOptInfo* top = relation;
    while (top->reloptkind == RELOPT_OTHER_MEMBER_REL && root->append_rel_array &&
           root->append_rel_array[top->relid])
        top = root->simple_rel_array[root->append_rel_array[top->relid]->parent_relid];
    if (top == relation || !(top->rows > 0)) return 1;
    return std::clamp(relation->rows / top->rows, least_share, 1.0);
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

// What a scan costs, without the executor's own part.
struct ScanCost {
    double first;  // rows, as many as LIMIT wants
    double all;
    double startup;
};

// The scan's rows of LIMIT, and its part of what LIMIT wants of a table's partitions.
struct ScanLimit {
    double rows;  // 0: unknown
    double share;
    double k;  // rows that the scan is priced for

    ScanLimit(const PlannerInfo* root, const IndexOptInfo* info)
        : rows(root->limit_tuples > 0 ? std::clamp<double>(root->limit_tuples, 1, most_wanted_rows)
                                      : 0),
          share(share_of_parent(root, info->rel)),
          // Scans of partitions share the rows of LIMIT (scan/partitions.cpp).
          k(rows > 0 ? rows_of_part(rows, share) : 100) {}

    // Of the scan's rows, what LIMIT wants; 0: unknown. A Merge Append is taken to read the same
    // part of each partition.
    double part_of(const IndexPath* path) const {
        return rows > 0 ? rows * share / path->path.rows : 0;
    }
};

// Each row is fetched by its TID, not read in sequence: twice the cost of a tuple. An index's
// expression is evaluated for each row that is ranked, filters for each row.
TableCosts table_costs(PlannerInfo* root, const IndexOptInfo* info, double loops, bool filtered) {
    QualCost expression;
    cost_qual_eval(&expression, info->indexprs, root);
    return {root, info, loops, PageCosts(info->rel->reltablespace),
            cpu_index_tuple_cost + 2 * cpu_tuple_cost + cpu_operator_cost + expression.per_tuple +
                (filtered ? info->rel->baserestrictcost.per_tuple : 0)};
}

ScanCost price(PlannerInfo* root, const IndexPath* path, double loops, const PassingShares& shares,
               bool served) {
    const IndexOptInfo* info = path->indexinfo;
    const double rows = std::max(1.0, info->tuples);
    const double index_pages = std::max(1.0, static_cast<double>(info->pages));
    const ScanLimit limit(root, info);
    const WantedScan wanted{static_cast<uint32>(std::ceil(limit.k)), shares};
    ScanPlan plan;
    if (info->hypothetical) {
        plan = plan_hypothetical_scan(rows, index_pages, wanted);
    } else {
        Relation index = relation_open(info->indexoid, NoLock);
        plan = plan_scan(index, rows, wanted, served);
        relation_close(index, NoLock);
    }
    const TableCosts table = table_costs(root, info, loops, shares.rows < 1);
    const PageCosts page(info->reltablespace);
    double first = pending_cost(plan, table, page, limit.k) +
                   hand_out_cost(table.page, std::min(limit.k, path->path.rows));
    double all = first;
    if (plan.lists > 0) {
        const double list_rows = rows - plan.pending_rows;
        const double list_pages = std::max(
            0.0, index_pages - plan.model_pages - plan.pending_pages - plan.refinement_pages);
        const ListCosts lists = list_costs(plan, wanted, list_rows, list_pages, page);
        const double passing = list_rows * shares.entries;
        first += lists.first + refinement_cost(plan, page) +
                 ranking_cost(plan, table, passing * plan.probes / plan.lists);
        all = first + (plan.exact ? rest_of_exact_cost(table, passing)
                                  : further_cost(lists.others, table, plan.candidates, passing));
    }
    const double part = limit.part_of(path);
    // A line from 0 through the first rows may end below the cost of all. It does where no
    // condition drops rows: LIMIT then says how many are read, and the others cost nothing.
    if (part > 0 && part < 1 && is_plain(shares)) all = std::min(all, first / part);
    return {first, all, limit.rows > 0 ? startup_of(first, all, part) : first};
}

// Of the index conditions.
Selectivity index_selectivity(PlannerInfo* root, IndexPath* path, double loops) {
    GenericCosts costs = {};
    genericcostestimate(root, path, loops, &costs);
    return costs.indexSelectivity;
}

}  // namespace

BitmapCosts::BitmapCosts(PlannerInfo* planner, IndexPath* ordered, double bitmap_rows)
    : root(planner), path(ordered) {
    const RelOptInfo* table = path->indexinfo->rel;
    tuples = std::max(1.0, table->tuples);
    shares = passing_shares(root, path, index_selectivity(root, path, 1));
    passing = std::clamp(path->path.rows / std::max(1.0, bitmap_rows), 1e-6, 1.0);
}

BitmapCosts::Way BitmapCosts::of_lists(double bitmap_rows) const {
    // A look-up of a TID in the row set, in conditions on attributes.
    constexpr double look_up = 20;
    PassingShares some = shares;
    const double share = std::min(1.0, bitmap_rows / tuples);
    // Conditions on attributes may be about the same rows as the bitmap.
    some.conditions += look_up;
    some.entries = std::max(share * shares.entries, share * passing);
    some.rows = std::min(1.0, share * passing / std::max(some.entries, least_share));
    const ScanCost cost = price(root, path, 1, some, false);
    return {cost.first, cost.startup, cost.all};
}

BitmapCosts::Way BitmapCosts::of_all(double bitmap_rows) const {
    PassingShares all = shares;
    const double share = std::min(1.0, bitmap_rows / tuples) * passing;
    all.rows = std::min(1.0, share / std::max(shares.entries, least_share));
    const ScanCost cost = price(root, path, 1, all, true);
    return {cost.first, cost.startup, cost.all};
}

BitmapCosts::Way BitmapCosts::of_rows(double bitmap_rows) const {
    const IndexOptInfo* info = path->indexinfo;
    // The bitmap has rows that a partial index has not.
    if (info->indpred != NIL) {
        const double most = get_float8_infinity();
        return {most, most, most};
    }
    const TableCosts table = table_costs(root, info, 1, true);
    const ScanLimit limit(root, info);
    const double found = bitmap_rows * passing;
    const double sort = number_comparison * cpu_operator_cost * std::log2(found + 2);
    const double first = table.visit(bitmap_rows) + found * sort +
                         hand_out_cost(table.page, std::min(limit.k, path->path.rows));
    const double all = first + rest_of_exact_cost(table, found);
    const double part = limit.part_of(path);
    return {first, part > 0 ? startup_of(first, all, part) : first, all};
}

KeyedCost cost_with_keys(PlannerInfo* root, const IndexPath* ordered, double share, double rows) {
    IndexPath path = *ordered;
    PassingShares shares = passing_shares(root, &path, index_selectivity(root, &path, 1));
    // A join filters the rows of the ordered scan.
    shares.beside_plain = is_plain(shares);
    shares.conditions += 1;
    shares.entries *= share;
    path.path.rows = std::max(1.0, rows);
    const ScanCost cost = price(root, &path, 1, shares, true);
    return {cost.startup, cost.all};
}

void ivfpq_cost(PlannerInfo* root, IndexPath* path, double loop_count, Cost* startup_cost,
                Cost* total_cost, Selectivity* selectivity, double* correlation, double* pages) {
    *selectivity = 1;
    // The scan has just visited the rows that it returns, so that the executor finds their pages in
    // memory. Their visits are in the costs below; the planner's own estimate for rows in the order
    // of the table adds little.
    *correlation = 1;
    // The index supports ORDER BY one distance and nothing else. It has no entries of rows without
    // a vector.
    if (list_length(path->indexorderbys) != 1 || wants_null_vectors(path)) {
        *startup_cost = *total_cost = get_float8_infinity();
        *pages = 0;
        compat_disable(path);
        return;
    }

    const IndexOptInfo* info = path->indexinfo;
    const PassingShares shares =
        passing_shares(root, path, index_selectivity(root, path, loop_count));
    // Of the rows that the scan visits, it returns those that pass.
    *selectivity = std::min(1.0, path->path.rows / std::max(1.0, info->rel->tuples));
    const ScanCost cost = price(root, path, loop_count, shares, true);
    *startup_cost = cost.startup;
    *total_cost = cost.all;
    *pages = std::max(1.0, static_cast<double>(info->pages));
}

}  // namespace pgwarp
