// The nearest of a stream: candidates are offered one by one, the best `wanted` are kept.
//
// Ordered by (distance, id), which makes every selection reproducible and gives a scan that goes on
// a place to go on from: a selection can be told to skip all up to a floor.
#pragma once

#include "kernels/common.h"

#include <algorithm>
#include <limits>

namespace pgwarp {

struct Candidate {
    double distance;
    uint64_t id;

    friend bool operator<(const Candidate& a, const Candidate& b) {
        return a.distance < b.distance || (a.distance == b.distance && a.id < b.id);
    }
    friend bool operator==(const Candidate& a, const Candidate& b) {
        return a.distance == b.distance && a.id == b.id;
    }
};
static_assert(sizeof(Candidate) == 16);

// Below everything, (-infinity, 0) included: it compares with nothing.
inline constexpr Candidate no_floor{std::numeric_limits<double>::quiet_NaN(), 0};

// Works in the caller's memory: room for `room_for(wanted)` candidates. wanted > 0.
class CandidateSelection {
  public:
    static size_t room_for(size_t wanted) { return 2 * wanted; }

    CandidateSelection(Candidate* room, size_t wanted, Candidate floor)
        : items_(room), wanted_(wanted), floor_(floor) {}

    // Nothing farther than this is kept.
    double bound() const { return bound_; }

    void offer(double distance, uint64_t id) {
        if (distance > bound_) return;
        // Sums that overflowed are far away; they are not lost.
        if (distance != distance) distance = std::numeric_limits<double>::infinity();
        const Candidate candidate{distance, id};
        if (candidate < floor_ || candidate == floor_) return;
        items_[count_++] = candidate;
        if (count_ == room_for(wanted_)) shrink();
    }

    // Forgets what was offered.
    void start_over() {
        count_ = 0;
        shrunk_ = false;
        bound_ = std::numeric_limits<double>::infinity();
    }

    struct Result {
        size_t count;
        Candidate floor;  // where to go on
        bool complete;    // nothing was left out: there is nothing to go on to
    };

    // Sorts what was kept. A candidate that was offered twice is there once; one id at two
    // distances is two candidates.
    Result finish() {
        if (count_ > wanted_) shrink();
        const bool complete = !shrunk_;
        std::sort(items_, items_ + count_);
        const Candidate last = count_ ? items_[count_ - 1] : floor_;
        count_ = static_cast<size_t>(std::unique(items_, items_ + count_) - items_);
        return {count_, last, complete};
    }

  private:
    void shrink() {
        std::nth_element(items_, items_ + wanted_ - 1, items_ + count_);
        count_ = wanted_;
        bound_ = items_[wanted_ - 1].distance;
        shrunk_ = true;
    }

    Candidate* items_;
    size_t wanted_;
    size_t count_ = 0;
    Candidate floor_;
    bool shrunk_ = false;
    double bound_ = std::numeric_limits<double>::infinity();
};

}  // namespace pgwarp
