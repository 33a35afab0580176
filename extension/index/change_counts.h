// How often lists have changed, in shared memory: a backend that has seen a list on its pages knows
// by its count that the list is still the same, and reads no page.
//
// A change is counted before its buffers are unlocked. So a scan whose snapshot sees a row finds it
// counted. A standby replays changes from WAL, which counts nothing.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "port/atomics.h"
#include "utils/rel.h"
}

namespace pgwarp {

// Lists share a counter if their index has more lists than there are counters, or by chance.
struct ChangeCounts {
    static constexpr uint32 size = 1 << 16;
    pg_atomic_uint64 counts[size];
};

// Null if nothing is counted, because there is no service.
extern ChangeCounts* change_counts;

void init_change_counts(ChangeCounts* counts);
void count_change(Relation index, uint32 list);

// Reads the counts of an index's lists.
class ListChanges {
  public:
    explicit ListChanges(Relation index);
    uint64 of(uint32 list) const {
        return pg_atomic_read_u64(&change_counts->counts[(first_ + list) % ChangeCounts::size]);
    }

  private:
    uint32 first_;
};

}  // namespace pgwarp
