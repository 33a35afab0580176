// Conditions on attributes that the plan has as a filter, as scan keys.
//
// Before version 17, PostgreSQL gives an access method no IN on a column after the first where the
// scan is ordered; before 18 no OR of equalities; before 16 no condition that is a boolean column
// itself; and no version gives it <> and NOT IN. The executor checks them as filters. The scan can
// check them, too, before it keeps a candidate.
#pragma once

#include <span>

#include "extension/compat.h"

extern "C" {
#include "access/skey.h"
#include "nodes/execnodes.h"
}

namespace pgwarp {

// A condition that a key may stand for: `column OPERATOR ANY (array)`, its negation, or a boolean
// that is `value`.
struct FilterForm {
    Expr* column;
    Expr* array;  // null: a boolean
    Oid operation;
    Oid collation;
    bool value;
    bool negated;  // NOT (column OPERATOR ANY (array))
};
// All forms of a condition: `a <> 1` is also a boolean by itself. Arrays of a form are the same for
// the whole scan. The caller checks that the column is an attribute of the index.
struct FilterForms {
    FilterForm items[2];
    uint32 count;

    std::span<const FilterForm> all() const { return {items, count}; }
};
FilterForms filter_forms(Expr* condition);
// Whether an attribute of this operator family, type and collation can check it.
bool can_be_key(const FilterForm& form, Oid family, Oid type, Oid collation);

// For the plan of a scan; in the current memory context. `others`: whether the plan has filters
// that the scan must check on rows, because they are no keys, or rough ones.
List* init_filter_keys(IndexScanState* scan, bool* others);

// Evaluates them into `keys`, which has room for all. The executor checks the filters, too.
int evaluate_filter_keys(List* filters, IndexScanState* scan, ScanKeyData* keys);

}  // namespace pgwarp
