// What a scan costs, in the planner's units.
//
// The start of a scan is its first round: the model is read, the probed lists are scanned, and the
// candidates' rows are visited in the table. After it, each further row costs its share of scanning
// everything. The planner takes from the total what a LIMIT wants, so the rounds after the first
// are charged only to queries that reach them.

#include <algorithm>
#include <cmath>

#include "extension/ivfpq.h"
#include "extension/ivfpq_curve.h"
#include "extension/ivfpq_model.h"
#include "extension/ivfpq_page.h"

extern "C" {
#include "access/relation.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "utils/float.h"
#include "utils/selfuncs.h"
#include "utils/spccache.h"
}

namespace pgwarp {

void ivfpq_cost(PlannerInfo* root, IndexPath* path, double loop_count, Cost* startup_cost,
                Cost* total_cost, Selectivity* selectivity, double* correlation, double* pages) {
    *selectivity = 1;
    *correlation = 0;
    // The index answers ORDER BY one distance, and nothing else.
    if (list_length(path->indexorderbys) != 1) {
        *startup_cost = *total_cost = get_float8_infinity();
        *pages = 0;
        compat_disable(path);
        return;
    }

    GenericCosts costs = {};
    genericcostestimate(root, path, loop_count, &costs);
    *selectivity = costs.indexSelectivity;

    Relation index = relation_open(path->indexinfo->indexoid, NoLock);
    const MetaPage meta = read_meta(index);
    relation_close(index, NoLock);

    const double rows = std::max(1.0, path->indexinfo->tuples);
    const double index_pages = std::max(1.0, static_cast<double>(path->indexinfo->pages));
    double random_page, sequential_page;
    get_tablespace_page_costs(path->indexinfo->reltablespace, &random_page, &sequential_page);

    const double k = root->limit_tuples > 0 ? std::min(root->limit_tuples, 10000.0) : 100;
    const Effort effort = choose_effort(meta, static_cast<uint32>(std::ceil(k)));
    double first_share = 1;
    double model_pages = 1;
    double first_rows = rows;
    // A code byte of an entry takes about a tenth of an operator's time.
    const double entry = 0.1 * cpu_operator_cost * std::max(1u, meta.m) * cpu_costs(meta).look_up;
    double start = 0;
    if (meta.lists > 0) {
        first_share = std::min(1.0, static_cast<double>(effort.probes) / meta.lists);
        model_pages = static_cast<double>(meta.directory - meta.centroids);
        first_rows = std::min<double>(rows, effort.candidates);
        start += cpu_operator_cost * meta.lists;
    }
    const double list_pages = std::max(0.0, index_pages - model_pages);
    // The model is read by every scan and stays in the cache.
    start += 0.1 * sequential_page * model_pages;
    // Lists lie on runs of pages; the rows of candidates lie anywhere.
    start += first_share * (list_pages * sequential_page + rows * entry);
    const double row_cost = random_page + cpu_tuple_cost + cpu_operator_cost;
    start += first_rows * row_cost;

    const double all = start + (1 - first_share) * (list_pages * sequential_page + rows * entry) +
                       std::max(0.0, rows - first_rows) * row_cost;
    *startup_cost = start;
    *total_cost = std::max(start, all);
    *pages = index_pages;
}

}  // namespace pgwarp
