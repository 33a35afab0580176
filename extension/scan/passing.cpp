#include <algorithm>

#include "kernels/conditions.h"
#include "kernels/list_scan.h"
#include "extension/index/tid.h"
#include "extension/scan/passing.h"
#include "extension/scan/places.h"
#include "extension/scan/tables.h"

namespace pgwarp {

namespace {

// Offers the passing entries of a page to the selection, and adds entries to the sample of the
// widening, passing or not.
class PassingEntries {
  public:
    PassingEntries(ScanState* s, CandidateSelection* selection, uint32 list, Page page,
                   const EntryLayout& layout, uint32 first)
        : s_(s),
          selection_(selection),
          first_(first),
          count_(page_tail(page)->count),
          columns_{page_codes(page), layout.capacity, count_, page_offsets(page, layout)},
          tids_(page_tids(page, layout)),
          places_(s, page, layout),
          term_(s_->lists.terms[list]),
          rank_(s_->lists.ranks ? s_->lists.ranks[list] : 0),
          m_(layout.m) {
        passed_ = check_conditions(attribute_columns(page, layout), s_->conditions.all(), passing_);
        s_->widening.entries += count_;
        s_->widening.passing += passed_;
    }

    void gather() {
        // Looking up one entry alone takes this many times as long as with its page.
        constexpr uint32 alone = 4;
        if (s_->meta.bits == 4)
            gather_hits();
        else if (passed_ * alone >= count_)
            gather_all();
        else
            gather_few();
    }

  private:
    bool passes(uint32 entry) const { return passing_[entry / 64] >> entry % 64 & 1; }
    bool is_near(float distance) const { return !(distance > selection_->bound()); }

    void take(uint32 entry, float distance) {
        if (entry < first_ || !is_near(distance)) return;
        sample_entry(&s_->widening, {distance, 1, rank_});
        if (passes(entry)) selection_->offer(distance, tid_number(tids_[entry]), places_.of(entry));
    }
    void gather_all() {
        float distances[max_page_entries + 8];
        scan_codes(s_->lists.table, m_, columns_, term_, distances);
        for (uint32 i = 0; i < count_; ++i) take(i, distances[i]);
    }
    void gather_hits() {
        NibbleHit hits[max_page_entries];
        const uint32 found = scan_page_nibbles(s_, columns_, term_, selection_->bound(), hits);
        for (uint32 i = 0; i < found; ++i) take(hits[i].entry, hits[i].distance);
    }
    float distance_of(uint32 entry) const {
        return code_distance(s_->lists.table, m_, columns_, term_, entry);
    }
    void gather_few() {
        for (uint32 w = 0; w < passing_words(count_); ++w)
            for (uint64 left = passing_[w]; left != 0; left &= left - 1) {
                const uint32 entry = w * 64 + static_cast<uint32>(__builtin_ctzll(left));
                if (entry < first_) continue;
                const float distance = distance_of(entry);
                if (is_near(distance))
                    selection_->offer(distance, tid_number(tids_[entry]), places_.of(entry));
            }
        sample_some();
    }
    // Some entries beside each other, because their codes share cache lines; at another place in
    // each page.
    void sample_some() {
        constexpr uint32 most = 16;
        const uint32 sampled = std::min(most, count_);
        Widening& widening = s_->widening;
        if (sampled == 0 || !widening.samples_entries) return;
        // So many near entries are enough to tell. Few that pass have a large neighborhood, of
        // which a sample of some pages has as many.
        constexpr double enough = 256;
        const double share = (widening.passing + 1) / widening.entries;
        const double near = s_->goal.limit / share * sampled / count_;
        // What a page stands for should be of lists like its own.
        constexpr uint32 most_passed_over = 8;
        if (++widening.passed_over < most_passed_over && widening.passed_over * enough < near &&
            widening.entries > 4096)
            return;
        const uint32 first = widening.places++ * 37 % (count_ - sampled + 1);
        const CodeColumns some{columns_.codes + first, columns_.stride, sampled,
                               columns_.offsets + first, nullptr};
        float distances[most + 8];
        scan_codes(s_->lists.table, m_, some, term_, distances);
        const float weight =
            static_cast<float>(count_ * widening.passed_over) / static_cast<float>(sampled);
        widening.passed_over = 0;
        for (uint32 i = 0; i < sampled; ++i)
            if (is_near(distances[i])) sample_entry(&widening, {distances[i], weight, rank_});
    }

    ScanState* s_;
    CandidateSelection* selection_;
    uint32 first_;
    uint32 count_;
    CodeColumns columns_;
    const ItemPointerData* tids_;
    EntryPlaces places_;
    float term_;
    uint32 rank_;
    uint32 m_;
    uint32 passed_;
    uint64 passing_[passing_words(max_page_entries)];
};

}  // namespace

void gather_passing(ScanState* s, CandidateSelection* selection, uint32 list, Page page,
                    const EntryLayout& layout, uint32 first) {
    PassingEntries(s, selection, list, page, layout, first).gather();
}

}  // namespace pgwarp
