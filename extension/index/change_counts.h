// How often lists have changed, in shared memory, of each list and of all lists of an index: a
// process that knows a list's contents as of a count knows by the count that they are still the
// same, and reads no page.
//
// A change is counted before its buffers are unlocked, for the list first, then for the index. So
//
//     a scan whose snapshot sees a row finds it counted, for the list and for the index
//     a process that reads a list's count and then its pages has all changes up to that count
//     a process that reads an index's count and then those of lists has all changes up to the first
//
// A standby replays changes from WAL, which counts nothing.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "port/atomics.h"
#include "utils/rel.h"
}

namespace pgwarp {

// Lists share a counter if their index has more lists than there are counters, or by chance; so do
// indexes. Then a change of one looks like a change of the other, and never the other way round.
struct ChangeCounts {
    static constexpr uint32 size = 1 << 16;
    static constexpr uint32 indexes = 1 << 12;
    pg_atomic_uint64 counts[size];
    pg_atomic_uint64 index_counts[indexes];
};

// Null if nothing is counted, because there is no service.
extern ChangeCounts* change_counts;

void init_change_counts(ChangeCounts* counts);
void count_change(Relation index, uint32 list);

// Reads the counts of an index and of its lists.
class ListChanges {
  public:
    explicit ListChanges(Relation index);
    ListChanges(Oid database, Oid tablespace, uint32 file);
    uint64 of(uint32 list) const {
        return pg_atomic_read_u64(&change_counts->counts[(hash_ + list) % ChangeCounts::size]);
    }
    uint64 of_index() const {
        return pg_atomic_read_u64(&change_counts->index_counts[hash_ % ChangeCounts::indexes]);
    }

  private:
    uint32 hash_;
};

}  // namespace pgwarp
