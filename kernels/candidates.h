// Selects the nearest `wanted` of a stream of candidates.
//
// Candidates are ordered by (distance, id). So every selection is reproducible, and a scan can
// continue where it stopped: a selection skips all candidates up to a floor.
#pragma once

#include "kernels/common.h"

#include <algorithm>
#include <limits>

namespace pgwarp {

struct Candidate {
    double distance;
    uint64_t id;
    // For the caller: where it finds more about the candidate. It has no part in comparisons. 0:
    // unknown.
    uint32_t place = 0;

    friend bool operator<(const Candidate& a, const Candidate& b) {
        return a.distance < b.distance || (a.distance == b.distance && a.id < b.id);
    }
    friend bool operator==(const Candidate& a, const Candidate& b) {
        return a.distance == b.distance && a.id == b.id;
    }
};
static_assert(sizeof(Candidate) == 24);

// A floor below everything, even (-infinity, 0): comparisons with NaN are false.
inline constexpr Candidate no_floor{std::numeric_limits<double>::quiet_NaN(), 0};

// Works in the caller's memory: room for `room_for(wanted)` candidates. wanted > 0.
class CandidateSelection {
  public:
    static size_t room_for(size_t wanted) { return 2 * wanted; }

    // Candidates farther than `limit` are rejected.
    CandidateSelection(Candidate* room, size_t wanted, Candidate floor,
                       double limit = std::numeric_limits<double>::infinity())
        : items_(room), wanted_(wanted), floor_(floor), limit_(limit), bound_(limit) {}

    // Nothing farther than this is kept.
    double bound() const { return bound_; }

    void offer(double distance, uint64_t id, uint32_t place = 0) {
        if (distance > bound_) return;
        // A sum that overflowed to NaN counts as infinitely far, and is not dropped.
        if (distance != distance) {
            distance = std::numeric_limits<double>::infinity();
            if (distance > bound_) return;
        }
        const Candidate candidate{distance, id, place};
        if (candidate < floor_ || candidate == floor_) return;
        items_[count_++] = candidate;
        if (count_ == room_for(wanted_)) shrink();
    }

    // The distance of the k-th nearest so far, 0 < k <= wanted; infinity: there are fewer.
    double distance_of(size_t k) {
        if (count_ < k) return std::numeric_limits<double>::infinity();
        std::nth_element(items_, items_ + k - 1, items_ + count_);
        return items_[k - 1].distance;
    }

    size_t count() const { return count_; }

    // From now on rejects candidates farther than `limit`, and drops those kept; the `least`
    // nearest stay.
    void tighten(double limit, size_t least) {
        if (count_ <= least) return;
        std::nth_element(items_, items_ + least - 1, items_ + count_);
        limit = std::max(limit, items_[least - 1].distance);
        if (!(limit < bound_)) return;
        bound_ = limit;
        shrunk_ = true;
        count_ = static_cast<size_t>(std::remove_if(items_ + least, items_ + count_,
                                                    [limit](const Candidate& candidate) {
                                                        return candidate.distance > limit;
                                                    }) -
                                     items_);
    }

    // Forgets what was offered.
    void start_over() {
        count_ = 0;
        shrunk_ = false;
        bound_ = limit_;
    }

    struct Result {
        size_t count;
        Candidate floor;    // the floor to continue from
        bool complete;      // no candidate within the limit was dropped
        double kept_until;  // nor was any nearer than this
    };

    // Returns what was kept, unsorted; a candidate that was offered twice may appear twice. For a
    // CandidateQueue.
    Result finish_unsorted() {
        if (count_ > wanted_) shrink();
        Candidate last = floor_;
        for (size_t i = 0; i < count_; ++i)
            if (i == 0 || last < items_[i]) last = items_[i];
        return {count_, last, !shrunk_, kept_until()};
    }

    // Sorts what was kept. A candidate that was offered twice appears once; one id at two distances
    // is two candidates.
    Result finish() {
        if (count_ > wanted_) shrink();
        const bool complete = !shrunk_;
        std::sort(items_, items_ + count_);
        const Candidate last = count_ ? items_[count_ - 1] : floor_;
        count_ = static_cast<size_t>(std::unique(items_, items_ + count_) - items_);
        return {count_, last, complete, kept_until()};
    }

  private:
    double kept_until() const { return shrunk_ ? bound_ : std::numeric_limits<double>::infinity(); }
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
    double limit_;
    double bound_;
};

// Hands out candidates from the caller's memory in parts, nearest first. Sorts only the parts that
// are taken.
class CandidateQueue {
  public:
    CandidateQueue() = default;
    CandidateQueue(Candidate* items, size_t count) : items_(items), count_(count) {}

    // May be false where only duplicates are left.
    bool empty() const { return next_ == count_; }

    struct Part {
        Candidate* items;  // sorted, without duplicates; the caller may change them
        size_t count;      // 0: no more
    };
    Part take(size_t most) {
        Part part{items_ + next_, 0};
        while (part.count == 0 && next_ < count_ && most > 0) {
            Candidate* begin = items_ + next_;
            const size_t taken = std::min(most, count_ - next_);
            if (next_ + taken < count_) std::nth_element(begin, begin + taken, items_ + count_);
            std::sort(begin, begin + taken);
            next_ += taken;
            const Candidate last = begin[taken - 1];
            size_t kept = static_cast<size_t>(std::unique(begin, begin + taken) - begin);
            part = {begin, kept};
            // The previous part may have ended with the same candidate.
            if (kept > 0 && begin[0] == last_) part = {begin + 1, kept - 1};
            last_ = last;
        }
        return part;
    }

  private:
    Candidate* items_ = nullptr;
    size_t count_ = 0;
    size_t next_ = 0;
    Candidate last_ = no_floor;  // last one taken
};

}  // namespace pgwarp
