// The seed of a randomised test: the same in every run, so that a failure is one of the code.
// PGWARP_TEST_SEED tries another.
#pragma once

#include <cstdlib>
#include <iostream>
#include <string>

namespace pgwarp {

inline unsigned test_seed() {
    static const unsigned seed = [] {
        const char* given = std::getenv("PGWARP_TEST_SEED");
        const unsigned chosen = given ? static_cast<unsigned>(std::stoul(given)) : 1;
        std::cout << "to repeat: PGWARP_TEST_SEED=" << chosen << std::endl;
        return chosen;
    }();
    return seed;
}

}  // namespace pgwarp
