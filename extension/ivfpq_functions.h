// What the SQL functions over an index share.
#pragma once

#include "extension/ivfpq_format.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// Opens an ivfpq index and its table with this lock on both; reports an error where the relation is
// no valid ivfpq index, or the caller may not read the table.
struct OpenIndex {
    Relation heap;
    Relation index;
    LOCKMODE lock;
};
OpenIndex open_index(Oid relation, LOCKMODE lock);
void close_index(const OpenIndex& open);

}  // namespace pgwarp
