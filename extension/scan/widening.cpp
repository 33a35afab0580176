#include <algorithm>
#include <cmath>

#include "extension/scan/widening.h"

namespace pgwarp {

namespace {

// Fewer do not tell how fast counts fall.
constexpr uint32 least_lists = 4;

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

// The widths of some indexes and shares, in this backend.
struct ListWidth {
    uint64 build_id;
    int share;  // the exponent of its power of two
    double width;
};

ListWidth* find_width(uint64 build_id, double share) {
    constexpr int most = 16;
    static ListWidth widths[most];
    static int next = 0;
    const int exponent = std::ilogb(share);
    for (ListWidth& width : widths)
        if (width.width > 0 && width.build_id == build_id && width.share == exponent) return &width;
    ListWidth* room = &widths[next++ % most];
    *room = {build_id, exponent, 1};
    return room;
}

}  // namespace

bool rest_is_small(const GroupCounts& counts, double missed) {
    if (counts.all == 0) return false;
    // Groups that go on falling at this rate. At least half an entry: none in a sample does not
    // mean none.
    constexpr double slowest = 0.9;
    const double rate = std::min(slowest, counts.last / std::max(counts.before, 1.0));
    const double left = std::max(counts.last, 0.5) * rate / (1 - rate);
    return left <= missed * (counts.all + left);
}

void reset_widening(Widening* widening) {
    if (widening->samples) pfree(widening->samples);
    *widening = {};
}

void sample_entry(Widening* widening, const WideningSample& entry) {
    if (!widening->samples_entries) return;
    constexpr Size first = 1024;
    constexpr Size most = 65536;
    if (++widening->skipped < widening->thinned) return;
    widening->skipped = 0;
    const float weight = entry.weight * static_cast<float>(std::max(widening->thinned, 1u));
    if (widening->count == most) thin_out(widening);
    if (widening->count == widening->room) {
        const Size room = std::max(first, 2 * widening->room);
        const Size bytes = room * sizeof(WideningSample);
        widening->samples = static_cast<WideningSample*>(
            widening->samples ? repalloc_huge(widening->samples, bytes)
                              : MemoryContextAllocHuge(CurrentMemoryContext, bytes));
        widening->room = room;
    }
    widening->samples[widening->count++] = {entry.distance, weight, entry.rank};
}

void forget_beyond(Widening* widening, double bound) {
    WideningSample* end =
        std::remove_if(widening->samples, widening->samples + widening->count,
                       [bound](const WideningSample& sample) { return sample.distance > bound; });
    widening->count = static_cast<Size>(end - widening->samples);
}

bool covers(const Widening& widening, uint32 lists, double distance, double missed) {
    if (lists < least_lists) return false;
    GroupCounts counts = {};
    for (Size i = 0; i < widening.count; ++i) {
        const WideningSample& sample = widening.samples[i];
        if (sample.distance > distance) continue;
        counts.all += sample.weight;
        if (sample.rank >= lists / 2)
            counts.last += sample.weight;
        else if (sample.rank >= lists / 4)
            counts.before += sample.weight;
    }
    return rest_is_small(counts, missed);
}

bool covers(const SearchedLists& searched, uint32 lists, double missed) {
    static_assert(near_groups == 4);
    const double near[] = {
        static_cast<double>(searched.near[0]), static_cast<double>(searched.near[1]),
        static_cast<double>(searched.near[2]), static_cast<double>(searched.near[3])};
    const double half = near[0] + near[1] + near[2];
    const double all = half + near[3];
    if (lists < least_lists) return false;
    if (rest_is_small({all, near[3], near[2]}, missed)) return true;
    // Two small counts say little of their ratio. The first half of the lists promises a small
    // rest, and the other half shows it.
    return lists >= 2 * least_lists && near[3] <= missed * all &&
           rest_is_small({half, near[2], near[1]}, missed);
}

double list_width(uint64 build_id, double share) {
    return find_width(build_id, share)->width;
}

void note_list_width(uint64 build_id, double share, bool enough) {
    // One search in fifteen is made again where the two balance.
    constexpr double wider = 2, narrower = 0.95, most = 8;
    double& width = find_width(build_id, share)->width;
    width = std::clamp(width * (enough ? narrower : wider), 1.0, most);
}

}  // namespace pgwarp
