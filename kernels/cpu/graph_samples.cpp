#include "kernels/cpu/graph_samples.h"

#include "kernels/cpu/graph_lists.h"
#include "kernels/random.h"

#include <algorithm>

namespace pgwarp {

namespace {
constexpr size_t task_rows = 4096;
// Tasks for reverse samples. Each task reads all forward samples, so there are few tasks, and
// writes its own range of rows.
constexpr size_t backward_tasks = 16;
}  // namespace

GraphSamples::GraphSamples(size_t count, uint32_t samples) : count_(count), samples_(samples) {
    for (Side* side : {&fresh_forwards_, &old_forwards_, &fresh_backwards_, &old_backwards_}) {
        side->rows.resize(count * samples);
        side->counts.resize(count);
    }
}

size_t GraphSamples::memory(size_t count, uint32_t samples) {
    return 4 * count * (samples + 1) * sizeof(uint32_t);
}

void GraphSamples::draw(Workers& workers, const SampleKinds& kinds, Edge* lists, uint32_t degree,
                        uint64_t seed) {
    draw_forwards(workers, kinds, lists, degree);
    draw_backwards(workers, fresh_forwards_, seed, fresh_backwards_);
    draw_backwards(workers, old_forwards_, seed + 1, old_backwards_);
}

void GraphSamples::draw_forwards(Workers& workers, const SampleKinds& kinds, Edge* lists,
                                 uint32_t degree) {
    workers.run((count_ + task_rows - 1) / task_rows, [&](size_t task, int) {
        const size_t end = std::min(count_, (task + 1) * task_rows);
        for (size_t row = task * task_rows; row < end; ++row) {
            Edge* list = lists + row * degree;
            const bool below = row < kinds.border;
            uint32_t fresh_count = 0, old_count = 0;
            for (uint32_t i = 0; i < degree && list[i].row != no_row; ++i) {
                if (!(list[i].row & fresh)) {
                    if (old_count < kinds.old_rows && (list[i].row < kinds.border) == below)
                        old_forwards_.rows[row * samples_ + old_count++] = list[i].row;
                } else if (fresh_count < kinds.fresh_rows) {
                    list[i].row &= row_part;
                    fresh_forwards_.rows[row * samples_ + fresh_count++] = list[i].row;
                }
            }
            fresh_forwards_.counts[row] = fresh_count;
            old_forwards_.counts[row] = old_count;
        }
    });
}

// Reservoir sampling: each reverse neighbor has the same chance to stay.
void GraphSamples::draw_backwards(Workers& workers, const Side& forwards, uint64_t seed,
                                  Side& backwards) {
    workers.run(backward_tasks, [&](size_t task, int) {
        const size_t begin = count_ * task / backward_tasks;
        const size_t end = count_ * (task + 1) / backward_tasks;
        Random random(seed * backward_tasks + task);
        std::fill(backwards.counts.begin() + begin, backwards.counts.begin() + end, 0u);
        for (size_t row = 0; row < count_; ++row)
            for (uint32_t i = 0; i < forwards.counts[row]; ++i) {
                const uint32_t target = forwards.rows[row * samples_ + i];
                if (target < begin || target >= end) continue;
                const uint32_t came = backwards.counts[target]++;
                const uint64_t place = came < samples_ ? came : random.below(came + 1);
                if (place < samples_)
                    backwards.rows[size_t{target} * samples_ + place] = static_cast<uint32_t>(row);
            }
        for (size_t row = begin; row < end; ++row)
            backwards.counts[row] = std::min(backwards.counts[row], samples_);
    });
}

GraphSamples::Counts GraphSamples::of(size_t row, uint32_t* fresh_rows, uint32_t* old_rows) const {
    const auto collect = [&](const Side& forwards, const Side& backwards, uint32_t* to) {
        uint32_t* end = to;
        for (const Side* side : {&forwards, &backwards})
            end = std::copy_n(side->rows.data() + row * samples_, side->counts[row], end);
        std::sort(to, end);
        return static_cast<size_t>(std::unique(to, end) - to);
    };
    Counts counts;
    counts.fresh_rows = collect(fresh_forwards_, fresh_backwards_, fresh_rows);
    // Without new neighbors nothing is compared: old pairs have met before.
    if (counts.fresh_rows == 0) return {0, 0};
    counts.old_rows = collect(old_forwards_, old_backwards_, old_rows);
    uint32_t* fresh_end = fresh_rows + counts.fresh_rows;
    counts.old_rows = static_cast<size_t>(
        std::remove_if(
            old_rows, old_rows + counts.old_rows,
            [&](uint32_t old) { return std::binary_search(fresh_rows, fresh_end, old); }) -
        old_rows);
    return counts;
}

}  // namespace pgwarp
