// The conditions of a scan: its keys on attributes, as a scan of lists checks them.
#pragma once

#include "kernels/conditions.h"
#include "extension/compat.h"
#include "extension/index/attributes.h"
#include "extension/scan/row_set.h"

extern "C" {
#include "access/skey.h"
#include "utils/rel.h"
}

namespace pgwarp {

struct Conditions {
    const IndexAttributes* attributes;
    Condition* items;
    uint32 count;
    bool recheck;  // entries that pass may fail the keys: the executor must check their rows
    bool rough;    // many of them may
    bool never;    // no row passes
    // Of a bitmap scan: entries of other rows do not pass. Null: there is none.
    const RowSet* rows;
    // The scan ranks these rows, and reads no list.
    bool ranks_rows;

    std::span<const Condition> all() const { return {items, count}; }
};

// Allocated in the current memory context.
Conditions make_conditions(Relation index, const ScanKeyData* keys, int count);

}  // namespace pgwarp
