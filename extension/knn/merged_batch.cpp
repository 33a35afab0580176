#include <algorithm>
#include <cstring>

#include "extension/index/page.h"
#include "extension/index/table_rows.h"
#include "extension/knn/lists.h"
#include "extension/knn/merged_batch.h"

extern "C" {
#include "miscadmin.h"
#include "utils/memutils.h"
}

namespace pgwarp {

struct MergedBatch {
    MemoryContext context;
    MemoryContext search_context;  // reset by each search
    const KnnIndex* index;
    uint32 k;
    uint32 room;
    KnnBatch* whole;  // null: the leaves are searched

    KnnMemory memory;  // of each leaf
    SearchThreads* threads;
    bool keeps_leaves;  // all stay open
    KnnBatch** leaves;  // (leaf_count); null: not open

    // Of the last search of leaves:
    KnnRow* rows;    // (count)(k), nearest first
    uint32* counts;  // (count)
    KnnRow* merged;  // (2 k)
};

namespace {

bool searched_as_one(const KnnIndex& index) {
    return index.by_query || !index.partitioned;
}

// Whether the lists of a leaf fit into this memory; of an index without any, its pending rows.
bool fits(const KnnIndex& leaf, Size memory) {
    const MetaPage meta = read_meta(leaf.index);
    const Size blocks = RelationGetNumberOfBlocks(leaf.index);
    if (meta.lists == 0) return blocks * BLCKSZ <= memory / 6;
    const double pages = static_cast<double>(blocks) - static_cast<double>(meta.refinement_pages);
    return would_fit_all_lists(meta, pages, current_rows(leaf.heap, leaf.index), memory);
}

Size query_bytes(const MergedBatch* batch) {
    const Size row_bytes = 2 * Size{batch->k} * sizeof(KnnRow);
    return batch->index->dims * sizeof(float) + row_bytes + 64;
}

// Room is 0 where memory does not hold one query.
void plan_memory(MergedBatch* batch) {
    const KnnIndex& index = *batch->index;
    const Size memory = static_cast<Size>(maintenance_work_mem) * 1024;
    batch->room = static_cast<uint32>(std::min<Size>(16384, memory / 8 / query_bytes(batch)));
    batch->memory = {memory / 4, memory * 5 / 8};
    const Size share = batch->memory.lists / static_cast<Size>(Max(index.leaf_count, 1));
    batch->keeps_leaves = index.leaf_count == 1 ||
                          std::all_of(index.leaves, index.leaves + index.leaf_count,
                                      [share](const KnnIndex& leaf) { return fits(leaf, share); });
    if (batch->keeps_leaves) batch->memory.lists = share;
}

void merge_rows(MergedBatch* batch, uint32 query, const KnnRows& found) {
    KnnRow* mine = batch->rows + Size{query} * batch->k;
    const KnnRow* end = std::merge(mine, mine + batch->counts[query], found.rows,
                                   found.rows + found.count, batch->merged, nearer);
    batch->counts[query] =
        static_cast<uint32>(std::min<Size>(static_cast<Size>(end - batch->merged), batch->k));
    std::copy_n(batch->merged, batch->counts[query], mine);
}

KnnBatch* open_leaf(MergedBatch* batch, int number) {
    if (!batch->leaves[number]) {
        const MemoryContext before = MemoryContextSwitchTo(batch->context);
        batch->leaves[number] =
            open_knn_batch(batch->index->leaves[number], batch->k, batch->memory, batch->threads);
        MemoryContextSwitchTo(before);
    }
    return batch->leaves[number];
}

// Searches all leaves, which stay open.
void search_leaves(MergedBatch* batch, const float* queries, uint32 count) {
    const int leaves = batch->index->leaf_count;
    // Each keeps rows of its own, until all have searched.
    uint32 most = static_cast<uint32>(std::clamp<Size>(
        batch->memory.queries / (static_cast<Size>(Max(leaves, 1)) * found_bytes(batch->k)), 1,
        Max(count, 1u)));
    for (int i = 0; i < leaves; ++i) {
        expect_queries(open_leaf(batch, i), count);
        most = std::min(most, most_queries(batch->leaves[i]));
    }
    for (uint32 first = 0; first < count; first += most) {
        const uint32 here = std::min(most, count - first);
        search_batches(batch->leaves, leaves, queries + Size{first} * batch->index->dims, here);
        for (int i = 0; i < leaves; ++i) {
            for (uint32 query = 0; query < here; ++query)
                merge_rows(batch, first + query, rows_of(batch->leaves[i], query));
            forget_rows(batch->leaves[i]);
        }
    }
}

// Searches one leaf, which does not stay open.
void search_leaf(MergedBatch* batch, int number, const float* queries, uint32 count) {
    const KnnIndex& leaf = batch->index->leaves[number];
    KnnBatch* open = open_leaf(batch, number);
    for (uint32 first = 0; first < count;) {
        const uint32 here = std::min(count - first, most_queries(open));
        search_batch(open, queries + Size{first} * leaf.dims, here);
        for (uint32 i = 0; i < here; ++i) merge_rows(batch, first + i, rows_of(open, i));
        first += here;
    }
    close_knn_batch(open);
    batch->leaves[number] = nullptr;
}

}  // namespace

namespace {

MergedBatch* new_merged_batch(const KnnIndex& index, uint32 k) {
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "knn of leaves", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);
    auto* batch = static_cast<MergedBatch*>(palloc0(sizeof(MergedBatch)));
    batch->context = context;
    batch->search_context = AllocSetContextCreate(context, "knn rows", ALLOCSET_DEFAULT_SIZES);
    batch->index = &index;
    batch->k = k;
    if (!searched_as_one(index)) {
        plan_memory(batch);
        batch->threads = make_search_threads();
        batch->leaves = static_cast<KnnBatch**>(
            palloc0(static_cast<Size>(Max(index.leaf_count, 1)) * sizeof(KnnBatch*)));
    }
    MemoryContextSwitchTo(before);
    return batch;
}

KnnMemory memory_of_whole() {
    const Size memory = static_cast<Size>(maintenance_work_mem) * 1024;
    return {memory / 4, memory * 3 / 4};
}

// Whether each leaf has room for a query. Those that stay open are open then.
bool leaves_have_room(MergedBatch* batch) {
    const MemoryContext before = MemoryContextSwitchTo(batch->context);
    bool room = true;
    for (int i = 0; i < batch->index->leaf_count && room; ++i) {
        KnnBatch* leaf =
            try_knn_batch(batch->index->leaves[i], batch->k, batch->memory, batch->threads);
        room = leaf != nullptr;
        if (room && !batch->keeps_leaves) close_knn_batch(leaf);
        if (room && batch->keeps_leaves) batch->leaves[i] = leaf;
    }
    MemoryContextSwitchTo(before);
    return room;
}

}  // namespace

MergedBatch* open_merged_batch(const KnnIndex& index, uint32 k) {
    MergedBatch* batch = new_merged_batch(index, k);
    if (searched_as_one(index)) {
        const MemoryContext before = MemoryContextSwitchTo(batch->context);
        batch->whole = open_knn_batch(index, k, memory_of_whole());
        MemoryContextSwitchTo(before);
        batch->room = most_queries(batch->whole);
    }
    if (batch->room == 0)
        ereport(ERROR,
                (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                 errmsg("memory required is %zu MB, maintenance_work_mem is %d MB",
                        8 * query_bytes(batch) / (1024 * 1024) + 1, maintenance_work_mem / 1024),
                 errhint("Ask for a smaller k.")));
    return batch;
}

MergedBatch* try_merged_batch(const KnnIndex& index, uint32 k) {
    MergedBatch* batch = new_merged_batch(index, k);
    bool room;
    if (searched_as_one(index)) {
        const MemoryContext before = MemoryContextSwitchTo(batch->context);
        batch->whole = try_knn_batch(index, k, memory_of_whole(), nullptr);
        MemoryContextSwitchTo(before);
        room = batch->whole != nullptr;
        if (room) batch->room = most_queries(batch->whole);
    } else {
        room = batch->room > 0 && leaves_have_room(batch);
    }
    if (room) return batch;
    close_merged_batch(batch);
    return nullptr;
}

void close_merged_batch(MergedBatch* batch) {
    if (batch->whole) close_knn_batch(batch->whole);
    for (int i = 0; batch->leaves && i < batch->index->leaf_count; ++i)
        if (batch->leaves[i]) close_knn_batch(batch->leaves[i]);
    MemoryContextDelete(batch->context);
}

uint32 most_queries(const MergedBatch* batch) {
    return batch->room;
}

void search_batch(MergedBatch* batch, const float* queries, uint32 count, const KnnValues& equal) {
    if (batch->whole) {
        search_batch(batch->whole, queries, count, equal);
        return;
    }
    MemoryContextReset(batch->search_context);
    const auto alloc = [batch](Size bytes) {
        return MemoryContextAllocHuge(batch->search_context, Max(bytes, Size{1}));
    };
    batch->rows = static_cast<KnnRow*>(alloc(Size{count} * batch->k * sizeof(KnnRow)));
    batch->counts = static_cast<uint32*>(alloc(count * sizeof(uint32)));
    batch->merged = static_cast<KnnRow*>(alloc(2 * Size{batch->k} * sizeof(KnnRow)));
    memset(batch->counts, 0, count * sizeof(uint32));
    if (batch->keeps_leaves) search_leaves(batch, queries, count);
    for (int i = 0; i < batch->index->leaf_count && !batch->keeps_leaves; ++i) {
        CHECK_FOR_INTERRUPTS();
        search_leaf(batch, i, queries, count);
    }
}

KnnRows rows_of(const MergedBatch* batch, uint32 query) {
    if (batch->whole) return rows_of(batch->whole, query);
    return {batch->rows + Size{query} * batch->k, batch->counts[query]};
}

}  // namespace pgwarp
