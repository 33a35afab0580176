// What the SQL functions over an index share.
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

// What a function does with an index, and who may.
enum class Purpose {
    // Tells of the table's rows: for those who may read all of them.
    read,
    // Takes a lock that keeps VACUUM out: for those who may run VACUUM.
    maintain,
};

// Opens an ivfpq index and its table with this lock on both; reports an error where the relation is
// no valid ivfpq index, or the caller lacks the right. Until it is closed, code runs with the
// rights of the table's owner and cannot change the session: index expressions are the owner's
// code, and the caller may be a superuser.
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
