#include "kernels/cpu/key_numbers.h"

#include "kernels/cpu/pieces.h"
#include "kernels/polling_order.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <stdexcept>

namespace pgwarp {

namespace {

constexpr size_t edges_in_piece = 1 << 16;
constexpr size_t edges_between_polls = 1 << 20;

}  // namespace

KeyNumbers::KeyNumbers(Workers& workers, const KeyedEdges& edges, const Interrupts& interrupts) {
    if (edges.count == 0) return;
    find_range(workers, edges);
    // Unsigned: the whole range of int64 has no length in int64.
    const uint64_t range = static_cast<uint64_t>(greatest_) - static_cast<uint64_t>(least_);
    dense_ = range / 2 <= edges.count;
    if (dense_)
        number_dense(workers, edges, range + 1);
    else
        number_sparse(edges, interrupts);
}

void KeyNumbers::find_range(Workers& workers, const KeyedEdges& edges) {
    struct Range {
        int64_t least, greatest;
    };
    std::vector<Range> ranges((edges.count + edges_in_piece - 1) / edges_in_piece);
    for_pieces(workers, edges.count, edges_in_piece, [&](size_t begin, size_t end, int) {
        const auto [src, src_most] = std::minmax_element(edges.src + begin, edges.src + end);
        const auto [dst, dst_most] = std::minmax_element(edges.dst + begin, edges.dst + end);
        ranges[begin / edges_in_piece] = {std::min(*src, *dst), std::max(*src_most, *dst_most)};
    });
    least_ = ranges[0].least;
    greatest_ = ranges[0].greatest;
    for (const Range& range : ranges) {
        least_ = std::min(least_, range.least);
        greatest_ = std::max(greatest_, range.greatest);
    }
}

void KeyNumbers::number_dense(Workers& workers, const KeyedEdges& edges, size_t range) {
    numbers_.assign(range, 0);
    for_pieces(workers, edges.count, edges_in_piece, [&](size_t begin, size_t end, int) {
        for (size_t i = begin; i < end; ++i)
            for (const int64_t key : {edges.src[i], edges.dst[i]}) {
                const std::atomic_ref seen(numbers_[place(key)]);
                // A store would take the line from the other threads each time.
                if (!seen.load(std::memory_order_relaxed)) seen.store(1, std::memory_order_relaxed);
            }
    });
    uint32_t next = 0;
    for (size_t i = 0; i < range; ++i) {
        if (!numbers_[i]) continue;
        numbers_[i] = next++;
        keys_.push_back(static_cast<int64_t>(static_cast<uint64_t>(least_) + i));
    }
}

void KeyNumbers::make_slots(size_t slots) {
    numbers_.assign(slots, unset);
    mask_ = slots - 1;
    for (uint32_t i = 0; i < keys_.size(); ++i) {
        size_t at = hash(keys_[i]);
        while (numbers_[at & mask_] != unset) ++at;
        numbers_[at & mask_] = i;
    }
}

void KeyNumbers::insert(int64_t key) {
    size_t at = hash(key);
    for (; numbers_[at & mask_] != unset; ++at)
        if (keys_[numbers_[at & mask_]] == key) return;
    if (keys_.size() >= unset - 1) throw std::runtime_error("the graph has too many vertices");
    numbers_[at & mask_] = static_cast<uint32_t>(keys_.size());
    keys_.push_back(key);
    if (keys_.size() * 2 > mask_) make_slots((mask_ + 1) * 2);
}

void KeyNumbers::number_sparse(const KeyedEdges& edges, const Interrupts& interrupts) {
    make_slots(1024);
    for (size_t i = 0; i < edges.count; ++i) {
        if (i % edges_between_polls == 0) interrupts.check();
        if (i == 0 || edges.src[i] != edges.src[i - 1]) insert(edges.src[i]);
        insert(edges.dst[i]);
    }
    PollingOrder order(interrupts, std::less<int64_t>());
    std::sort(keys_.begin(), keys_.end(), std::ref(order));
    make_slots(mask_ + 1);
}

}  // namespace pgwarp
