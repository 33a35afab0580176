// Numbers for the keys of a graph, in the order of keys.
#pragma once

#include "kernels/graph_paths.h"
#include "kernels/interrupts.h"
#include "kernels/workers.h"

#include <vector>

namespace pgwarp {

// A table indexed by key if keys are dense, else a hash table.
class KeyNumbers {
  public:
    KeyNumbers(Workers& workers, const KeyedEdges& edges, const Interrupts& interrupts);

    uint32_t operator()(int64_t key) const {
        if (dense_) return numbers_[place(key)];
        for (size_t at = hash(key);; ++at) {
            const uint32_t number = numbers_[at & mask_];
            if (keys_[number] == key) return number;
        }
    }

    const std::vector<int64_t>& keys() const { return keys_; }

  private:
    size_t place(int64_t key) const {
        return static_cast<uint64_t>(key) - static_cast<uint64_t>(least_);
    }
    static size_t hash(int64_t key) {
        const uint64_t mixed = static_cast<uint64_t>(key) * 0x9e3779b97f4a7c15ULL;
        return mixed ^ (mixed >> 32);
    }
    void find_range(Workers& workers, const KeyedEdges& edges);
    void number_dense(Workers& workers, const KeyedEdges& edges, size_t range);
    void make_slots(size_t slots);
    void insert(int64_t key);
    void number_sparse(const KeyedEdges& edges, const Interrupts& interrupts);

    bool dense_ = true;
    int64_t least_ = 0;
    int64_t greatest_ = 0;
    std::vector<int64_t> keys_;      // sorted, at the end
    std::vector<uint32_t> numbers_;  // by place(), or by slot
    size_t mask_ = 0;
};

}  // namespace pgwarp
