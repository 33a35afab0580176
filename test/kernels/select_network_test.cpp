// The merging and sorting networks of WarpSelect, as the device runs them.

#include "kernels/cuda/select/networks.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include "test/kernels/seed.h"

namespace pgwarp::gpu {
namespace {

// One element a register: the network of the paper itself.
struct ScalarMachine {
    std::vector<int> x;
    int steps = 0;

    void compare(int i, int j) {
        ASSERT_LT(i, j);
        ++steps;
        if (x[j] < x[i]) std::swap(x[i], x[j]);
    }
    void compare_reversed(int i, int j) { compare(i, j); }
    void merge_register(int) {}
    void sort_register(int) {}
};

// Thirty-two lanes a register, each step as its shuffle does it.
struct LaneMachine {
    using Register = std::array<uint32_t, 32>;
    std::vector<Register> x;

    void compare(int i, int j) {
        for (int l = 0; l < 32; ++l)
            if (x[j][l] < x[i][l]) std::swap(x[i][l], x[j][l]);
    }
    void compare_reversed(int i, int j) {
        for (int l = 0; l < 32; ++l)
            if (x[j][31 - l] < x[i][l]) std::swap(x[i][l], x[j][31 - l]);
    }
    void compare_lanes(int i, int distance, int size) {
        for (int l = 0; l < 32; ++l) {
            if (l & distance) continue;
            const bool ascending = (l & size) == 0;
            if ((x[i][l + distance] < x[i][l]) == ascending) std::swap(x[i][l], x[i][l + distance]);
        }
    }
    void merge_register(int i) {
        for (int distance = 16; distance > 0; distance /= 2) compare_lanes(i, distance, 32);
    }
    void sort_register(int i) {
        for (int size = 2; size <= 32; size *= 2)
            for (int distance = size / 2; distance > 0; distance /= 2)
                compare_lanes(i, distance, size);
    }

    std::vector<uint32_t> elements() const {
        std::vector<uint32_t> all;
        for (const Register& r : x) all.insert(all.end(), r.begin(), r.end());
        return all;
    }
};

// A network that merges all sorted pairs of zeros and ones merges everything.
template <int left, int right>
void check_merge() {
    for (int ones_left = 0; ones_left <= left; ++ones_left)
        for (int ones_right = 0; ones_right <= right; ++ones_right) {
            ScalarMachine machine;
            machine.x.assign(left + right, 0);
            std::fill(machine.x.begin() + left - ones_left, machine.x.begin() + left, 1);
            std::fill(machine.x.end() - ones_right, machine.x.end(), 1);
            merge_odd<0, left, right, true>(machine);
            EXPECT_TRUE(std::is_sorted(machine.x.begin(), machine.x.end()))
                << left << " + " << right << " with " << ones_left << " and " << ones_right;
        }
}

template <int left, int... rights>
void check_merges(std::integer_sequence<int, rights...>) {
    (check_merge<left, rights + 1>(), ...);
}
template <int... lefts>
void check_all_merges(std::integer_sequence<int, lefts...>) {
    (check_merges<lefts + 1>(std::make_integer_sequence<int, 12>()), ...);
}

TEST(SelectNetwork, MergesAnyTwoLengths) {
    check_all_merges(std::make_integer_sequence<int, 12>());
    check_merge<64, 8>();
    check_merge<32, 8>();
    check_merge<64, 5>();
}

// The smallest are in front even where the rest of the network is left out.
TEST(SelectNetwork, MergesWhatIsKept) {
    for (int ones = 0; ones <= 3; ++ones) {
        ScalarMachine machine;
        machine.x = {0, 0, 1, 1, 1, 0, 0, 0};
        std::fill(machine.x.end() - ones, machine.x.end(), 1);
        merge_odd<0, 5, 3, false>(machine);
        EXPECT_TRUE(std::is_sorted(machine.x.begin(), machine.x.begin() + 5));
        EXPECT_EQ(std::accumulate(machine.x.begin(), machine.x.begin() + 5, 0),
                  std::max(0, 3 + ones - 3));
    }
}

template <int length>
void check_sort() {
    for (unsigned bits = 0; bits < 1u << length; ++bits) {
        ScalarMachine machine;
        for (int i = 0; i < length; ++i) machine.x.push_back(bits >> i & 1);
        sort_odd<0, length>(machine);
        ASSERT_TRUE(std::is_sorted(machine.x.begin(), machine.x.end())) << length << ": " << bits;
    }
}
template <int... lengths>
void check_sorts(std::integer_sequence<int, lengths...>) {
    (check_sort<lengths + 1>(), ...);
}

TEST(SelectNetwork, SortsAnyLength) {
    check_sorts(std::make_integer_sequence<int, 14>());
}

// The paper's figure: lengths 5 and 3 in four parallel steps of 3 + 1 + 3 + 2 + ... comparators.
TEST(SelectNetwork, ComparesNoMoreThanThePaper) {
    ScalarMachine machine;
    machine.x.assign(8, 0);
    merge_odd<0, 5, 3, true>(machine);
    EXPECT_EQ(machine.steps, 3 + (1 + 2 + 2) + (1 + 1));
}

template <int registers, int queue>
void check_lanes(std::mt19937& random) {
    LaneMachine machine;
    machine.x.resize(registers + queue);
    std::vector<uint32_t> kept(registers * 32);
    for (uint32_t& key : kept) key = random() % 1000;
    std::sort(kept.begin(), kept.end());
    for (size_t i = 0; i < kept.size(); ++i) machine.x[i / 32][i % 32] = kept[i];
    std::vector<uint32_t> all = kept;
    for (int q = 0; q < queue; ++q)
        for (int l = 0; l < 32; ++l) all.push_back(machine.x[registers + q][l] = random() % 1000);
    std::sort(all.begin(), all.end());

    sort_odd<registers, queue>(machine);
    const std::vector<uint32_t> sorted = machine.elements();
    EXPECT_TRUE(std::is_sorted(sorted.begin() + registers * 32, sorted.end()));
    merge_odd<0, registers, queue, false>(machine);
    std::vector<uint32_t> merged = machine.elements();
    merged.resize(registers * 32);
    all.resize(registers * 32);
    EXPECT_EQ(merged, all) << registers << " registers, queues of " << queue;
}

// What WarpSelect::merge() does, for all its shapes.
TEST(SelectNetwork, WorksInLanes) {
    std::mt19937 random(test_seed());
    for (int i = 0; i < 20; ++i) {
        check_lanes<1, 2>(random);
        check_lanes<4, 3>(random);
        check_lanes<8, 4>(random);
        check_lanes<32, 8>(random);
        check_lanes<64, 8>(random);
    }
}

}  // namespace
}  // namespace pgwarp::gpu
