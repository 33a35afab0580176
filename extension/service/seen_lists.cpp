#include "extension/service/seen_lists.h"
#include "extension/index/change_counts.h"

extern "C" {
#include "access/xlog.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

struct SeenIndex {
    MirrorKey key;
    SeenList* lists;
    uint64 last_used;
};

// The indexes of a partitioned table are searched in turn.
constexpr int most_indexes_seen = 64;
SeenIndex seen[most_indexes_seen];
uint64 calls = 0;

}  // namespace

SeenList* seen_lists(const MirrorKey& key, uint32 count) {
    if (!change_counts || RecoveryInProgress()) return nullptr;
    ++calls;
    SeenIndex* longest_unused = seen;
    for (SeenIndex& index : seen) {
        if (index.lists && index.key == key) {
            index.last_used = calls;
            return index.lists;
        }
        if (index.last_used < longest_unused->last_used) longest_unused = &index;
    }
    SeenIndex& index = *longest_unused;
    if (index.lists) pfree(index.lists);
    index.lists = static_cast<SeenList*>(MemoryContextAllocExtended(
        TopMemoryContext, Size{count} * sizeof(SeenList), MCXT_ALLOC_NO_OOM | MCXT_ALLOC_ZERO));
    index.key = key;
    index.last_used = index.lists ? calls : 0;
    return index.lists;
}

}  // namespace pgwarp
