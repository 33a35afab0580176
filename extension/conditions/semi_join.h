// Semi-joins whose column is an attribute of the index.
//
//   SELECT ... FROM docs WHERE EXISTS (SELECT FROM acl WHERE acl.doc_group = docs.doc_group
//       AND acl.user_id = 7) ORDER BY embedding <-> $1 LIMIT 10
//
// The planner hook (semi_plan.cpp) adds a custom scan with two children: the ordered scan of an
// index that has doc_group, and the other side. The custom scan (semi_execute.cpp) reads the other
// side's keys first, and gives them to the ordered scan as a condition, as IN would be. It looks
// each row's key up again, so what the index makes of a key decides nothing.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "nodes/extensible.h"
}

namespace pgwarp {

// What the planner tells the custom scan.
struct SemiJoinPlan {
    int column;      // of the ordered scan's rows, counted from 1
    int key_column;  // of the other side's rows
    int attribute;   // of the index
    Oid equality;    // of values of one type
    Oid type;
    Oid collation;
};
List* make_semi_join_private(const SemiJoinPlan& plan);
SemiJoinPlan semi_join_plan_of(const CustomScan* scan);

extern const CustomScanMethods semi_join_methods;

// Installs the hook of the planner, and the custom scan.
void install_semi_joins();

}  // namespace pgwarp
