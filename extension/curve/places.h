// Where the entries of the recall curve's neighbors are: found once, by a pass over all lists,
// which several processes can divide among themselves.
#pragma once

#include "kernels/executor.h"
#include "extension/index/format.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// A hash table by TID, in memory of the caller's, which may be shared.
class NeighborPlaces {
  public:
    struct Place {
        uint64 tid;         // 0: free
        BlockNumber block;  // invalid: no list has it
        uint32 list;
        uint32 slot;  // on the page
    };

    static Size bytes(Size neighbors, uint32 lists) {
        return (Size{1} << bits_for(neighbors)) * sizeof(Place) + Size{lists} * sizeof(uint32);
    }
    // `memory` has the bytes() of at most this number of neighbors, aligned for a Place.
    NeighborPlaces(void* memory, Size neighbors, uint32 lists)
        : bits_(bits_for(neighbors)),
          places_(static_cast<Place*>(memory)),
          list_sizes_(reinterpret_cast<uint32*>(places_ + (Size{1} << bits_))),
          lists_(lists) {}

    // One process, before the pass: empties the table, and says what to look for. A neighbor with
    // the id 0 ends them early.
    void clear();
    void want(const Neighbor* neighbors, uint32 count);
    // Looks through lists [first, end); each list once.
    void look_through(Relation index, const MetaPage& meta, uint32 first, uint32 end);

    void prefetch(uint64 tid) const { __builtin_prefetch(places_ + first_slot(tid)); }
    // Null: no list has the row.
    const Place* find(uint64 tid) const {
        const Place* place = slot_of(tid);
        return BlockNumberIsValid(place->block) ? place : nullptr;
    }
    // Entries of a list.
    uint32 list_size(uint32 list) const { return list_sizes_[list]; }

  private:
    static int bits_for(Size neighbors) {
        int bits = 4;
        while ((Size{1} << bits) < neighbors + neighbors / 2) ++bits;
        return bits;
    }
    Size first_slot(uint64 tid) const { return tid * 0x9E3779B97F4A7C15 >> (64 - bits_); }
    // Of this TID, or a free one.
    Place* slot_of(uint64 tid) const {
        Size at = first_slot(tid);
        while (places_[at].tid != tid && places_[at].tid != 0)
            at = (at + 1) & ((Size{1} << bits_) - 1);
        return places_ + at;
    }
    struct Pass;
    static void look_at_page(void* state, uint32 list, Page page, const EntryLayout& layout);

    int bits_;
    Place* places_;
    uint32* list_sizes_;
    uint32 lists_;
};

}  // namespace pgwarp
