// A search gives the k nearest rows, not all within a distance. A row with k of them within the
// limit may have more: it is searched for again with a larger k. Rows that wait for this are in a
// temporary file.
//
// A pair is found from both of its rows, or missed from one of them. Only what the row with the
// smaller key finds is written: no pair twice, without a list of all pairs so far, and with the
// recall of a search.

#include <algorithm>

#include "extension/graph/index.h"
#include "extension/graph/pairs_index.h"
#include "extension/graph/progress.h"
#include "extension/knn/merged_batch.h"

extern "C" {
#include "storage/buffile.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

constexpr uint32 first_neighbors = 32;
constexpr uint32 more_neighbors = 8;  // times as many in the next round

struct IndexPairs {
    PairLimit limit;
    PairWriter* writer;
    const KeyNames* names;
    KnnIndex index;
    MergedBatch* batch;
    Size room;  // queries at a time
    uint32 k;
    BufFile* waiting;  // (waiting_count): key, vector
    Size waiting_count;
};

void open_first_round(IndexPairs* pairs) {
    pairs->k = first_neighbors;
    pairs->batch = open_merged_batch(pairs->index, pairs->k);
    pairs->room = most_queries(pairs->batch);
}

// With as many more neighbors as memory holds; false: with none. No row has more than `rows`.
bool open_next_round(IndexPairs* pairs, Size rows) {
    const uint32 before = pairs->k;
    close_merged_batch(pairs->batch);
    pairs->batch = nullptr;
    // One more than there are shows that there are no others.
    Size k = std::min<Size>(Size{before} * more_neighbors, rows + 1);
    for (; k > before; k = before + (k - before) / 2) {
        pairs->batch = try_merged_batch(pairs->index, static_cast<uint32>(k));
        if (pairs->batch) {
            pairs->k = static_cast<uint32>(k);
            pairs->room = most_queries(pairs->batch);
            return true;
        }
        // Rounds for a few rows more would take as long as the others.
        if (k - before <= before / 8) break;
    }
    return false;
}

// Of the first row that waits.
void report_too_many(const IndexPairs& pairs, BufFile* file) {
    int64 key;
    compat_read_temporary(file, &key, sizeof(key));
    ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                    errmsg("row %s has more than %u rows within max_distance",
                           key_text(pairs.names, key), pairs.k),
                    errdetail("maintenance_work_mem does not hold a search for more."),
                    errhint("Use method exact, or a smaller max_distance.")));
}

// Whether all rows within the limit were found, as far as the index finds them.
bool write_found(const IndexPairs& pairs, int64 key, const KnnRows& found) {
    bool beyond = found.count < pairs.k;
    for (uint32 i = 0; i < found.count; ++i)
        if (!(found.rows[i].distance <= pairs.limit.most)) beyond = true;
    if (!beyond) return false;
    for (uint32 i = 0; i < found.count; ++i) {
        const KnnRow& row = found.rows[i];
        if (row.key_is_null || !key_is_less(pairs.names, key, row.key)) continue;
        if (row.distance <= pairs.limit.most)
            write_pair(pairs.writer, key, row.key, static_cast<float4>(row.distance));
    }
    return true;
}

void search_block(IndexPairs* pairs, const float* vectors, const int64* keys, Size count) {
    search_batch(pairs->batch, vectors, static_cast<uint32>(count));
    for (Size i = 0; i < count; ++i) {
        CHECK_FOR_INTERRUPTS();
        if (write_found(*pairs, keys[i], rows_of(pairs->batch, static_cast<uint32>(i)))) continue;
        if (!pairs->waiting) pairs->waiting = BufFileCreateTemp(false);
        compat_write_temporary(pairs->waiting, &keys[i], sizeof(int64));
        compat_write_temporary(pairs->waiting, vectors + i * pairs->index.dims,
                               pairs->index.dims * sizeof(float));
        ++pairs->waiting_count;
    }
}

float* alloc_vectors(const IndexPairs& pairs) {
    return static_cast<float*>(MemoryContextAllocHuge(
        CurrentMemoryContext, pairs.room * pairs.index.dims * sizeof(float)));
}

// All rows of the table. Returns their keys, to see that none is there twice.
GraphSet search_table(IndexPairs* pairs, TableReader* reader) {
    float* vectors = alloc_vectors(*pairs);
    GraphSet set = {};
    set.metric = pairs->limit.metric;
    Size key_room = pairs->room;
    set.keys =
        static_cast<int64*>(MemoryContextAllocHuge(CurrentMemoryContext, key_room * sizeof(int64)));
    const auto expected = static_cast<int64>(estimated_rows(reader));
    while (dims_of(reader) != 0) {
        if (set.count + pairs->room > key_room) {
            key_room = std::max(set.count + pairs->room, 2 * key_room);
            set.keys = static_cast<int64*>(repalloc_huge(set.keys, key_room * sizeof(int64)));
        }
        const Size count = read_block(reader, {vectors, set.keys + set.count, pairs->room});
        if (count == 0) break;
        search_block(pairs, vectors, set.keys + set.count, count);
        set.count += count;
        report_graph_stage(GraphStage::searching, static_cast<int64>(set.count),
                           std::max(expected, static_cast<int64>(set.count)));
    }
    set.nulls = counts_of(reader).nulls;
    pfree(vectors);
    return set;
}

// The rows that wait, with a larger k; `rows`: those of the table.
void search_waiting(IndexPairs* pairs, Size rows) {
    BufFile* file = pairs->waiting;
    const Size count = pairs->waiting_count;
    pairs->waiting = nullptr;
    pairs->waiting_count = 0;
    if (BufFileSeek(file, 0, 0, SEEK_SET) != 0)
        ereport(ERROR, (errcode_for_file_access(), errmsg("could not read temporary file")));
    if (!open_next_round(pairs, rows)) report_too_many(*pairs, file);
    float* vectors = alloc_vectors(*pairs);
    int64* keys = static_cast<int64*>(
        MemoryContextAllocHuge(CurrentMemoryContext, pairs->room * sizeof(int64)));
    for (Size first = 0; first < count; first += pairs->room) {
        const Size here = std::min(pairs->room, count - first);
        for (Size i = 0; i < here; ++i) {
            compat_read_temporary(file, &keys[i], sizeof(int64));
            compat_read_temporary(file, vectors + i * pairs->index.dims,
                                  pairs->index.dims * sizeof(float));
        }
        search_block(pairs, vectors, keys, here);
        report_graph_stage(GraphStage::searching, static_cast<int64>(first + here),
                           static_cast<int64>(count));
    }
    BufFileClose(file);
    pfree(vectors);
    pfree(keys);
}

}  // namespace

void find_pairs_by_index(const TableColumns& columns, const PairLimit& limit, PairWriter* writer) {
    // Opened first: this checks the caller's rights.
    TableReader* reader = open_table_reader(columns);
    IndexPairs pairs = {};
    pairs.limit = limit;
    pairs.writer = writer;
    pairs.names = columns.names;
    pairs.index = open_knn_index(find_graph_index(columns, limit.metric, "exact"), columns.key,
                                 columns.names);
    open_first_round(&pairs);
    const GraphSet set = search_table(&pairs, reader);
    close_table_reader(reader);
    check_unique_keys(set, columns);
    report_left_out(set);
    while (pairs.waiting) search_waiting(&pairs, set.count);
    close_merged_batch(pairs.batch);
    close_knn_index(pairs.index);
}

}  // namespace pgwarp
