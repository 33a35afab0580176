#include <type_traits>

#include "extension/service/seen_lists.h"
#include "extension/index/change_counts.h"

extern "C" {
#include "access/xlog.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

struct SeenIndex {
    MirrorKey key;
    SeenList* lists;
};

// All of it is forgotten when it becomes larger than this.
constexpr Size most_bytes = Size{16} << 20;
MemoryContext memory = nullptr;
HTAB* seen = nullptr;
Size bytes = 0;

void begin() {
    memory = AllocSetContextCreate(TopMemoryContext, "pgwarp seen lists", ALLOCSET_DEFAULT_SIZES);
    HASHCTL options = {};
    options.keysize = sizeof(MirrorKey);
    options.entrysize = sizeof(SeenIndex);
    options.hcxt = memory;
    seen = hash_create("pgwarp seen lists", 16, &options, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
    bytes = 0;
}

void forget_all() {
    MemoryContextDelete(memory);
    memory = nullptr;
    seen = nullptr;
}

}  // namespace

SeenList* seen_lists(const MirrorKey& key, uint32 count) {
    static_assert(std::has_unique_object_representations_v<MirrorKey>, "has no padding");
    if (!change_counts || RecoveryInProgress()) return nullptr;
    if (seen) {
        const void* found = hash_search(seen, &key, HASH_FIND, nullptr);
        if (found) return static_cast<const SeenIndex*>(found)->lists;
    }
    const Size wanted = Size{count} * sizeof(SeenList);
    if (seen && bytes + wanted > most_bytes) forget_all();
    if (!seen) begin();
    auto* lists = static_cast<SeenList*>(
        MemoryContextAllocExtended(memory, wanted, MCXT_ALLOC_NO_OOM | MCXT_ALLOC_ZERO));
    if (!lists) return nullptr;
    bool known;
    static_cast<SeenIndex*>(hash_search(seen, &key, HASH_ENTER, &known))->lists = lists;
    bytes += wanted;
    return lists;
}

}  // namespace pgwarp
