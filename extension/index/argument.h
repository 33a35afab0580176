// How SQL functions open the index that is their argument: privileges, locks, checks.
#pragma once

#include "extension/index/format.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// The table of an index; an error where the relation is no index.
Oid table_of(Oid index);
// Reports an error unless this is a valid ivfpq index that can be read here. One of a partitioned
// table has no pages; its leaves have.
enum class Partitioned { refused, accepted };
void check_index(Relation index, Partitioned partitioned = Partitioned::refused);

// A partition that holds rows, and its part of an index of the partitioned table.
struct IndexLeaf {
    Oid table;
    Oid index;  // invalid: the partition is a foreign table, which has no indexes
};
struct IndexLeaves {
    IndexLeaf* leaves;
    int count;
};
// All leaves of a partitioned table, of all levels, in a fixed order. Locks all members of both
// trees with AccessShareLock until the end of the transaction. A partition that is being detached
// is a leaf where a query would read it.
IndexLeaves find_leaves(Relation table, Relation index);

// What a function does with an index; decides which privilege the caller needs.
enum class Purpose {
    // Reveals the table's rows: the caller needs SELECT, and no row security policy may apply.
    read,
    // Takes a lock that blocks VACUUM: the caller must be allowed to run VACUUM.
    maintain,
};

// Opens an ivfpq index and its table with this lock on both; reports an error where the relation is
// no valid ivfpq index, or the caller lacks the privilege. Until close_index(), code runs as the
// table's owner in a security-restricted operation, which cannot change the session: index
// expressions are the owner's code, and the caller may be a superuser.
struct OpenIndex {
    Relation heap;
    Relation index;
    LOCKMODE lock;
    Oid caller;
    int caller_context;
    int settings_level;
};
OpenIndex open_index(Oid relation, LOCKMODE lock, Purpose purpose = Purpose::read);

// The indexes with pages that an index consists of: itself, or those of all partitions. An error
// where these do not have the rows of the table (table/planned.h). The caller needs the privilege
// on the index's table, and for maintenance on each partition, too. Partitions that are foreign
// tables have no part. Those of a partitioned index are locked as by find_leaves().
IndexLeaves find_parts(Oid relation, Purpose purpose = Purpose::read);
// As open_index(), for one of them.
OpenIndex open_part(const IndexLeaf& part, LOCKMODE lock);
void close_index(const OpenIndex& open);

}  // namespace pgwarp
