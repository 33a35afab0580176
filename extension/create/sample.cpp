// Which blocks of a table are read, and in which order. Each block has a turn, a hash of its
// number, uniform over all uint64. A round reads the blocks whose turns lie in one interval, in
// physical order; the next round takes the following interval. So rounds draw without replacement,
// and no list of drawn blocks is kept.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "extension/table/block_sample.h"
#include "extension/index/column.h"
#include "extension/index/lists.h"
#include "extension/create/progress.h"
#include "extension/create/sample.h"
#include "extension/create/sample_values.h"
#include "extension/util/large_memory.h"

extern "C" {
#include "access/tableam.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

uint64 turn_of(BlockNumber block, int64 seed) {
    return Random(static_cast<uint64>(seed) ^ uint64{block} << 32).next();
}

// The end of the interval, from 0, that contains this share of all turns.
uint64 turns_of(double share) {
    return share >= 1 ? PG_UINT64_MAX : static_cast<uint64>(std::ldexp(share, 64));
}

struct Turns {
    uint64 first;
    uint64 end;  // PG_UINT64_MAX: no end
    bool has(uint64 turn) const { return turn >= first && (turn < end || end == PG_UINT64_MAX); }
};

bool bit_of(const uint8* bits, BlockNumber block) {
    return bits[block / 8] >> block % 8 & 1;
}

// --- looking

// Statistics of rows per block, over the blocks read.
struct BlockCounts {
    double blocks;
    double rows;
    double squares;
    uint64 here;  // rows of the current block

    void end_block() {
        ++blocks;
        rows += static_cast<double>(here);
        squares += static_cast<double>(here) * static_cast<double>(here);
        here = 0;
    }
    // The standard error of the mean, relative to it, for blocks drawn without replacement.
    double error(double all_blocks) const {
        if (rows == 0 || blocks < 2) return 1;
        const double mean = rows / blocks;
        const double variance = std::max(0.0, squares - rows * mean) / (blocks - 1);
        return std::sqrt(variance / blocks * (1 - blocks / all_blocks)) / mean;
    }
};

void count_row(Relation, ItemPointer, Datum*, bool* nulls, bool alive, void* counts) {
    if (!nulls[0] && alive) ++static_cast<BlockCounts*>(counts)->here;
}

struct WholeLook {
    uint64 rows;
    uint8* has_rows;
    BlockNumber last;
};

void note_row(Relation, ItemPointer tid, Datum*, bool* nulls, bool alive, void* state) {
    WholeLook* look = static_cast<WholeLook*>(state);
    const BlockNumber block = ItemPointerGetBlockNumber(tid);
    if (block != look->last) report_progress(PROGRESS_SCAN_BLOCKS_DONE, block);
    look->last = block;
    if (nulls[0] || !alive) return;
    ++look->rows;
    look->has_rows[block / 8] |= static_cast<uint8>(1 << block % 8);
}

void look_at_all(BlockSampler* sampler, TableLook* look) {
    WholeLook whole = {};
    whole.has_rows = static_cast<uint8*>(MemoryContextAllocExtended(
        CurrentMemoryContext, Size{look->blocks} / 8 + 1, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
    sample_blocks(sampler, 0, look->blocks, note_row, &whole);
    look->seen = whole.rows;
    look->rows = static_cast<double>(whole.rows);
    look->has_rows = whole.has_rows;
    for (BlockNumber block = 0; block < look->blocks; ++block)
        look->blocks_with_rows += bit_of(whole.has_rows, block);
}

// --- sampling

struct SampleState {
    VectorType type;
    Sample* sample;
    Metric metric;
    Random* random;
    StoredValues* stored;  // null: an expression may return a value that lies elsewhere
    MemoryContext row_context;
};

void sample_row(Relation, ItemPointer tid, Datum* values, bool* nulls, bool alive, void* argument) {
    SampleState* state = static_cast<SampleState*>(argument);
    Sample* sample = state->sample;
    if (nulls[0] || !alive) return;
    const uint32 slot = draw_slot(sample, state->random);
    if (slot == sample->room) return;
    sample->tids[slot] = tid_number(*tid);
    if (state->stored && state->stored->note(slot, values[0])) return;
    const MemoryContext before = MemoryContextSwitchTo(state->row_context);
    const VectorView vector = state->type.view(values[0]);
    row_form(state->metric, vector.values, sample->dims, sample->rows + Size{slot} * sample->dims);
    MemoryContextSwitchTo(before);
    MemoryContextReset(state->row_context);
}

void swap_rows(Sample* sample, uint32 a, uint32 b) {
    float* row_a = sample->rows + Size{a} * sample->dims;
    std::swap_ranges(row_a, row_a + sample->dims, sample->rows + Size{b} * sample->dims);
    std::swap(sample->tids[a], sample->tids[b]);
}

}  // namespace

Sample new_sample(uint32 dims, uint32 room) {
    Sample sample = {};
    sample.dims = dims;
    sample.room = room;
    sample.rows =
        static_cast<float*>(alloc_large(CurrentMemoryContext, Size{room} * dims * sizeof(float)));
    sample.tids = static_cast<uint64*>(
        MemoryContextAllocHuge(CurrentMemoryContext, Max(room, 1u) * sizeof(uint64)));
    return sample;
}

uint32 draw_slot(Sample* sample, Random* random) {
    ++sample->seen;
    if (sample->count < sample->room) return sample->count++;
    return static_cast<uint32>(std::min<uint64>(random->below(sample->seen), sample->room));
}

void keep_rows_in_lists(Metric metric, Sample* sample) {
    const uint32 drawn = sample->count;
    sample->count = 0;
    for (uint32 i = 0; i < drawn; ++i) {
        const float* row = sample->rows + Size{i} * sample->dims;
        if (kind_of_form(metric, row) != RowKind::in_lists) continue;
        if (i != sample->count) {
            memcpy(sample->rows + Size{sample->count} * sample->dims, row,
                   sample->dims * sizeof(float));
            sample->tids[sample->count] = sample->tids[i];
        }
        ++sample->count;
    }
    sample->share = drawn > 0 ? static_cast<double>(sample->count) / drawn : 0;
}

void shuffle_sample(Sample* sample, Random* random, uint32 rows) {
    for (uint32 i = 0; i + 1 < std::min(sample->count, rows); ++i)
        swap_rows(sample, i, i + static_cast<uint32>(random->below(sample->count - i)));
}

TableLook look_at_table(Relation heap, Relation index, IndexInfo* info, uint64 enough, int64 seed) {
    // Lists are planned by the square root of the rows, so half of this error reaches them.
    constexpr double sound_error = 0.05;
    // Blocks of the first turn, and how much more each next one has: few turns, and at most four
    // times the blocks needed.
    constexpr double first_looks = 64;
    constexpr double growth = 4;
    // Beyond this share a pass over all blocks is cheaper than reading single ones.
    constexpr double max_share = 0.25;
    report_phase(BuildPhase::sample);
    TableLook look = {};
    look.blocks = RelationGetNumberOfBlocks(heap);
    report_progress(PROGRESS_SCAN_BLOCKS_TOTAL, look.blocks);
    BlockSampler* sampler = open_block_sampler(heap, index, info);
    BlockCounts counts = {};
    bool sound = false;
    Turns turns = {};
    for (double share = first_looks / Max(look.blocks, 1u); !sound && share <= max_share;
         share *= growth) {
        turns = {turns.end, turns_of(share)};
        for (BlockNumber block = 0; block < look.blocks; ++block) {
            if (!turns.has(turn_of(block, seed))) continue;
            sample_blocks(sampler, block, 1, count_row, &counts);
            counts.end_block();
        }
        sound =
            counts.rows >= static_cast<double>(enough) && counts.error(look.blocks) <= sound_error;
    }
    if (sound) {
        look.seen = static_cast<uint64>(counts.rows);
        look.rows = counts.rows / counts.blocks * look.blocks;
    } else {
        look_at_all(sampler, &look);
    }
    close_block_sampler(sampler);
    return look;
}

Sample sample_table(Relation heap, Relation index, IndexInfo* info, Metric metric, uint32 dims,
                    const TableLook& look, uint32 rows, int64 seed, int workers) {
    report_phase(BuildPhase::sample);
    Sample sample = new_sample(dims, rows);
    StoredValues stored(rows);
    Random random(static_cast<uint64>(seed));
    SampleState state{
        type_of(index),
        &sample,
        metric,
        &random,
        info->ii_IndexAttrNumbers[0] != 0 ? &stored : nullptr,
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq sample row", ALLOCSET_DEFAULT_SIZES)};
    report_progress(PROGRESS_SCAN_BLOCKS_TOTAL, look.blocks);

    // Take a few rows from each of many blocks, every block with the same probability: reading a
    // block costs more than its rows, but rows of one block may be alike. Once there are enough
    // blocks, take more rows from each.
    constexpr double few_of_block = 4;
    constexpr double most_of_block = 8;
    constexpr double min_blocks = 16384;
    constexpr double enough_blocks = 49152;
    const BlockNumber blocks = look.has_rows ? look.blocks_with_rows : look.blocks;
    const double average = Max(look.rows / Max(blocks, 1u), 1e-9);
    const double some_of_block = std::clamp(rows / enough_blocks, few_of_block, most_of_block);
    // A few more than needed, as some blocks have few rows. Each row of a block has the same
    // probability, so that full blocks contribute more rows than nearly empty ones.
    const double part = std::min(1.0, (std::ceil(some_of_block) + 2) / average);
    const double of_block = std::min(average / 1.25, some_of_block);
    double share = std::max(rows / of_block, min_blocks) / Max(blocks, 1u);
    BlockSampler* sampler = open_block_sampler(heap, index, info);
    // Draw again below this share of the rows wanted: rows that lie in few blocks may have been
    // missed.
    constexpr double short_of_rows = 0.9;
    Turns turns = {};
    do {
        turns = {turns.end, turns_of(share)};
        const bool whole = turns.first == 0 && share >= 1;
        if (whole && !look.has_rows) {
            sample_blocks(sampler, 0, look.blocks, sample_row, &state);
            report_progress(PROGRESS_SCAN_BLOCKS_DONE, look.blocks);
            break;
        }
        for (BlockNumber block = 0; block < look.blocks; ++block) {
            if (look.has_rows && !bit_of(look.has_rows, block)) continue;
            if (!turns.has(turn_of(block, seed))) continue;
            sample_some_rows(sampler, block, whole ? 1 : part, &random, sample_row, &state);
            report_progress(PROGRESS_SCAN_BLOCKS_DONE, block + 1);
        }
        share *= 2;
    } while (turns.end != PG_UINT64_MAX && static_cast<double>(sample.seen) < short_of_rows * rows);
    close_block_sampler(sampler);
    MemoryContextDelete(state.row_context);
    read_stored_values(heap, index, info->ii_Concurrent, metric, stored, dims, sample.rows,
                       workers);
    keep_rows_in_lists(metric, &sample);
    shuffle_sample(&sample, &random, shuffled_rows);
    return sample;
}

}  // namespace pgwarp
