#include <algorithm>

#include "extension/am/shares.h"
#include "extension/scan/bound.h"
#include "extension/scan/filter_keys.h"

extern "C" {
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
}

namespace pgwarp {

namespace {

// Whether the scan checks the condition on an attribute, although PostgreSQL has it as a filter.
bool is_filter_key(const IndexOptInfo* info, Expr* condition) {
    if (info->nkeycolumns < 2) return false;
    const FilterForms forms = filter_forms(condition);
    for (const FilterForm& form : forms.all())
        for (int i = 1; i < info->nkeycolumns; ++i)
            if (match_index_to_operand(reinterpret_cast<Node*>(form.column), i,
                                       const_cast<IndexOptInfo*>(info)) &&
                can_be_key(form, info->opfamily[i], info->opcintype[i], info->indexcollations[i]))
                return true;
    return false;
}

}  // namespace

PassingShares passing_shares(PlannerInfo* root, const IndexPath* path, Selectivity selectivity) {
    const IndexOptInfo* info = path->indexinfo;
    const RelOptInfo* table = info->rel;
    const double table_rows = std::max(1.0, table->tuples);
    const auto* distance = static_cast<const Expr*>(linitial(path->indexorderbys));
    double keys = 1;
    double bounds = 1;
    PassingShares shares = {};
    for (int i = 0; i < list_length(path->indexclauses); ++i)
        shares.conditions +=
            lfirst_node(IndexClause, list_nth_cell(path->indexclauses, i))->indexcol > 0;
    for (int i = 0; i < list_length(info->indrestrictinfo); ++i) {
        RestrictInfo* restriction =
            lfirst_node(RestrictInfo, list_nth_cell(info->indrestrictinfo, i));
        if (restriction->pseudoconstant ||
            is_redundant_with_indexclauses(restriction, path->indexclauses))
            continue;
        const bool is_key = is_filter_key(info, restriction->clause);
        // The scan ends at a bound on the distance: rows beyond it are not looked for.
        if (!is_key && !bounds_distance(restriction->clause, distance)) continue;
        const double share =
            clause_selectivity(root, reinterpret_cast<Node*>(restriction),
                               static_cast<int>(table->relid), JOIN_INNER, nullptr);
        if (is_key)
            ++shares.conditions, keys *= share;
        else
            bounds *= share;
    }
    // Entries of a partial index have passed its predicate, which the selectivity has as well.
    const double passing = std::max(1e-9, table_rows * selectivity * keys);
    shares.entries =
        shares.conditions > 0 ? std::min(1.0, passing / std::max(1.0, info->tuples)) : 1;
    shares.rows = std::min(1.0, path->path.rows / (passing * std::max(bounds, least_share)));
    return shares;
}

}  // namespace pgwarp
