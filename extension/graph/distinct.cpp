#include <algorithm>
#include <cstring>
#include <functional>

#include "kernels/polling_order.h"
#include "extension/graph/distinct.h"
#include "extension/graph/job.h"

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

// Rows of a set, one after the other: from memory, or a file in blocks.
struct RowWalk {
    const GraphSet* set;
    float* block;  // null: the set is in memory
    Size block_rows;
    Size begin, end;  // rows in the block
};

Size row_bytes(const GraphSet& set) {
    return set.dims * sizeof(float);
}

RowWalk walk_rows(const GraphSet& set) {
    constexpr Size block_bytes = 256 * 1024;
    RowWalk walk = {&set, nullptr, 0, 0, 0};
    if (!set.file) return walk;
    walk.block_rows = std::max<Size>(block_bytes / row_bytes(set), 1);
    walk.block = static_cast<float*>(palloc(walk.block_rows * row_bytes(set)));
    return walk;
}

const float* next_row(RowWalk* walk, Size row) {
    const GraphSet& set = *walk->set;
    if (row % 1024 == 0) CHECK_FOR_INTERRUPTS();
    if (!set.file) return set.rows + row * set.dims;
    if (row >= walk->end) {
        walk->begin = row;
        walk->end = std::min(set.count, row + walk->block_rows);
        read_spilled(set, row, walk->end - row, walk->block);
    }
    return walk->block + (row - walk->begin) * set.dims;
}

void end_walk(const RowWalk& walk) {
    if (walk.block) pfree(walk.block);
}

// (count), by hash; of equal ones by number.
HashedRow* sort_by_hash(const GraphSet& set) {
    auto* hashed = static_cast<HashedRow*>(
        MemoryContextAllocHuge(CurrentMemoryContext, set.count * sizeof(HashedRow)));
    RowWalk walk = walk_rows(set);
    for (Size row = 0; row < set.count; ++row) {
        const auto* bytes = reinterpret_cast<const unsigned char*>(next_row(&walk, row));
        hashed[row] = {hash_bytes_extended(bytes, static_cast<int>(row_bytes(set)), 0),
                       static_cast<uint32>(row)};
    }
    end_walk(walk);
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
    BufFile* file = set->file ? BufFileCreateTemp(false) : nullptr;
    RowWalk walk = walk_rows(*set);
    uint32 next = 0;
    for (uint32 row = 0; row < set->count; ++row) {
        const float* vector = next_row(&walk, row);
        if (numbers[row] != row) {
            // That row has its number already.
            numbers[row] = numbers[numbers[row]];
            continue;
        }
        if (file)
            compat_write_temporary(file, vector, row_bytes(*set));
        else if (next != row)
            memcpy(set->rows + Size{next} * set->dims, vector, row_bytes(*set));
        numbers[row] = next++;
    }
    end_walk(walk);
    if (file) BufFileClose(set->file);
    set->file = file;
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
