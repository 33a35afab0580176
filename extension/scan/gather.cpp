#include <algorithm>
#include <cmath>

#include "kernels/list_scan.h"
#include "extension/index/buffers.h"
#include "extension/index/page.h"
#include "extension/index/tid.h"
#include "extension/scan/gather.h"
#include "extension/scan/passing.h"
#include "extension/scan/places.h"
#include "extension/scan/tables.h"

namespace pgwarp {

namespace {

// Offers entries from `first` on to the selection, for codes of four bits.
void gather_nibbles(const GatherState& gather, const CodeColumns& columns, float list_term,
                    const ItemPointerData* tids, EntryPlaces* places, uint32 first) {
    // Every entry passes an infinite bound. A few entries first make it finite.
    constexpr uint32 few = 64;
    NibbleHit hits[max_page_entries];
    for (uint32 end; first < columns.count; first = end) {
        const double bound = gather.selection->bound();
        end = std::isinf(bound) ? std::min(columns.count, first + few) : columns.count;
        const CodeColumns part{columns.codes + first, columns.stride, end - first,
                               columns.offsets + first,
                               end == columns.count ? columns.next : nullptr};
        const uint32 found = scan_page_nibbles(gather.scan, part, list_term, bound, hits);
        for (uint32 i = 0; i < found; ++i) {
            if (hits[i].distance > gather.selection->bound()) continue;
            const uint32 entry = first + hits[i].entry;
            gather.selection->offer(hits[i].distance, tid_number(tids[entry]), places->of(entry));
        }
    }
}

void gather_entries(void* state, uint32 list, Page page, const EntryLayout& layout, uint32 first) {
    const GatherState* gather = static_cast<GatherState*>(state);
    const ScanState* s = gather->scan;
    const uint32 count = page_tail(page)->count;
    const CodeColumns columns{page_codes(page), layout.capacity, count, page_offsets(page, layout),
                              gather->coming ? page_codes(gather->coming) : nullptr};
    const ItemPointerData* tids = page_tids(page, layout);
    EntryPlaces places(gather->scan, page, layout);
    gather->scan->seen.entries += count;
    gather->scan->seen.passing += count;
    if (s->meta.bits == 4) {
        gather_nibbles(*gather, columns, s->lists.terms[list], tids, &places, first);
        return;
    }
    if (gather->coming) prefetch_entries(gather->coming, layout);
    float distances[max_page_entries + 8];
    scan_codes(s->lists.table, layout.m, columns, s->lists.terms[list], distances);
    for (uint32 i = first; i < count; ++i) {
        if (distances[i] > gather->selection->bound()) continue;
        gather->selection->offer(distances[i], tid_number(tids[i]), places.of(i));
    }
}

}  // namespace

void gather_from(void* state, uint32 list, Page page, const EntryLayout& layout, uint32 first) {
    const GatherState* gather = static_cast<GatherState*>(state);
    if (checks_conditions(gather->scan))
        gather_passing(gather->scan, gather->selection, list, page, layout, first);
    else
        gather_entries(state, list, page, layout, first);
}

}  // namespace pgwarp
