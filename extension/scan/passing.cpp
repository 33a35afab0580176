#include <algorithm>

#include "kernels/conditions.h"
#include "kernels/list_scan.h"
#include "extension/index/tid.h"
#include "extension/scan/passing.h"
#include "extension/scan/places.h"
#include "extension/scan/tables.h"

namespace pgwarp {

namespace {

// Offers the passing entries of a page to the selection.
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
          m_(layout.m) {
        passed_ = check_entries(attribute_columns(page, layout));
        s_->seen.entries += count_;
        s_->seen.passing += passed_;
    }

    void gather() {
        // Looking up one entry alone takes this many times as long as with its page.
        constexpr uint32 alone = 4;
        if (passed_ == 0) return;
        if (s_->meta.bits == 4)
            gather_hits();
        else if (passed_ * alone >= count_)
            gather_all();
        else
            gather_few();
    }

  private:
    // Returns how many pass.
    uint32 check_entries(const AttributeColumns& columns) {
        uint32 passed = check_conditions(columns, s_->conditions.all(), passing_);
        const RowSet* rows = s_->conditions.rows;
        if (!rows) return passed;
        passed = 0;
        for (uint32 w = 0; w < passing_words(count_); ++w) {
            uint64 maybe = 0;
            for (uint32 i = 0; i < std::min(count_ - w * 64, 64u); ++i)
                maybe |= has_page(*rows, tids_[w * 64 + i]) << i;
            uint64 kept = 0;
            for (uint64 left = passing_[w] & maybe; left != 0; left &= left - 1) {
                const auto bit = static_cast<uint32>(__builtin_ctzll(left));
                kept |= uint64{has_row(*rows, tids_[w * 64 + bit])} << bit;
            }
            passing_[w] = kept;
            passed += static_cast<uint32>(__builtin_popcountll(kept));
        }
        return passed;
    }
    bool passes(uint32 entry) const { return passing_[entry / 64] >> entry % 64 & 1; }
    bool is_near(float distance) const { return !(distance > selection_->bound()); }

    void take(uint32 entry, float distance) {
        if (entry < first_ || !is_near(distance)) return;
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
    }

    ScanState* s_;
    CandidateSelection* selection_;
    uint32 first_;
    uint32 count_;
    CodeColumns columns_;
    const ItemPointerData* tids_;
    EntryPlaces places_;
    float term_;
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
