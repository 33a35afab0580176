#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/knn_graph.h"
#include "extension/graph/metric.h"
#include "extension/graph/progress.h"
#include "extension/graph/set.h"
#include "extension/graph/threads.h"
#include "extension/table/parallel_reader.h"
#include "extension/util/large_memory.h"

extern "C" {
#include "utils/lsyscache.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

constexpr Size block_rows = 1024;  // rows of one write

float* alloc_rows(Size count, uint32 dims) {
    return static_cast<float*>(
        alloc_large(CurrentMemoryContext, std::max<Size>(count, 1) * dims * sizeof(float)));
}

// Bytes for a graph of `count` rows, by the method that needs more.
Size memory_for(const GraphRoom& room, uint32 dims, Size count) {
    DescentOptions options = DescentOptions::for_neighbors(room.k);
    options.degree = room.degree;
    const Size each = dims * sizeof(float) + (room.degree + room.k) * sizeof(Edge) +
                      2 * (sizeof(int64) + sizeof(KeyedRow));
    // The CPU makes one at a time; devices have memory of their own.
    const Size exact = exact_graph_memory(count, dims, room.threads);
    return room.at_once * count * each +
           (room.descends ? std::max(descent_memory(count, dims, options, room.threads), exact)
                          : exact);
}

struct Reading {
    GraphSet* set;
    Size key_room;
    Size row_room;  // in memory
    Size most_rows;
    Size piece_room;
};

// Arrays start at the planner's estimate and double.
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

void add_piece(Reading* reading, uint64 position, Size count) {
    GraphSet* set = reading->set;
    if (set->piece_count == reading->piece_room) {
        reading->piece_room = std::max<Size>(64, 2 * reading->piece_room);
        const Size bytes = reading->piece_room * sizeof(RowPiece);
        set->pieces = static_cast<RowPiece*>(
            set->pieces ? repalloc_huge(set->pieces, bytes)
                        : MemoryContextAllocHuge(CurrentMemoryContext, bytes));
    }
    set->pieces[set->piece_count++] = {position, set->count, 0, count};
}

// Sorts the pieces by position. Returns where each row is now, by its new number; null: all rows
// are in order already.
uint32* find_order(GraphSet* set) {
    const auto before = [](const RowPiece& a, const RowPiece& b) {
        return a.position < b.position;
    };
    RowPiece* end = set->pieces + set->piece_count;
    const bool sorted = std::is_sorted(set->pieces, end, before);
    if (!sorted) std::sort(set->pieces, end, before);
    Size begin = 0;
    for (RowPiece* piece = set->pieces; piece != end; ++piece) {
        piece->begin = begin;
        begin += piece->count;
    }
    if (sorted) return nullptr;
    uint32* sources = static_cast<uint32*>(
        MemoryContextAllocHuge(CurrentMemoryContext, set->count * sizeof(uint32)));
    for (const RowPiece* piece = set->pieces; piece != end; ++piece)
        for (Size i = 0; i < piece->count; ++i)
            sources[piece->begin + i] = static_cast<uint32>(piece->first + i);
    return sources;
}

// Restores the table's order of rows, which workers deliver in any order: a seed must give the same
// graph every time. Rows in a file stay where they are; only keys move.
void restore_order(GraphSet* set) {
    uint32* sources = find_order(set);
    if (!sources) return;
    int64* keys = static_cast<int64*>(
        MemoryContextAllocHuge(CurrentMemoryContext, set->count * sizeof(int64)));
    for (Size i = 0; i < set->count; ++i) keys[i] = set->keys[sources[i]];
    pfree(set->keys);
    set->keys = keys;
    if (!set->file) {
        move_rows(*set, sources, set->count);
        for (Size i = 0; i < set->piece_count; ++i) set->pieces[i].first = set->pieces[i].begin;
    }
    pfree(sources);
}

// Some columns of all rows.
struct Columns {
    static constexpr Size most = 32;  // two cache lines

    float* first;  // of the first row
    Size width;
    Size dims;

    float* row(Size i) const { return first + i * dims; }
    void copy(const float* from, float* to) const { std::copy_n(from, width, to); }
};

void move_columns(const Columns& columns, const uint32* sources, Size count) {
    if (std::is_sorted(sources, sources + count)) {
        for (Size i = 0; i < count; ++i)
            if (sources[i] != i) columns.copy(columns.row(sources[i]), columns.row(i));
        return;
    }
    // Cycle by cycle, which needs no second copy.
    std::vector<bool> moved(count);
    float begun[Columns::most];
    for (Size begin = 0; begin < count; ++begin) {
        if (moved[begin] || sources[begin] == begin) continue;
        columns.copy(columns.row(begin), begun);
        Size to = begin;
        for (; sources[to] != begin; to = sources[to]) {
            columns.copy(columns.row(sources[to]), columns.row(to));
            moved[to] = true;
        }
        columns.copy(begun, columns.row(to));
        moved[to] = true;
    }
}

}  // namespace

void move_rows(const GraphSet& set, const uint32* sources, Size count) {
    run_graph_kernel([&] {
        Workers workers(graph_threads(), query_interrupts());
        workers.run((set.dims + Columns::most - 1) / Columns::most, [&](size_t task, int) {
            const Size first = task * Columns::most;
            move_columns({set.rows + first, std::min(Columns::most, set.dims - first), set.dims},
                         sources, count);
        });
    });
}

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
    // Ascending keys, the common case, need no sort.
    const auto not_after = [](int64 a, int64 b) { return a >= b; };
    if (std::adjacent_find(set.keys, set.keys + set.count, not_after) == set.keys + set.count)
        return;
    int64* sorted = static_cast<int64*>(
        MemoryContextAllocHuge(CurrentMemoryContext, std::max<Size>(set.count, 1) * sizeof(int64)));
    memcpy(sorted, set.keys, set.count * sizeof(int64));
    std::sort(sorted, sorted + set.count);
    const int64* twice = std::adjacent_find(sorted, sorted + set.count);
    if (twice != sorted + set.count)
        ereport(ERROR,
                (errcode(ERRCODE_UNIQUE_VIOLATION),
                 errmsg("key %s is in column \"%s\" of \"%s\" more than once",
                        key_text(columns.names, *twice), columns.key, get_rel_name(columns.table)),
                 errhint("The keys of a graph must tell its rows apart.")));
    pfree(sorted);
}

Size rows_in_memory(const GraphRoom& room, uint32 dims) {
    const Size memory = static_cast<Size>(maintenance_work_mem) * 1024;
    // At least two parts of the smallest useful size.
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

namespace {

// Appends the rows of one block of the pool.
void take_rows(Reading* reading, const RowBlock& block) {
    GraphSet* set = reading->set;
    const uint64 position = *block.position;
    int64* keys = reinterpret_cast<int64*>(block.tids);
    for (Size i = 0; i < *block.count; ++i) keys[i] = id_key(block.tids[i]);
    const Size count = prepare_rows(set->metric, block.floats(), keys, *block.count, set->dims);
    set->zeros += static_cast<int64>(*block.count - count);
    if (count == 0) return;
    if (!set->file && set->count + count > reading->most_rows) spill_graph_set(set);
    if (set->count + count > most_graph_rows)
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                        errmsg("a graph can have %zu rows at most", most_graph_rows)));
    make_room(reading, set->count + count);
    memcpy(set->keys + set->count, keys, count * sizeof(int64));
    const Size bytes = count * set->dims * sizeof(float);
    if (set->file)
        compat_write_temporary(set->file, block.rows, bytes);
    else
        memcpy(set->rows + set->count * set->dims, block.rows, bytes);
    add_piece(reading, position, count);
    set->count += count;
    report_graph_stage(GraphStage::reading, static_cast<int64>(set->count), 0);
}

}  // namespace

GraphSet read_graph_set(const TableColumns& columns, Metric metric, const GraphRoom& room) {
    report_graph_stage(GraphStage::reading, 0, 0);
    TableReader* reader = open_table_reader(columns);
    GraphSet set = {};
    set.metric = metric;
    set.names = columns.names;
    set.dims = dims_of(reader);
    const uint32 dims = std::max(set.dims, 1u);
    const Size most = rows_in_memory(room, dims);
    const Size expected =
        std::clamp<Size>(static_cast<Size>(1.05 * estimated_rows(reader)), 1, most);
    Reading reading = {&set, expected, expected, most, 0};
    set.keys =
        static_cast<int64*>(MemoryContextAllocHuge(CurrentMemoryContext, expected * sizeof(int64)));
    set.rows = alloc_rows(expected, dims);
    if (set.dims > 0) {
        ParallelReader* rows =
            open_parallel_reader(reader,
                                 {RowIds::keys, RowForm::floats, max_parallel_maintenance_workers,
                                  usual_pool_bytes(), 1},
                                 nullptr);
        RowBlock block;
        while (next_block(rows, &block)) {
            CHECK_FOR_INTERRUPTS();
            take_rows(&reading, block);
            give_back(rows, block);
        }
        set.nulls = close_parallel_reader(rows).nulls;
    } else {
        set.nulls = counts_of(reader).nulls;
    }
    close_table_reader(reader);
    report_graph_stage(GraphStage::keys, 0, 0);
    restore_order(&set);
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

void join_in_file(GraphSet* set, GraphSet* other) {
    if (!set->file) spill_graph_set(set);
    float* rows = alloc_rows(block_rows, std::max(set->dims, 1u));
    for (Size row = 0; row < other->count; row += block_rows) {
        CHECK_FOR_INTERRUPTS();
        const Size count = std::min(block_rows, other->count - row);
        if (other->file)
            read_spilled(*other, row, count, rows);
        else
            memcpy(rows, other->rows + row * set->dims, count * set->dims * sizeof(float));
        compat_write_temporary(set->file, rows, count * set->dims * sizeof(float));
    }
    pfree(rows);
    const Size count = set->count + other->count;
    set->keys =
        static_cast<int64*>(repalloc_huge(set->keys, std::max<Size>(count, 1) * sizeof(int64)));
    memcpy(set->keys + set->count, other->keys, other->count * sizeof(int64));
    const Size bytes = (set->piece_count + 1) * sizeof(RowPiece);
    set->pieces =
        static_cast<RowPiece*>(set->pieces ? repalloc_huge(set->pieces, bytes)
                                           : MemoryContextAllocHuge(CurrentMemoryContext, bytes));
    set->pieces[set->piece_count++] = {0, set->count, set->count, other->count};
    set->count = count;
    set->nulls += other->nulls;
    set->zeros += other->zeros;
    if (other->file) BufFileClose(other->file);
    if (other->rows) pfree(other->rows);
    pfree(other->keys);
    *other = {};
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
    const RowPiece* piece =
        std::upper_bound(set.pieces, set.pieces + set.piece_count, first,
                         [](Size row, const RowPiece& other) { return row < other.begin; });
    Size row = first;
    while (row < first + count) {
        CHECK_FOR_INTERRUPTS();
        const RowPiece& here = piece[-1];
        const Size at = here.first + (row - here.begin);
        const Size some = std::min(here.begin + here.count, first + count) - row;
        if (BufFileSeek(set.file, 0, static_cast<off_t>(at * row_bytes), SEEK_SET) != 0)
            ereport(ERROR, (errcode_for_file_access(), errmsg("could not read temporary file")));
        compat_read_temporary(set.file, rows + (row - first) * set.dims, some * row_bytes);
        row += some;
        ++piece;
    }
}

KeyedRow* sort_by_key(const GraphSet& set) {
    KeyedRow* sorted = static_cast<KeyedRow*>(MemoryContextAllocHuge(
        CurrentMemoryContext, std::max<Size>(set.count, 1) * sizeof(KeyedRow)));
    for (Size i = 0; i < set.count; ++i) sorted[i] = {set.keys[i], static_cast<uint32>(i)};
    // Ascending keys, the common case, need no sort.
    const auto before = [](const KeyedRow& a, const KeyedRow& b) { return a.key < b.key; };
    if (!std::is_sorted(sorted, sorted + set.count, before))
        std::sort(sorted, sorted + set.count, before);
    return sorted;
}

uint32 find_key(const KeyedRow* sorted, Size count, int64 key) {
    if (count == 0 || key < sorted[0].key || key > sorted[count - 1].key) return no_row;
    const auto before = [](const KeyedRow& row, int64 wanted) { return row.key < wanted; };
    // Keys that a sequence gave out are where their share of the range says, or near.
    constexpr Size window = 16;
    const auto offset =
        static_cast<double>(static_cast<uint64>(key) - static_cast<uint64>(sorted[0].key));
    const auto range = static_cast<double>(static_cast<uint64>(sorted[count - 1].key) -
                                           static_cast<uint64>(sorted[0].key));
    const auto guess =
        std::min(count - 1,
                 static_cast<Size>(offset * static_cast<double>(count - 1) / std::max(range, 1.0)));
    if (sorted[guess].key == key) return sorted[guess].row;
    const KeyedRow* begin = sorted + (guess > window ? guess - window : 0);
    const KeyedRow* end = sorted + std::min(count, guess + window);
    if (begin->key > key) begin = sorted;
    if (end[-1].key < key) end = sorted + count;
    const KeyedRow* found = std::lower_bound(begin, end, key, before);
    return found != end && found->key == key ? found->row : no_row;
}

}  // namespace pgwarp
