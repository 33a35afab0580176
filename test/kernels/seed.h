// The seed of a randomised test: different in every run, printed, and repeatable on demand.
#pragma once

#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

namespace pgwarp {

inline unsigned test_seed() {
    static const unsigned seed = [] {
        const char* given = std::getenv("PGWARP_TEST_SEED");
        const unsigned chosen =
            given ? static_cast<unsigned>(std::stoul(given)) : std::random_device()();
        std::cout << "to repeat: PGWARP_TEST_SEED=" << chosen << std::endl;
        return chosen;
    }();
    return seed;
}

}  // namespace pgwarp
