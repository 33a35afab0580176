#include <algorithm>
#include <cstring>

#include "kernels/knn_graph.h"
#include "extension/graph_metric.h"
#include "extension/graph_progress.h"
#include "extension/graph_set.h"

extern "C" {
#include "utils/lsyscache.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

constexpr Size block_rows = 1024;

float* alloc_rows(Size count, uint32 dims) {
    return static_cast<float*>(MemoryContextAllocHuge(
        CurrentMemoryContext, std::max<Size>(count, 1) * dims * sizeof(float)));
}

// What a graph of so many rows takes, by the dearer method.
Size memory_for(const GraphRoom& room, uint32 dims, Size count) {
    DescentOptions options = DescentOptions::for_neighbors(room.k);
    options.degree = room.degree;
    const Size each = dims * sizeof(float) + (room.degree + room.k) * sizeof(Edge) +
                      2 * (sizeof(int64) + sizeof(KeyedRow));
    return count * each + std::max(descent_memory(count, dims, options, room.threads),
                                   exact_graph_memory(count, dims, room.threads));
}

struct Reading {
    GraphSet* set;
    Size key_room;
    Size row_room;  // in memory
    Size most_rows;
};

void make_room(Reading* reading, Size wanted) {
    GraphSet* set = reading->set;
    if (wanted > reading->key_room) {
        reading->key_room = std::max(wanted, 2 * reading->key_room);
        set->keys =
            static_cast<int64*>(repalloc_huge(set->keys, reading->key_room * sizeof(int64)));
    }
    if (set->file || wanted <= reading->row_room) return;
    reading->row_room = std::min(reading->most_rows, std::max(wanted, 2 * reading->row_room));
    set->rows = static_cast<float*>(
        repalloc_huge(set->rows, reading->row_room * set->dims * sizeof(float)));
}

// The rows that are in memory go to a file, and those that follow.
void spill(Reading* reading) {
    spill_graph_set(reading->set);
    reading->set->rows = alloc_rows(block_rows, reading->set->dims);
}

}  // namespace

void spill_graph_set(GraphSet* set) {
    set->file = BufFileCreateTemp(false);
    for (Size row = 0; row < set->count; row += block_rows) {
        CHECK_FOR_INTERRUPTS();
        compat_write_temporary(set->file, set->rows + row * set->dims,
                               std::min(block_rows, set->count - row) * set->dims * sizeof(float));
    }
    pfree(set->rows);
    set->rows = nullptr;
}

void check_unique_keys(const GraphSet& set, const TableColumns& columns) {
    int64* sorted = static_cast<int64*>(
        MemoryContextAllocHuge(CurrentMemoryContext, std::max<Size>(set.count, 1) * sizeof(int64)));
    memcpy(sorted, set.keys, set.count * sizeof(int64));
    std::sort(sorted, sorted + set.count);
    const int64* twice = std::adjacent_find(sorted, sorted + set.count);
    if (twice != sorted + set.count)
        ereport(ERROR,
                (errcode(ERRCODE_UNIQUE_VIOLATION),
                 errmsg("key %lld is in column \"%s\" of \"%s\" more than once",
                        static_cast<long long>(*twice), columns.key, get_rel_name(columns.table)),
                 errhint("The keys of a graph must tell its rows apart.")));
    pfree(sorted);
}

Size rows_in_memory(const GraphRoom& room, uint32 dims) {
    const Size memory = static_cast<Size>(maintenance_work_mem) * 1024;
    // Two parts of a size that a graph is worth making of, at least.
    Size least = 2 * std::max<Size>(512, 4 * Size{room.degree});
    Size most = most_graph_rows;
    if (memory_for(room, dims, least) > memory) return least;
    while (least < most) {
        const Size middle = least + (most - least + 1) / 2;
        if (memory_for(room, dims, middle) > memory)
            most = middle - 1;
        else
            least = middle;
    }
    return least;
}

GraphSet read_graph_set(const TableColumns& columns, GraphMetric metric, const GraphRoom& room,
                        Beyond beyond) {
    TableReader* reader = open_table_reader(columns);
    GraphSet set = {};
    set.metric = metric;
    set.dims = dims_of(reader);
    const uint32 dims = std::max(set.dims, 1u);
    Reading reading = {&set, block_rows, block_rows, rows_in_memory(room, dims)};
    set.keys = static_cast<int64*>(palloc(block_rows * sizeof(int64)));
    set.rows = alloc_rows(block_rows, dims);
    while (set.dims > 0) {
        make_room(&reading, set.count + block_rows);
        if (!set.file && set.count + block_rows > reading.row_room) {
            if (beyond == Beyond::refuse)
                ereport(
                    ERROR,
                    (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                     errmsg("the vectors of \"%s\" do not fit into maintenance_work_mem",
                            get_rel_name(columns.table)),
                     errdetail("There is room for %zu vectors of %u dimensions and their lists.",
                               reading.most_rows, set.dims),
                     errhint("Increase maintenance_work_mem.")));
            spill(&reading);
        }
        float* to = set.file ? set.rows : set.rows + set.count * set.dims;
        const Size read = read_block(reader, {to, set.keys + set.count, block_rows});
        const Size kept = prepare_rows(metric, to, set.keys + set.count, read, set.dims);
        if (set.file) compat_write_temporary(set.file, to, kept * set.dims * sizeof(float));
        set.zeros += static_cast<int64>(read - kept);
        set.count += kept;
        report_graph_stage(GraphStage::reading, static_cast<int64>(set.count), 0);
        if (set.count > most_graph_rows)
            ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                            errmsg("a graph can have %zu rows at most", most_graph_rows)));
        if (read < block_rows) break;
    }
    set.nulls = counts_of(reader).nulls;
    close_table_reader(reader);
    if (set.file) {
        pfree(set.rows);
        set.rows = nullptr;
    }
    check_unique_keys(set, columns);
    return set;
}

void add_graph_set(GraphSet* set, const GraphSet& other) {
    const Size count = set->count + other.count;
    set->keys =
        static_cast<int64*>(repalloc_huge(set->keys, std::max<Size>(count, 1) * sizeof(int64)));
    set->rows = static_cast<float*>(
        repalloc_huge(set->rows, std::max<Size>(count * set->dims, 1) * sizeof(float)));
    memcpy(set->keys + set->count, other.keys, other.count * sizeof(int64));
    memcpy(set->rows + set->count * set->dims, other.rows, other.count * set->dims * sizeof(float));
    set->count = count;
    set->nulls += other.nulls;
    set->zeros += other.zeros;
}

void report_left_out(const GraphSet& set) {
    if (set.nulls > 0)
        ereport(NOTICE, (errmsg_plural("%lld row without a vector is left out",
                                       "%lld rows without a vector are left out",
                                       static_cast<unsigned long>(set.nulls),
                                       static_cast<long long>(set.nulls))));
    if (set.zeros > 0)
        ereport(NOTICE, (errmsg_plural("%lld row whose vector is zero is left out",
                                       "%lld rows whose vector is zero are left out",
                                       static_cast<unsigned long>(set.zeros),
                                       static_cast<long long>(set.zeros)),
                         errdetail("A vector without a direction has no cosine distance.")));
}

void read_spilled(const GraphSet& set, Size first, Size count, float* rows) {
    const Size row_bytes = set.dims * sizeof(float);
    if (BufFileSeek(set.file, 0, static_cast<off_t>(first * row_bytes), SEEK_SET) != 0)
        ereport(ERROR, (errcode_for_file_access(), errmsg("could not read temporary file")));
    for (Size row = 0; row < count; row += block_rows) {
        CHECK_FOR_INTERRUPTS();
        const Size here = std::min(block_rows, count - row);
        compat_read_temporary(set.file, rows + row * set.dims, here * row_bytes);
    }
}

KeyedRow* sort_by_key(const GraphSet& set) {
    KeyedRow* sorted = static_cast<KeyedRow*>(MemoryContextAllocHuge(
        CurrentMemoryContext, std::max<Size>(set.count, 1) * sizeof(KeyedRow)));
    for (Size i = 0; i < set.count; ++i) sorted[i] = {set.keys[i], static_cast<uint32>(i)};
    std::sort(sorted, sorted + set.count,
              [](const KeyedRow& a, const KeyedRow& b) { return a.key < b.key; });
    return sorted;
}

uint32 find_key(const KeyedRow* sorted, Size count, int64 key) {
    const KeyedRow* found =
        std::lower_bound(sorted, sorted + count, key,
                         [](const KeyedRow& row, int64 wanted) { return row.key < wanted; });
    return found != sorted + count && found->key == key ? found->row : no_row;
}

}  // namespace pgwarp
