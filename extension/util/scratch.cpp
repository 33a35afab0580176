#include <cstring>

#include "extension/util/scratch.h"

extern "C" {
#include "utils/memutils.h"
}

namespace pgwarp {

struct Scratch {
    MemoryContext context;
    bool has_block;
    Size used;
    MemoryContextCallback callback;
};

namespace {

constexpr Size block_bytes = 2 * 1024 * 1024;
char* block = nullptr;
bool block_taken = false;

void release_block(void* argument) {
    Scratch* scratch = static_cast<Scratch*>(argument);
    if (scratch->has_block) block_taken = false;
    scratch->has_block = false;
}

}  // namespace

Scratch* open_scratch(MemoryContext context) {
    Scratch* scratch = static_cast<Scratch*>(MemoryContextAllocZero(context, sizeof(Scratch)));
    scratch->context = context;
    scratch->callback.func = release_block;
    scratch->callback.arg = scratch;
    MemoryContextRegisterResetCallback(context, &scratch->callback);
    if (!block) block = static_cast<char*>(MemoryContextAlloc(TopMemoryContext, block_bytes));
    scratch->has_block = !block_taken;
    block_taken = true;
    return scratch;
}

void* scratch_try_alloc(Scratch* scratch, Size bytes) {
    constexpr Size line = 64;
    const Size rounded = TYPEALIGN(line, bytes);
    if (!scratch->has_block || rounded > block_bytes - scratch->used) return nullptr;
    void* piece = block + scratch->used;
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
        if (at < block || at >= block + block_bytes) pfree(old);
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
