// Counters of indexes, in shared memory, for a limited number of indexes. If all entries are in
// use, a new index evicts the least recently used one. So no entry has to be freed explicitly: a
// standby is never told of a dropped index.

#include <algorithm>

#include "kernels/mirror.h"
#include "extension/service/service.h"
#include "extension/settings.h"

extern "C" {
#include "access/xact.h"
}

namespace pgwarp {

namespace {

// Entries that this process has used; each may belong to another index by now. A query of many
// partitions looks for as many entries, and others write to all of them.
IndexStatistics* known_places[most_indexes];

IndexStatistics*& known_place(Oid index) {
    return known_places[index % most_indexes];
}

bool is_of(const IndexStatistics& entry, Oid database, Oid index) {
    return entry.index == index && entry.database == database;
}

// At most once a second: all backends write to this cache line.
void touch(IndexStatistics* entry) {
    const auto now = static_cast<uint64>(GetCurrentStatementStartTimestamp());
    if (now - pg_atomic_read_u64(&entry->last_used) > USECS_PER_SEC)
        pg_atomic_write_u64(&entry->last_used, now);
}

// The caller holds the lock. `index` is written last, because readers take no lock.
IndexStatistics* give_place(Oid database, Oid index) {
    IndexStatistics* place = nullptr;
    for (IndexStatistics& entry : statistics_places()) {
        if (is_of(entry, database, index)) return &entry;
        if (entry.index == InvalidOid) {
            if (!place || place->index != InvalidOid) place = &entry;
        } else if (!place ||
                   (place->index != InvalidOid &&
                    pg_atomic_read_u64(&entry.last_used) < pg_atomic_read_u64(&place->last_used))) {
            place = &entry;
        }
    }
    place->index = InvalidOid;
    pg_write_barrier();
    for (pg_atomic_uint64& counter : place->counters) pg_atomic_write_u64(&counter, 0);
    pg_atomic_write_u64(&place->last_used,
                        static_cast<uint64>(GetCurrentStatementStartTimestamp()));
    place->database = database;
    pg_write_barrier();
    place->index = index;
    return place;
}

}  // namespace

std::span<IndexStatistics> statistics_places() {
    return {service->statistics, static_cast<size_t>(service->places)};
}

IndexStatistics* find_statistics(Oid database, Oid index) {
    if (!service) return nullptr;
    IndexStatistics*& known = known_place(index);
    if (known && is_of(*known, database, index)) return known;
    for (IndexStatistics& entry : statistics_places())
        if (is_of(entry, database, index)) return known = &entry;
    return nullptr;
}

IndexStatistics* statistics_of(Oid database, Oid index) {
    if (!service) return nullptr;
    IndexStatistics* result = find_statistics(database, index);
    if (!result) {
        LWLockAcquire(service->lock, LW_EXCLUSIVE);
        result = known_place(index) = give_place(database, index);
        LWLockRelease(service->lock);
    }
    touch(result);
    return result;
}

void forget_statistics(Oid database, Oid index) {
    if (!service) return;
    LWLockAcquire(service->lock, LW_EXCLUSIVE);
    for (IndexStatistics& entry : statistics_places())
        if (entry.database == database && (index == InvalidOid || entry.index == index))
            entry.database = entry.index = InvalidOid;
    LWLockRelease(service->lock);
}

void reset_statistics(Oid database) {
    if (!service) return;
    for (IndexStatistics& entry : statistics_places())
        if (entry.database == database)
            for (pg_atomic_uint64& counter : entry.counters) pg_atomic_write_u64(&counter, 0);
}

}  // namespace pgwarp
