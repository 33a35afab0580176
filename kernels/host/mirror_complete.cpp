// Whether a mirror has all lists of an index as they are now, by the counts of their changes.
//
// The index's count is read first, then the counts of its lists. If each of these is the one that
// was read before the list itself was, the mirror has every change up to the index's count: all
// that were counted before it was read.
//
// Batches reuse earlier comparisons while neither the index's count nor lists of the mirror have
// changed. While the index changes, one outdated list proves that the mirror is not complete: that
// list is compared first.

#include "kernels/host/mirror_served.h"

namespace pgwarp {

namespace {

// Backends are asked for outdated lists once the index has not changed for this time. While it
// changes, searches that look into a list send what it lacks, and others would do so in vain.
constexpr std::chrono::milliseconds quiet(50);

}  // namespace

bool Mirror::is_complete(Served& served) const {
    const uint32_t lists = served.shape.lists;
    if (!counts_ || !served.has_range()) return false;
    Served::Compared& compared = served.compared;
    const uint64_t now = counts_->of_index(served.key);
    if (now != compared.of_index) {
        compared.of_index = now;
        compared.lists = 0;
        compared.since = std::chrono::steady_clock::now();
    }
    if (compared.lists == lists) return true;
    const std::span<const uint64_t> known = served.changes;
    const uint32_t last = compared.outdated;
    if (counts_->first_changed(served.key, known.first(last + 1), last) == last) return false;
    compared.lists = counts_->first_changed(served.key, known, compared.lists);
    if (compared.lists == lists) return true;
    compared.outdated = compared.lists;
    return false;
}

MirrorProbe Mirror::next_outdated(Served& served) const {
    Served::Compared& compared = served.compared;
    if (!counts_ || !served.has_range() || is_complete(served)) return {};
    if (std::chrono::steady_clock::now() - compared.since < quiet) return {};
    const uint32_t list = compared.outdated;
    if (compared.asked_at != 0 && compared.asked == list &&
        clock_ - compared.asked_at < ask_again_after)
        return {};
    compared.asked = list;
    compared.asked_at = clock_;
    return {list, 0, (*served.versions)[list]};
}

}  // namespace pgwarp
