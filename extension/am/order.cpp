// Before 17, PostgreSQL makes a path of an index that orders by an operator only where ORDER BY has
// nothing but that distance. This hook has it make the paths again for an ORDER BY that ends after
// the first key. They carry that one key, as those of 17 do, and the planner puts an Incremental
// Sort above them where that is cheaper than another plan.

#include "extension/am/callbacks.h"
#include "extension/am/order.h"
#include "extension/table/planned.h"

extern "C" {
#include "optimizer/cost.h"
#include "optimizer/paths.h"
}

namespace pgwarp {

#if PG_VERSION_NUM < 170000

namespace {

set_rel_pathlist_hook_type previous_hook = nullptr;

List* ivfpq_indexes(const RelOptInfo* relation) {
    List* indexes = NIL;
    for (const ListCell* cell = list_head(relation->indexlist); cell;
         cell = lnext(relation->indexlist, cell))
        if (compat_is_cost_function(lfirst_node(IndexOptInfo, cell), ivfpq_cost))
            indexes = lappend(indexes, lfirst(cell));
    return indexes;
}

void add_ordered_paths(PlannerInfo* root, RelOptInfo* relation) {
    if (!enable_incremental_sort || list_length(root->query_pathkeys) < 2) return;
    List* indexes = ivfpq_indexes(relation);
    if (indexes == NIL) return;
    List* const all_indexes = relation->indexlist;
    List* const all_keys = root->query_pathkeys;
    relation->indexlist = indexes;
    root->query_pathkeys = list_make1(linitial(all_keys));
    create_index_paths(root, relation);
    root->query_pathkeys = all_keys;
    relation->indexlist = all_indexes;
}

void set_paths(PlannerInfo* root, RelOptInfo* relation, Index number, RangeTblEntry* entry) {
    if (previous_hook) previous_hook(root, relation, number, entry);
    // A table that PostgreSQL itself makes such paths for.
    if (entry->rtekind == RTE_RELATION && !entry->inh && !entry->tablesample &&
        !IS_DUMMY_REL(relation))
        add_ordered_paths(root, relation);
}

}  // namespace

void install_order_planner() {
    previous_hook = install_path_hook(set_paths);
}

#else

void install_order_planner() {}

#endif

}  // namespace pgwarp
