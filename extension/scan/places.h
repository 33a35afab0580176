// Where the refinements of a walk's candidates lie. The walk of the lists reads the numbers of
// refinement pages on the list pages, where it is anyway; the refinements are read later, for the
// candidates that are left then.
#pragma once

#include "extension/scan/state.h"

namespace pgwarp {

// A candidate's place: which of the noted blocks, and which record there, plus one.
struct NotedPlace {
    static constexpr uint32 record_bits = 9;
    static constexpr Size most_blocks = (Size{1} << (32 - record_bits)) - 1;
    static_assert(page_room / sizeof(RefinementRecord) < 1 << record_bits);

    static uint32 of(Size block, uint32 record) {
        return static_cast<uint32>(block << record_bits | record) + 1;
    }
    static Size block(uint32 place) { return (place - 1) >> record_bits; }
    static uint32 record(uint32 place) { return (place - 1) & ((1u << record_bits) - 1); }
};

// Notes the refinement pages of a list page, which the caller has locked. Returns the first of
// their numbers, or NotedPlace::most_blocks: there is no room.
Size note_refinements(ScanState* s, Page page, const EntryLayout& layout);

// The places of one list page's entries. The page is noted when its first candidate is.
class EntryPlaces {
  public:
    EntryPlaces(ScanState* s, Page page, const EntryLayout& layout)
        : s_(s), page_(page), layout_(layout) {}

    uint32 of(uint32 slot) {
        if (!s_->refined.used) return 0;
        if (!noted_) first_ = note_refinements(s_, page_, layout_);
        noted_ = true;
        if (first_ == NotedPlace::most_blocks) return 0;
        const uint32 per_page = layout_.refinement.per_page;
        return NotedPlace::of(first_ + slot / per_page, slot % per_page);
    }

  private:
    ScanState* s_;
    Page page_;
    const EntryLayout& layout_;
    bool noted_ = false;
    Size first_ = 0;
};

}  // namespace pgwarp
