// How SQL functions open the index that is their argument: privileges, locks, checks.
#pragma once

#include "extension/index/format.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// The table of an index; an error where the relation is no index.
Oid table_of(Oid index);
// Reports an error unless this is a valid ivfpq index that can be read here.
void check_index(Relation index);

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
void close_index(const OpenIndex& open);

}  // namespace pgwarp
