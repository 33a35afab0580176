#include <cstring>

#include "extension/types/vector_cache.h"

extern "C" {
#include "access/detoast.h"
}

namespace pgwarp {

// A hash table with open addressing, never more than half full, without deletion.
struct VectorCache {
    static constexpr uint32 slots = 512;
    struct Slot {
        Oid relation;
        Oid value;
        const varlena* detoasted;  // null: a free slot
    };

    VectorCache* next;
    MemoryContextCallback callback;
    Scratch* scratch;
    Size mark;  // of the scratch memory, before the first vector
    uint32 count;
    // Valid where `count` is not 0: most scans keep nothing, and clearing it takes as long as the
    // coarse step of a small index.
    Slot table[slots];

    Slot* find(Oid relation, Oid value) {
        uint32 at = (value * 2654435761u) % slots;
        while (table[at].detoasted && (table[at].relation != relation || table[at].value != value))
            at = (at + 1) % slots;
        return &table[at];
    }
};

namespace {

VectorCache* caches = nullptr;

void drop_cache(void* cache) {
    for (VectorCache** at = &caches; *at; at = &(*at)->next)
        if (*at == cache) {
            *at = (*at)->next;
            return;
        }
}

bool is_external(Datum datum, varatt_external* pointer) {
    varlena* value = reinterpret_cast<varlena*>(DatumGetPointer(datum));
    if (!VARATT_IS_EXTERNAL_ONDISK(value)) return false;
    VARATT_EXTERNAL_GET_POINTER(*pointer, value);
    return true;
}

}  // namespace

VectorCache* open_vector_cache(MemoryContext context, Scratch* scratch) {
    auto* cache = static_cast<VectorCache*>(scratch_alloc(scratch, sizeof(VectorCache)));
    cache->scratch = scratch;
    cache->count = 0;
    cache->callback.func = drop_cache;
    cache->callback.arg = cache;
    MemoryContextRegisterResetCallback(context, &cache->callback);
    cache->next = caches;
    caches = cache;
    return cache;
}

void clear_vector_cache(VectorCache* cache) {
    if (cache->count == 0) return;
    cache->count = 0;
    scratch_return(cache->scratch, cache->mark);
}

void keep_value(VectorCache* cache, Datum datum, const varlena* value) {
    varatt_external pointer;
    if (!is_external(datum, &pointer) || cache->count == VectorCache::slots / 2) return;
    if (cache->count == 0) memset(cache->table, 0, sizeof(cache->table));
    VectorCache::Slot* slot = cache->find(pointer.va_toastrelid, pointer.va_valueid);
    if (slot->detoasted) return;
    if (cache->count == 0) cache->mark = scratch_mark(cache->scratch);
    void* copy = scratch_try_alloc(cache->scratch, VARSIZE(value));
    if (!copy) return;
    memcpy(copy, value, VARSIZE(value));
    *slot = {pointer.va_toastrelid, pointer.va_valueid, static_cast<varlena*>(copy)};
    ++cache->count;
}

const varlena* find_value(Datum datum) {
    varatt_external pointer;
    if (caches && is_external(datum, &pointer))
        for (VectorCache* cache = caches; cache; cache = cache->next) {
            if (cache->count == 0) continue;
            const VectorCache::Slot* slot = cache->find(pointer.va_toastrelid, pointer.va_valueid);
            if (slot->detoasted) return slot->detoasted;
        }
    return pg_detoast_datum(reinterpret_cast<varlena*>(DatumGetPointer(datum)));
}

}  // namespace pgwarp
