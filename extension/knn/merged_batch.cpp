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
    const KnnIndex* index;
    uint32 k;
    uint32 room;
    KnnBatch* whole;  // null: the leaves are searched

    KnnMemory memory;  // of each leaf
    SearchThreads* threads;
    bool keeps_leaves;  // all stay open
    KnnBatch** leaves;  // (leaf_count); null: not open
    NearestRows* found;
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
    return batch->index->dims * sizeof(float) + found_bytes(batch->k) + 64;
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

KnnBatch* open_leaf(MergedBatch* batch, int number) {
    if (!batch->leaves[number]) {
        const MemoryContext before = MemoryContextSwitchTo(batch->context);
        batch->leaves[number] =
            open_knn_batch(batch->index->leaves[number], batch->k, batch->memory, batch->threads);
        MemoryContextSwitchTo(before);
    }
    return batch->leaves[number];
}

// Searches some of the leaves, as one.
void search_leaves(MergedBatch* batch, int begin, int count, const float* queries) {
    const NearestRows& all = *batch->found;
    uint32 most = Max(all.count, 1u);
    for (int i = begin; i < begin + count; ++i) {
        expect_queries(open_leaf(batch, i), all.count);
        most = std::min(most, most_queries(batch->leaves[i]));
    }
    for (uint32 first = 0; first < all.count; first += most) {
        NearestRows found = rows_of_some(all, first, std::min(most, all.count - first));
        search_batches(batch->leaves + begin, count, queries + Size{first} * batch->index->dims,
                       &found);
    }
}

}  // namespace

namespace {

MergedBatch* new_merged_batch(const KnnIndex& index, uint32 k) {
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "knn of leaves", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);
    auto* batch = static_cast<MergedBatch*>(palloc0(sizeof(MergedBatch)));
    batch->context = context;
    batch->index = &index;
    batch->k = k;
    batch->found = open_nearest_rows(k);
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
    begin_rows(batch->found, count);
    const int leaves = batch->index->leaf_count;
    if (batch->whole) {
        search_batches(&batch->whole, 1, queries, batch->found, equal);
    } else if (batch->keeps_leaves) {
        search_leaves(batch, 0, leaves, queries);
    } else {
        for (int i = 0; i < leaves; ++i) {
            CHECK_FOR_INTERRUPTS();
            search_leaves(batch, i, 1, queries);
            close_knn_batch(batch->leaves[i]);
            batch->leaves[i] = nullptr;
        }
    }
    sort_rows(batch->found, *batch->index);
}

KnnRows rows_of(const MergedBatch* batch, uint32 query) {
    return rows_of(*batch->found, query);
}

}  // namespace pgwarp
