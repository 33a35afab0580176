// Vectors of a sample that lie in TOAST. Drawing notes where they are; those that stay in the
// sample are read once it is drawn, by several processes: reading a vector from TOAST takes longer
// than drawing its row.
#pragma once

#include "kernels/common.h"
#include "extension/compat.h"

extern "C" {
#include "access/detoast.h"
#include "utils/rel.h"
}

namespace pgwarp {

// A vector to read, and its slot in the sample.
struct StoredValue {
    uint32 slot;
    uint8 pointer[TOAST_POINTER_SIZE];  // as in the table's row
};

class StoredValues {
  public:
    // In the current memory context; takes no memory before the first value.
    explicit StoredValues(uint32 room) : room_(room), context_(CurrentMemoryContext) {}

    // The slot's row has this value. False, and the slot counts as read: it does not lie in TOAST.
    bool note(uint32 slot, Datum value);

    // The values noted last for each slot, in the order of the slots: (*count) of them.
    StoredValue* all(uint32* count) const;

  private:
    uint32 room_;
    MemoryContext context_;
    uint8* pointers_ = nullptr;  // (room)(TOAST_POINTER_SIZE); zeros: the slot is read
};

// Reads the values into rows[slot], (dims), in index form, with up to `workers` workers.
void read_stored_values(Relation heap, Relation index, bool concurrent, Metric metric,
                        const StoredValues& values, uint32 dims, float* rows, int workers);

}  // namespace pgwarp

extern "C" PGWARP_EXPORT void pgwarp_sample_worker(struct dsm_segment* segment,
                                                   struct shm_toc* toc);
