// Effort by query: how many lists a query looks into, by what it sees of its own.
//
// One number of lists for all queries wastes on the easy ones and starves the hard ones. So a query
// takes its nearest lists until they have first_entries(k) entries. The distance of the k-th
// nearest of these, by code, is its radius: rows nearer than that are what it still looks for. Then
// it goes on while the score of the next list is below a threshold, which the recall curve gives. A
// list scores the higher, the farther its centroid is in units of the radius, and the more entries
// the query has seen before it.
//
// Distances are squared, so there is none of this with inner products.
#pragma once

#include "kernels/host_device.h"

#include <cmath>
#include <cstdint>

namespace pgwarp {

// Entries from which the radius for k rows is taken.
inline uint32_t first_entries(uint32_t k) {
    // Few say little of the k-th nearest; for many rows fewer of each will do.
    return static_cast<uint32_t>(100 * std::pow(static_cast<double>(k), 0.75));
}

// `distance`: squared, of the list's centroid; `radius`: squared, too; `entries`: in the lists
// before. A radius of 0 or less, which rounded codes may give, scores as infinity.
PGWARP_HOST_DEVICE float list_score(float distance, float radius, float entries) {
    if (!(radius > 0)) return distance > 0 ? INFINITY : 0;
    const float ratio = distance / radius;
    return ratio * ratio * ratio * sqrtf(entries);
}

// The lists that one query takes, on a CPU.
struct ListLimit {
    float threshold;  // 0: as many as the caller gives
    uint32_t k;       // of the radius
    uint32_t first_entries;
    bool has_radius = false;
    float radius = 0;

    // Whether the query takes the list whose term this is, after lists with `entries` entries.
    // `selection` has their nearest: distance_of(k) is infinity where it has fewer.
    template <class Selection>
    bool takes(float term, double entries, Selection& selection) {
        if (!(threshold > 0)) return true;
        if (!has_radius) {
            if (entries < first_entries) return true;
            const double kth = selection.distance_of(k);
            if (std::isinf(kth)) return true;
            has_radius = true;
            radius = static_cast<float>(kth);
        }
        return list_score(term, radius, static_cast<float>(entries)) <= threshold;
    }
};

}  // namespace pgwarp
