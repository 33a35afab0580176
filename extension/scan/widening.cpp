#include <algorithm>

#include "extension/scan/widening.h"

namespace pgwarp {

namespace {

// Keeps every second entry of the sample, for twice as many.
void thin_out(Widening* widening) {
    Size kept = 0;
    for (Size i = 0; i < widening->count; i += 2) {
        widening->samples[kept] = widening->samples[i];
        widening->samples[kept++].weight *= 2;
    }
    widening->count = kept;
    widening->thinned = 2 * std::max(widening->thinned, 1u);
}

// Entries of the neighborhood in all groups, in the last one and in the one before.
struct GroupCounts {
    double all;
    double last;
    double before;
};

// Whether the groups to come have at most `missed` of all entries.
bool rest_is_small(const GroupCounts& counts, double missed) {
    // Groups of doubling size that go on falling at this rate. At least half an entry: none in a
    // sample does not mean none.
    constexpr double slowest = 0.9;
    const double rate = std::min(slowest, counts.last / std::max(counts.before, 1.0));
    const double left = std::max(counts.last, 0.5) * rate / (1 - rate);
    return left <= missed * (counts.all + left);
}

}  // namespace

void sample_entry(Widening* widening, float distance, float weight) {
    constexpr Size first = 1024;
    constexpr Size most = 65536;
    if (++widening->skipped < widening->thinned) return;
    widening->skipped = 0;
    weight *= static_cast<float>(std::max(widening->thinned, 1u));
    if (widening->count == most) thin_out(widening);
    if (widening->count == widening->room) {
        const Size room = std::max(first, 2 * widening->room);
        const Size bytes = room * sizeof(WideningSample);
        widening->samples = static_cast<WideningSample*>(
            widening->samples ? repalloc_huge(widening->samples, bytes)
                              : MemoryContextAllocHuge(CurrentMemoryContext, bytes));
        widening->room = room;
    }
    widening->samples[widening->count++] = {distance, weight, widening->groups};
}

void end_widening_group(Widening* widening, double bound) {
    WideningSample* end =
        std::remove_if(widening->samples, widening->samples + widening->count,
                       [bound](const WideningSample& sample) { return sample.distance > bound; });
    widening->count = static_cast<Size>(end - widening->samples);
    ++widening->groups;
}

bool covers(const Widening& widening, double distance, double missed) {
    // One group does not tell how fast counts fall.
    if (widening.groups < 2) return false;
    double all = 0;
    double last = 0;
    double before = 0;
    for (Size i = 0; i < widening.count; ++i) {
        const WideningSample& sample = widening.samples[i];
        if (sample.distance > distance) continue;
        all += sample.weight;
        if (sample.group + 1 == widening.groups) last += sample.weight;
        if (sample.group + 2 == widening.groups) before += sample.weight;
    }
    return rest_is_small({all, last, before}, missed);
}

bool covers(const SearchedLists& searched, double missed) {
    return rest_is_small(
        {static_cast<double>(searched.near), static_cast<double>(searched.near_last),
         static_cast<double>(searched.near_before)},
        missed);
}

}  // namespace pgwarp
