// Effort by query: how many lists a query looks into, by what it sees of its own.
//
// One number of lists for all queries wastes on the easy ones and starves the hard ones. So a query
// takes its nearest lists until they have first_entries() entries. The distance of the k-th nearest
// of these, by code, is its radius: rows nearer than that are what it still looks for. Then it goes
// on while the score of the next list is below a threshold, which the recall curve gives. A list
// scores the higher, the farther its centroid is in units of the radius, the farther it is compared
// with the nearest centroid, and the more entries the query has seen before it. The radius tells
// queries between clusters from others, the nearest centroid those that are far from all rows.
// Where rows have near duplicates, a threshold that is right for other queries ends rows too early:
// a query takes some number of lists whatever they score. And a query that is no row has the
// duplicates of one row at about one distance, in as many lists as if it wanted all of them: its
// radius is that of more rows, where these are hardly farther (wider_radius()).
//
// Distances are squared, so there is none of this with inner products.
#pragma once

#include "kernels/host_device.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace pgwarp {

// Thresholds are those of one rule. An index keeps the number of the rule that it was measured
// with: raise it with every change of scores or of the radius.
inline constexpr uint8_t list_rule = 1;

// Entries from which the radius for k rows is taken, where the lists have `rows` entries.
inline uint32_t first_entries(uint32_t k, uint64_t rows) {
    // Few say little of the k-th nearest; for many rows fewer of each will do. In a small table,
    // where a query needs few entries in all, they must leave something to decide.
    constexpr double few = 300;
    constexpr double part_of_rows = 1.0 / 64;
    const double most = 100 * std::pow(static_cast<double>(k), 0.75);
    const double least = std::min(most, std::max(few, 2.0 * k));
    return static_cast<uint32_t>(std::clamp(part_of_rows * static_cast<double>(rows), least, most));
}

// Squared distances: of the list's centroid, of the nearest centroid, and the radius. `entries`: in
// the lists before. A radius of 0 or less, which rounded codes may give, scores as infinity.
PGWARP_HOST_DEVICE float list_score(float distance, float nearest, float radius, float entries) {
    if (!(radius > 0)) return distance > 0 ? INFINITY : 0;
    const float ratio = distance / radius;
    // A query may be at a centroid: then the radius says more.
    const float half_radius = radius / 2;
    const float beyond = distance / (nearest > half_radius ? nearest : half_radius);
    return ratio * ratio * ratio * ratio * ratio * beyond * beyond * sqrtf(entries);
}

// The greatest distance that scores at most `threshold`, or a little more.
inline float greatest_distance(float threshold, float nearest, float radius, float entries) {
    if (!(radius > 0)) return 0;
    if (!(entries > 0)) return INFINITY;
    const double beyond = std::max<double>(nearest, radius / 2);
    const double score = threshold / std::sqrt(double{entries});
    constexpr double rounding = 1.00001;
    return static_cast<float>(
        rounding * std::pow(score * std::pow(double{radius}, 5) * beyond * beyond, 1.0 / 7));
}

// The radius by the squared distances of the k-th row and of a later one. A row's own duplicates
// are far nearer than what comes after them.
PGWARP_HOST_DEVICE float wider_radius(float kth, float later) {
    constexpr float hardly_farther = 2;
    return later <= hardly_farther * kth ? later : kth;
}

// The lists that one query takes, on a CPU.
struct ListLimit {
    float threshold;  // 0: as many as the caller gives
    uint32_t k;       // of the radius
    uint32_t first_entries;
    uint32_t first_lists = 0;
    uint32_t wider_k = 0;  // above k: the later row of wider_radius()
    float nearest = 0;     // term of the first list
    bool has_radius = false;
    float radius = 0;

    // Whether the query takes the list whose term this is, after `lists` lists with `entries`
    // entries. `selection` has their nearest: distance_of(k) is infinity where it has fewer.
    template <class Selection>
    bool takes(float term, uint32_t lists, double entries, Selection& selection) {
        if (!(threshold > 0) || lists < first_lists) return true;
        if (!has_radius) {
            if (entries < first_entries) return true;
            const double kth = selection.distance_of(k);
            if (std::isinf(kth)) return true;
            has_radius = true;
            radius = static_cast<float>(kth);
            if (wider_k > k)
                radius = wider_radius(radius, static_cast<float>(selection.distance_of(wider_k)));
        }
        return list_score(term, nearest, radius, static_cast<float>(entries)) <= threshold;
    }
};

}  // namespace pgwarp
