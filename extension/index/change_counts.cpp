#include "extension/index/change_counts.h"

extern "C" {
#include "common/hashfn.h"
#include "miscadmin.h"
}

namespace pgwarp {

ChangeCounts* change_counts = nullptr;

namespace {

uint32 hash_of(Oid database, Oid tablespace, uint32 file) {
    return hash_combine(hash_combine(murmurhash32(database), tablespace), murmurhash32(file));
}

uint32 hash_of(Relation index) {
    return hash_of(MyDatabaseId, compat_tablespace(index), compat_file_number(index));
}

}  // namespace

void init_change_counts(ChangeCounts* counts) {
    for (pg_atomic_uint64& count : counts->counts) pg_atomic_init_u64(&count, 0);
    for (pg_atomic_uint64& count : counts->index_counts) pg_atomic_init_u64(&count, 0);
}

void count_change(Relation index, uint32 list) {
    if (!change_counts) return;
    const uint32 hash = hash_of(index);
    // Each is a full barrier: a process that sees the second sees the first, too.
    pg_atomic_fetch_add_u64(&change_counts->counts[(hash + list) % ChangeCounts::size], 1);
    pg_atomic_fetch_add_u64(&change_counts->index_counts[hash % ChangeCounts::indexes], 1);
}

ListChanges::ListChanges(Relation index) : hash_(hash_of(index)) {}

ListChanges::ListChanges(Oid database, Oid tablespace, uint32 file)
    : hash_(hash_of(database, tablespace, file)) {}

}  // namespace pgwarp
