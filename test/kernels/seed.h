// The seed of a randomised test: the same in every run, so that a failure is one of the code;
// PGWARP_TEST_SEED tries another, "random" a new one.
#pragma once

#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

namespace pgwarp {

inline unsigned test_seed() {
    static const unsigned seed = [] {
        const char* given = std::getenv("PGWARP_TEST_SEED");
        const std::string wanted = given ? given : "1";
        const unsigned chosen =
            wanted == "random" ? std::random_device()() : static_cast<unsigned>(std::stoul(wanted));
        std::cout << "to repeat: PGWARP_TEST_SEED=" << chosen << std::endl;
        return chosen;
    }();
    return seed;
}

}  // namespace pgwarp
