#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "kernels/mirror.h"
#include "extension/index/change_counts.h"
#include "extension/service/service_answer.h"

extern "C" {
#include "access/xlog.h"
}

namespace pgwarp {

// Replay counts no changes. A snapshot may be too old for a list that has lost rows since, and the
// list's place shows it.
bool may_be_complete() {
    return change_counts && !RecoveryInProgress() && !compat_old_snapshots_end();
}

void begin_answer(ServiceAnswer* answer, uint32 k) {
    *answer = {};
    answer->why = "the service had no answer";
    answer->left_out = std::numeric_limits<float>::infinity();
    answer->found = static_cast<Neighbor*>(palloc(Max(k, 1u) * sizeof(Neighbor)));
}

bool copy_answer(const SearchSlot* slot, uint32 k, uint32 lists, ServiceAnswer* answer) {
    const SearchBlock* block = block_of(slot);
    answer->found_count = slot->found_count;
    answer->taken = slot->taken;
    answer->would_take_more = slot->taken >= slot->probes;
    answer->probed_count = slot->probed_count;
    answer->searched = slot->searched;
    answer->refined = slot->refined_k > 0;
    answer->left_out = slot->left_out;
    if (!block || answer->found_count > k || answer->probed_count > service_most_lists)
        return false;
    answer->complete = slot->complete;
    answer->outdated = slot->names_outdated ? block->outdated : MirrorProbe{};
    memcpy(answer->found, block->found, answer->found_count * sizeof(Neighbor));
    const Size bytes =
        answer->probed_count * (answer->complete ? sizeof(uint64) : sizeof(MirrorProbe));
    if (bytes == 0 && answer->complete) return true;
    // No error may be reported while the slot has a block.
    void* named = palloc_extended(Max(bytes, 1), MCXT_ALLOC_NO_OOM);
    if (!named) return false;
    if (answer->complete) {
        answer->lists = static_cast<uint64*>(named);
        memcpy(answer->lists, block->lists, bytes);
        return true;
    }
    answer->probed = static_cast<MirrorProbe*>(named);
    memcpy(answer->probed, block->probed, bytes);
    if (std::all_of(answer->probed, answer->probed + answer->probed_count,
                    [lists](const MirrorProbe& probe) { return probe.list < lists; }))
        return true;
    // The next device may give the answer.
    pfree(answer->probed);
    answer->probed = nullptr;
    return false;
}

void free_answer(ServiceAnswer* answer) {
    pfree(answer->found);
    if (answer->probed) pfree(answer->probed);
    if (answer->lists) pfree(answer->lists);
    if (answer->devices) pfree(answer->devices);
}

ServiceDevice* device_of(const ServiceAnswer& answer, uint32 i) {
    return answer.devices ? service_device(answer.devices[i]) : answer.device;
}

namespace {

bool is_nearer(const Neighbor& a, const Neighbor& b) {
    return a.distance < b.distance || (a.distance == b.distance && a.id < b.id);
}

// Leaves the nearest of those with the same id. A device may have rounded otherwise, so that they
// need not stand side by side.
uint32 drop_repeated(Neighbor* found, uint32 count) {
    auto* ids = static_cast<uint64*>(palloc(Max(count, 1u) * sizeof(uint64)));
    for (uint32 i = 0; i < count; ++i) ids[i] = found[i].id;
    std::sort(ids, ids + count);
    auto* taken = static_cast<bool*>(palloc0(Max(count, 1u) * sizeof(bool)));
    uint32 kept = 0;
    for (uint32 i = 0; i < count; ++i) {
        const auto at = std::lower_bound(ids, ids + count, found[i].id) - ids;
        if (taken[at]) continue;
        taken[at] = true;
        found[kept++] = found[i];
    }
    pfree(taken);
    pfree(ids);
    return kept;
}

}  // namespace

void add_refined(const ServiceAnswer& part, bool same_lists, ServiceAnswer* all) {
    const uint32 count = all->found_count + part.found_count;
    auto* merged = static_cast<Neighbor*>(palloc(Max(count, 1u) * sizeof(Neighbor)));
    std::copy_n(all->found, all->found_count, merged);
    std::copy_n(part.found, part.found_count, merged + all->found_count);
    pfree(all->found);
    all->found = merged;
    all->found_count = same_lists ? drop_repeated(merged, count) : count;
    all->left_out = std::min(all->left_out, part.left_out);
}

void add_candidates(uint32 k, const ServiceAnswer& part, bool same_lists, ServiceAnswer* all) {
    uint32 count = all->found_count + part.found_count;
    auto* merged = static_cast<Neighbor*>(palloc(Max(count, 1u) * sizeof(Neighbor)));
    std::merge(all->found, all->found + all->found_count, part.found, part.found + part.found_count,
               merged, is_nearer);
    if (same_lists) count = drop_repeated(merged, count);
    const Neighbor* end = merged + count;
    for (const ServiceAnswer* one : std::initializer_list<const ServiceAnswer*>{all, &part}) {
        if (!one->searched.more) continue;
        const double last = one->found_count > 0 ? one->found[one->found_count - 1].distance
                                                 : -std::numeric_limits<double>::infinity();
        end = std::find_if(const_cast<const Neighbor*>(merged), end,
                           [last](const Neighbor& found) { return found.distance > last; });
    }
    const auto complete = static_cast<uint32>(end - merged);
    all->searched.more |= part.searched.more | (complete > k);
    all->searched.passed += part.searched.passed;
    pfree(all->found);
    all->found = merged;
    all->found_count = std::min(complete, k);
}

}  // namespace pgwarp
