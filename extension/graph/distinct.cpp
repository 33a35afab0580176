#include <algorithm>
#include <cstring>
#include <functional>

#include "kernels/polling_order.h"
#include "extension/graph/distinct.h"
#include "extension/graph/threads.h"

extern "C" {
#include "common/hashfn.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

struct HashedRow {
    uint64 hash;
    uint32 row;
};

Size row_bytes(const GraphSet& set) {
    return set.dims * sizeof(float);
}

// Rows of a set in a file, in their order.
struct RowWalk {
    const GraphSet* set;
    float* block;
    Size block_rows;
    Size begin, end;  // rows in the block
};

RowWalk walk_rows(const GraphSet& set) {
    constexpr Size block_bytes = 256 * 1024;
    const Size block_rows = std::max<Size>(block_bytes / row_bytes(set), 1);
    return {&set, static_cast<float*>(palloc(block_rows * row_bytes(set))), block_rows, 0, 0};
}

const float* next_row(RowWalk* walk, Size row) {
    const GraphSet& set = *walk->set;
    if (row >= walk->end) {
        CHECK_FOR_INTERRUPTS();
        walk->begin = row;
        walk->end = std::min(set.count, row + walk->block_rows);
        read_spilled(set, row, walk->end - row, walk->block);
    }
    return walk->block + (row - walk->begin) * set.dims;
}

HashedRow hash_row(const GraphSet& set, const float* vector, Size row) {
    return {hash_bytes_extended(reinterpret_cast<const unsigned char*>(vector),
                                static_cast<int>(row_bytes(set)), 0),
            static_cast<uint32>(row)};
}

void hash_rows(const GraphSet& set, HashedRow* hashed) {
    constexpr Size task_rows = 1024;
    if (set.file) {
        RowWalk walk = walk_rows(set);
        for (Size row = 0; row < set.count; ++row)
            hashed[row] = hash_row(set, next_row(&walk, row), row);
        pfree(walk.block);
        return;
    }
    run_graph_kernel([&] {
        Workers workers(graph_threads(), query_interrupts());
        workers.run((set.count + task_rows - 1) / task_rows, [&](size_t task, int) {
            const Size end = std::min(set.count, (task + 1) * task_rows);
            for (Size row = task * task_rows; row < end; ++row)
                hashed[row] = hash_row(set, set.rows + row * set.dims, row);
        });
    });
}

// (count), by hash; of equal ones by number.
HashedRow* sort_by_hash(const GraphSet& set) {
    auto* hashed = static_cast<HashedRow*>(
        MemoryContextAllocHuge(CurrentMemoryContext, set.count * sizeof(HashedRow)));
    hash_rows(set, hashed);
    run_graph_kernel([&] {
        PollingOrder order(query_interrupts(), [](const HashedRow& a, const HashedRow& b) {
            return a.hash != b.hash ? a.hash < b.hash : a.row < b.row;
        });
        std::sort(hashed, hashed + set.count, std::ref(order));
    });
    return hashed;
}

// (count): the first of the rows that equal each one. Returns how many are the first.
Size find_first_rows(const GraphSet& set, uint32* firsts) {
    HashedRow* hashed = sort_by_hash(set);
    float* one = static_cast<float*>(palloc(row_bytes(set)));
    float* other = static_cast<float*>(palloc(row_bytes(set)));
    const float* standing = nullptr;
    Size distinct = 0;
    for (Size i = 0; i < set.count; ++i) {
        if (i % 1024 == 0) CHECK_FOR_INTERRUPTS();
        const HashedRow& here = hashed[i];
        firsts[here.row] = here.row;
        const bool follows = i > 0 && hashed[i - 1].hash == here.hash;
        if (!follows) standing = nullptr;
        if (follows) {
            const uint32 first = firsts[hashed[i - 1].row];
            if (!standing) standing = vector_of(set, first, one);
            const float* vector = vector_of(set, here.row, other);
            // Hashes may collide: then fewer rows are found to be equal.
            if (memcmp(standing, vector, row_bytes(set)) == 0)
                firsts[here.row] = first;
            else
                standing = nullptr;
        }
        if (firsts[here.row] == here.row) ++distinct;
    }
    pfree(one);
    pfree(other);
    pfree(hashed);
    return distinct;
}

// Keeps the vectors of the first rows. `numbers` has them, and gets the number of each row's
// vector.
void drop_others(GraphSet* set, Size distinct, uint32* numbers) {
    auto* kept = static_cast<uint32*>(
        MemoryContextAllocHuge(CurrentMemoryContext, distinct * sizeof(uint32)));
    uint32 next = 0;
    for (uint32 row = 0; row < set->count; ++row) {
        const bool is_first = numbers[row] == row;
        // Another row's first one has its number already.
        numbers[row] = is_first ? next : numbers[numbers[row]];
        if (is_first) kept[next++] = row;
    }
    if (set->file) {
        BufFile* file = BufFileCreateTemp(false);
        RowWalk walk = walk_rows(*set);
        for (Size i = 0; i < distinct; ++i)
            compat_write_temporary(file, next_row(&walk, kept[i]), row_bytes(*set));
        pfree(walk.block);
        BufFileClose(set->file);
        set->file = file;
    } else {
        move_rows(*set, kept, distinct);
    }
    pfree(kept);
    set->count = distinct;
}

}  // namespace

const float* vector_of(const GraphSet& set, Size number, float* buffer) {
    if (!set.file) return set.rows + number * set.dims;
    read_spilled(set, number, 1, buffer);
    return buffer;
}

DistinctRows take_distinct_rows(GraphSet* whole) {
    DistinctRows taken = {*whole, nullptr};
    taken.set.keys = nullptr;
    taken.set.names = nullptr;
    whole->rows = nullptr;
    whole->file = nullptr;
    if (whole->count < 2) return taken;
    taken.numbers = static_cast<uint32*>(
        MemoryContextAllocHuge(CurrentMemoryContext, whole->count * sizeof(uint32)));
    const Size distinct = find_first_rows(taken.set, taken.numbers);
    if (distinct == whole->count) {
        pfree(taken.numbers);
        taken.numbers = nullptr;
        return taken;
    }
    drop_others(&taken.set, distinct, taken.numbers);
    auto* piece = static_cast<RowPiece*>(palloc(sizeof(RowPiece)));
    *piece = {0, 0, 0, distinct};
    taken.set.pieces = piece;
    taken.set.piece_count = 1;
    return taken;
}

}  // namespace pgwarp
