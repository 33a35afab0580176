// Merging and sorting networks for arrays of any size: Algorithms 1 and 2 of Johnson, Douze and
// Jégou, "Billion-scale similarity search with GPUs".
//
// A lane-stride array holds element i in register i / 32 of lane i % 32. Where all lengths are
// multiples of 32, a compare-swap of stride 32 h pairs register r with register r + h of the same
// lane, in every lane: the network over elements becomes a network over registers, followed by
// steps inside each group of 32. So the functions here count in registers, and a Machine implements
// the steps:
//     compare(i, j)           compare-swap of x[i] and x[j], i < j: the smaller goes to i
//     compare_reversed(i, j)  the same, lane l of x[i] with lane 31 - l of x[j]
//     merge_register(i)       sorts the 32 elements of x[i], which are bitonic
//     sort_register(i)        sorts the 32 elements of x[i]
// With one element per register the first two are plain compare-swaps and the last two do nothing:
// that is the paper's network, and the tests prove it in this form.
#pragma once

#include "kernels/host_device.h"

namespace pgwarp::gpu {

// The largest power of two below `length`, which is at least 2.
PGWARP_HOST_DEVICE constexpr int power_below(int length) {
    int power = 1;
    while (2 * power < length) power *= 2;
    return power;
}

// MERGE-ODD-CONTINUE. Relative to a power of two, a left array lacks elements at its beginning, a
// right array at its end.
template <int begin, int length, bool left, class Machine>
PGWARP_HOST_DEVICE void merge_odd_continue(Machine& machine) {
    if constexpr (length > 1) {
        constexpr int half = power_below(length);
        PGWARP_UNROLL
        for (int i = 0; i < length - half; ++i) machine.compare(begin + i, begin + i + half);
        constexpr int first = left ? length - half : half;
        merge_odd_continue<begin, first, true>(machine);
        merge_odd_continue<begin + first, length - first, false>(machine);
    }
}

// MERGE-ODD of two adjacent sorted arrays: `left_length` registers from `begin` on, then
// `right_length` registers. Without keep_right the right part is unspecified afterwards.
template <int begin, int left_length, int right_length, bool keep_right, class Machine>
PGWARP_HOST_DEVICE void merge_odd(Machine& machine) {
    constexpr int pairs = left_length < right_length ? left_length : right_length;
    constexpr int middle = begin + left_length;
    PGWARP_UNROLL
    for (int i = 0; i < pairs; ++i) machine.compare_reversed(middle - 1 - i, middle + i);
    merge_odd_continue<begin, left_length, true>(machine);
    PGWARP_UNROLL
    for (int i = 0; i < left_length; ++i) machine.merge_register(begin + i);
    if constexpr (keep_right) {
        merge_odd_continue<middle, right_length, false>(machine);
        PGWARP_UNROLL
        for (int i = 0; i < right_length; ++i) machine.merge_register(middle + i);
    }
}

// SORT-ODD.
template <int begin, int length, class Machine>
PGWARP_HOST_DEVICE void sort_odd(Machine& machine) {
    if constexpr (length == 1) {
        machine.sort_register(begin);
    } else {
        constexpr int half = length / 2;
        sort_odd<begin, half>(machine);
        sort_odd<begin + half, length - half>(machine);
        merge_odd<begin, half, length - half, true>(machine);
    }
}

}  // namespace pgwarp::gpu
