// The attributes of an index: its columns after the first.
#pragma once

#include "kernels/conditions.h"
#include "extension/types/attribute.h"

namespace pgwarp {

struct MetaPage;

struct IndexAttributes {
    AttributeLayout layout;
    Attribute items[max_attributes];
};

// Reports columns that cannot be attributes. May allocate in the current memory context.
IndexAttributes attributes_of(Relation index);
// Whether a metapage has the attributes that the index's columns make.
bool describes_attributes(const MetaPage& meta, Relation index);
// A hash function of an attribute, or of an array's elements, that may not run in parallel mode:
// users' code may do there what PostgreSQL forbids, such as catching an error. Invalid: all may.
Oid unsafe_hash(Relation index);
// A copy in the current memory context.
const IndexAttributes* copy_attributes(Relation index);
// Writes them to the metapage of a new index.
void set_attributes(const IndexAttributes& attributes, MetaPage* meta);

// The attributes of one row, (layout.entry_bytes()): numbers, then null bytes. `values` and `nulls`
// are those of all index columns. Runs users' code where a hash function is theirs, and may
// allocate in the current memory context.
void pack_attributes(const IndexAttributes& attributes, const Datum* values, const bool* nulls,
                     uint8* to);

}  // namespace pgwarp
