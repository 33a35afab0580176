#include <algorithm>

#include "extension/curve/places.h"
#include "extension/index/lists.h"
#include "extension/index/tid.h"

namespace pgwarp {

void NeighborPlaces::clear() {
    std::fill_n(places_, Size{1} << bits_, Place{0, InvalidBlockNumber, 0, 0});
    std::fill_n(list_sizes_, lists_, 0);
}

void NeighborPlaces::want(const Neighbor* neighbors, uint32 count) {
    for (uint32 i = 0; i < count && neighbors[i].id != 0; ++i)
        slot_of(neighbors[i].id)->tid = neighbors[i].id;
}

struct NeighborPlaces::Pass {
    const NeighborPlaces* places;
    BlockNumber block;
};

void NeighborPlaces::look_at_page(void* state, uint32 list, Page page, const EntryLayout& layout) {
    const Pass& pass = *static_cast<const Pass*>(state);
    const uint32 count = page_tail(page)->count;
    const ItemPointerData* tids = page_tids(page, layout);
    pass.places->list_sizes_[list] += count;
    for (uint32 slot = 0; slot < count; ++slot) {
        const uint64 tid = tid_number(tids[slot]);
        Place* place = pass.places->slot_of(tid);
        if (place->tid == tid) *place = {tid, pass.block, list, slot};
    }
}

void NeighborPlaces::look_through(Relation index, const MetaPage& meta, uint32 first, uint32 end) {
    Pass pass = {this, InvalidBlockNumber};
    ListVisitor visitor = {look_at_page, &pass};
    visitor.block = &pass.block;
    for (uint32 list = first; list < end; ++list) walk_lists(index, meta, &list, 1, visitor);
}

}  // namespace pgwarp
