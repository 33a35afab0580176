#include "extension/index/change_counts.h"

extern "C" {
#include "common/hashfn.h"
#include "miscadmin.h"
}

namespace pgwarp {

ChangeCounts* change_counts = nullptr;

namespace {

uint32 first_count(Relation index) {
    return hash_combine(hash_combine(murmurhash32(MyDatabaseId), compat_tablespace(index)),
                        murmurhash32(compat_file_number(index)));
}

}  // namespace

void init_change_counts(ChangeCounts* counts) {
    for (pg_atomic_uint64& count : counts->counts) pg_atomic_init_u64(&count, 0);
}

void count_change(Relation index, uint32 list) {
    if (!change_counts) return;
    const uint32 at = (first_count(index) + list) % ChangeCounts::size;
    pg_atomic_fetch_add_u64(&change_counts->counts[at], 1);
}

ListChanges::ListChanges(Relation index) : first_(first_count(index)) {}

}  // namespace pgwarp
