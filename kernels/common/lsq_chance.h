// Random numbers for the search for codes, the same on the CPU and on devices. The seed follows
// from the row, so that a row has the same code, up to rounding, wherever it is encoded.
#pragma once

#include "kernels/common.h"
#include "kernels/host_device.h"

namespace pgwarp {

PGWARP_HOST_DEVICE uint64_t mixed_bits(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

// A row's seed is the sum of these over its dimensions, in any order.
PGWARP_HOST_DEVICE uint64_t seed_part(uint32_t dim, uint32_t bits) {
    return mixed_bits((uint64_t{dim} << 32 | bits) + 0x9e3779b97f4a7c15ULL);
}

class LsqChance {
  public:
    PGWARP_HOST_DEVICE explicit LsqChance(uint64_t seed) : state_(seed) {}

    // Uniform below `bound`.
    PGWARP_HOST_DEVICE uint32_t below(uint32_t bound) {
        state_ += 0x9e3779b97f4a7c15ULL;
        return static_cast<uint32_t>((mixed_bits(state_) >> 32) * bound >> 32);
    }

    // Calls set(k, code) with a random code for `count` of the `books` codebooks, each equally
    // likely to be chosen (algorithm 2 of the paper).
    template <typename Set>
    PGWARP_HOST_DEVICE void perturb(uint32_t books, uint32_t count, Set set) {
        for (uint32_t k = 0; k < books && count > 0; ++k) {
            if (below(books - k) >= count) continue;
            set(k, below(256));
            --count;
        }
    }

  private:
    uint64_t state_;
};

}  // namespace pgwarp
