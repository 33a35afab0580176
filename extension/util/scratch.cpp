#include <cstring>

#include "extension/util/scratch.h"
#include "extension/util/prefetch.h"

extern "C" {
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

// Scans of partitions are open at the same time, and each needs less than a scan of a whole table.
constexpr Size first_bytes = 2 * 1024 * 1024;
constexpr Size other_bytes = 128 * 1024;
constexpr int most_blocks = 65;

struct Block {
    char* memory;  // null: never needed yet
    bool taken;
};
Block blocks[most_blocks];

Size bytes_of(const Block* block) {
    return block == blocks ? first_bytes : other_bytes;
}

}  // namespace

struct Scratch {
    MemoryContext context;
    Block* block;  // null: none was free
    Size used;
    MemoryContextCallback callback;
};

namespace {

void release_block(void* argument) {
    Scratch* scratch = static_cast<Scratch*>(argument);
    if (scratch->block) scratch->block->taken = false;
    scratch->block = nullptr;
}

Block* take_block() {
    for (Block& block : blocks) {
        if (block.taken) continue;
        if (!block.memory)
            block.memory =
                static_cast<char*>(MemoryContextAlloc(TopMemoryContext, bytes_of(&block)));
        block.taken = true;
        return &block;
    }
    return nullptr;
}

}  // namespace

Scratch* open_scratch(MemoryContext context) {
    Scratch* scratch = static_cast<Scratch*>(MemoryContextAllocZero(context, sizeof(Scratch)));
    scratch->context = context;
    scratch->callback.func = release_block;
    scratch->callback.arg = scratch;
    MemoryContextRegisterResetCallback(context, &scratch->callback);
    scratch->block = take_block();
    return scratch;
}

void* scratch_try_alloc(Scratch* scratch, Size bytes) {
    const Size rounded = TYPEALIGN(cache_line, bytes);
    const Block* block = scratch->block;
    if (!block || rounded > bytes_of(block) - scratch->used) return nullptr;
    void* piece = block->memory + scratch->used;
    scratch->used += rounded;
    return piece;
}

void* scratch_alloc(Scratch* scratch, Size bytes) {
    void* piece = scratch_try_alloc(scratch, bytes);
    return piece ? piece : MemoryContextAllocHuge(scratch->context, bytes);
}

void* scratch_grow(Scratch* scratch, void* old, Size old_bytes, Size bytes) {
    void* piece = scratch_alloc(scratch, bytes);
    if (old) {
        memcpy(piece, old, old_bytes);
        const char* at = static_cast<char*>(old);
        const Block* block = scratch->block;
        if (!block || at < block->memory || at >= block->memory + bytes_of(block)) pfree(old);
    }
    return piece;
}

Size scratch_mark(const Scratch* scratch) {
    return scratch->used;
}

void scratch_return(Scratch* scratch, Size mark) {
    Assert(mark <= scratch->used);
    scratch->used = mark;
}

}  // namespace pgwarp
