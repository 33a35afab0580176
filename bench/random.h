// Random numbers that are the same on every machine. The standard library's engines are portable,
// its distributions and std::shuffle are not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace pgwarp::bench {

// splitmix64: a counter through a mixing function, so a stream may start at any seed, and one
// stream a row makes rows independent of how many were made before.
class Random {
  public:
    explicit Random(uint64_t seed, uint64_t stream = 0) : state_(mix(seed) + mix(~stream)) {}

    uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15u); }

    // In [0, bound). The bias of the modulo is below 2^-32 for the bounds we use.
    size_t below(size_t bound) { return next() % bound; }

    // In [0, 1).
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  private:
    static uint64_t mix(uint64_t z) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

    uint64_t state_;
};

// The numbers 0 to count - 1 in random order.
inline std::vector<size_t> shuffled(size_t count, uint64_t seed) {
    std::vector<size_t> order(count);
    for (size_t i = 0; i < count; i++) order[i] = i;
    Random random(seed);
    for (size_t i = count; i > 1; i--) std::swap(order[i - 1], order[random.below(i)]);
    return order;
}

}  // namespace pgwarp::bench
