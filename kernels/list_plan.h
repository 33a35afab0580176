// Which lists a query takes: one rule, for pages, lists in memory and devices.
//
// A query visits lists in the order of their centroids. It takes the next list while
//     (d / r)^8 * (d / d1)^4 * entries <= threshold
// d: distance of the list's centroid, d1: of the nearest centroid; r, the radius: distance by code
// of the k-th nearest entry found so far; entries: those that pass the query's conditions, in the
// lists before. No factor has a unit, so that thresholds are alike for all data; the build measures
// with rows of the table which one has which recall (the curve).
//
// Other queries may be unlike rows (OutsideQueries). One whose nearest list is far away has all
// distances alike, and a threshold greater in proportion. And where each row has its neighbors in
// its own list, rows say nothing of queries that have none. Two things tell such a query: a radius
// greater than that of nearly all rows, or a nearest list that is farther, in units of the radius,
// than that of nearly all rows. It has the threshold that rows need whose own list is left out.
//
// The radius is renewed in waves: after 1, 4, 16, 64, ... lists. Until the next wave the query
// decides by the radius and by the share of entries that passed as the wave before left them. So a
// device needs few steps, and every executor takes the same lists.
//
// Distances are squared here. For inner products, rows become points of a sphere by one more
// dimension, as is usual: the squared distance from the query is then, but for a factor, the
// greatest norm of a row times that of the query, less the product. So all that the rule needs is a
// number that is added to terms and radii (ListPlan::shift).
#pragma once

#include "kernels/host_device.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace pgwarp {

// Thresholds are those of one rule. An index keeps the number of the rule that it was measured
// with: raise it with every change of scores, of the radius, of waves or of the errors of codes.
inline constexpr uint8_t list_rule = 8;

// When a query is not like rows, and what it needs then. With the shift.
struct OutsideQueries {
    // Behind this distance of the nearest list, thresholds grow with it.
    float nearest = std::numeric_limits<float>::infinity();
    // A greater radius, or a nearest list at more than this share of the radius, needs at least
    // this threshold.
    float radius = std::numeric_limits<float>::infinity();
    float share_of_radius = std::numeric_limits<float>::infinity();
    float threshold = 0;
};

// What a search wants of lists.
struct ListPlan {
    float threshold = 0;  // 0: it takes all lists that it is given
    uint32_t k = 0;       // the rank that defines the radius
    float shift = 0;      // added to terms and distances by code
    OutsideQueries outside;
    // What it has seen of other parts of the table, without the shift:
    float nearest = std::numeric_limits<float>::infinity();  // term of the nearest list
    float radius = std::numeric_limits<float>::infinity();
    // Entries that pass; of a search that goes on with a later list, also those of the lists
    // before.
    float entries = 0;
};

// Terms of the list and of the nearest one, and the radius. A radius of 0 or less, which rounded
// codes may give, scores as infinity.
PGWARP_HOST_DEVICE float list_score(float distance, float nearest, float radius, float entries) {
    if (!(radius > 0)) return distance > 0 ? INFINITY : 0;
    const float ratio = distance / radius;
    // A query may be at a centroid: then the radius says more.
    const float half_radius = radius / 2;
    const float beyond = distance / (nearest > half_radius ? nearest : half_radius);
    const float squared = ratio * ratio;
    return squared * squared * beyond * beyond * entries;
}

// How much of its score counts: thresholds are for queries like rows. With the shift.
PGWARP_HOST_DEVICE float counted_share(const ListPlan& plan, float nearest, float radius) {
    const OutsideQueries& outside = plan.outside;
    float share = 1;
    const bool has_no_list = radius > outside.radius || nearest > outside.share_of_radius * radius;
    if (has_no_list && outside.threshold > plan.threshold)
        share = plan.threshold / outside.threshold;
    if (nearest > outside.nearest) share *= sqrtf(outside.nearest / nearest);
    return share;
}

// The number of lists after which a query that has taken `lists` renews its radius.
PGWARP_HOST_DEVICE uint32_t wave_end(uint32_t lists) {
    uint32_t end = 1;
    while (end <= lists) end *= 4;
    return end;
}

// What a query decides by until the next wave ends.
struct ListWave {
    float radius;
    float entries;  // in the lists before the wave, passing or not
    float passing;  // of these, and of other parts of the table
    float share;    // of entries that pass

    // `all`: entries in the lists before; `passed`: of these; `kth`: the distance of the k-th
    // nearest, or infinity.
    PGWARP_HOST_DEVICE static ListWave after(const ListPlan& plan, float all, float passed,
                                             float kth) {
        return {(kth < plan.radius ? kth : plan.radius) + plan.shift, all, plan.entries + passed,
                all > 0 ? passed / all : 1};
    }
    PGWARP_HOST_DEVICE float score(const ListPlan& plan, float term, float nearest,
                                   float before) const {
        if (radius == INFINITY) return 0;
        return counted_share(plan, nearest + plan.shift, radius) *
               list_score(term + plan.shift, nearest + plan.shift, radius,
                          passing + (before - entries) * share);
    }
    // Whether the query takes the list of this term, behind lists with this number of entries.
    PGWARP_HOST_DEVICE bool takes(const ListPlan& plan, float term, float nearest,
                                  float before) const {
        return score(plan, term, nearest, before) <= plan.threshold;
    }
};

// The lists that one query takes, one after the other, on a CPU.
class ListWalk {
  public:
    ListWalk() = default;
    explicit ListWalk(const ListPlan& plan)
        : plan_(plan), wave_(ListWave::after(plan, 0, 0, INFINITY)) {}
    // A search that goes on after `taken` lists with these entries.
    ListWalk(const ListPlan& plan, uint32_t taken, double entries, float nearest)
        : plan_(plan), nearest_(nearest), taken_(taken), renewed_at_(wave_end(taken)) {
        plan_.entries = 0;
        wave_ = ListWave::after(plan_, static_cast<float>(entries), plan.entries, INFINITY);
    }

    // Whether the query takes the list of this term, too, after those before with these entries, of
    // which `passed` pass. `selection` has their nearest: distance_of(k) is infinity where it has
    // fewer.
    template <class Selection>
    bool takes(float term, double entries, double passed, Selection& selection) {
        if (taken_ == 0) nearest_ = std::min(plan_.nearest, term);
        if (plan_.threshold > 0) {
            if (taken_ == renewed_at_) {
                if (taken_ > 0)
                    wave_ = ListWave::after(plan_, static_cast<float>(entries),
                                            static_cast<float>(passed),
                                            static_cast<float>(selection.distance_of(plan_.k)));
                renewed_at_ = wave_end(taken_);
            }
            if (!wave_.takes(plan_, term, nearest_, static_cast<float>(entries))) return false;
        }
        ++taken_;
        return true;
    }
    uint32_t taken() const { return taken_; }
    const ListPlan& plan() const { return plan_; }
    // The score of a list of this term, which would be the next.
    float score(float term, double entries) const {
        return wave_.score(plan_, term, nearest_, static_cast<float>(entries));
    }

  private:
    ListPlan plan_;
    ListWave wave_{};
    float nearest_ = 0;
    uint32_t taken_ = 0;
    uint32_t renewed_at_ = 0;
};

}  // namespace pgwarp
