// Whether a table's rows are where PostgreSQL keeps them. Another extension may plan queries of a
// table by itself: on a coordinator of Citus, a distributed table is an empty shell, or has rows
// that no query returns. Code that scans such a table, or its index, would return wrong rows.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "optimizer/paths.h"
}

namespace pgwarp {

enum class RowsAre {
    in_table,   // a plain scan of the table, its children and partitions returns them
    by_query,   // in the table, but a node of an extension or a foreign table reads it
    elsewhere,  // no node of the plan reads the table
};
// By the plan of SELECT FROM the table. Planning costs some time, and is left out where no
// extension has a hook in the planner. Locks the table, its children and partitions. PostgreSQL
// does not plan while an index of the table is rebuilt.
RowsAre where_rows_are(Oid table);

// Installs a hook of pgwarp and returns the one before it, for the hook to call.
set_rel_pathlist_hook_type install_path_hook(set_rel_pathlist_hook_type hook);

// Whether another extension has a hook in the planner.
bool is_planned_by_others();

// Reports an error where the rows are elsewhere: the table's index does not have them.
void check_rows_are_here(Oid table);

}  // namespace pgwarp
