#include <algorithm>
#include <cmath>

#include "kernels/distance.h"
#include "kernels/list_scan.h"
#include "extension/index/buffers.h"
#include "extension/index/model.h"
#include "extension/index/page.h"
#include "extension/index/tid.h"
#include "extension/scan/gather.h"
#include "extension/scan/passing.h"
#include "extension/scan/places.h"

namespace pgwarp {

const float* query_form(Relation index, ScanState* s) {
    if (!s->query.form_ready) model_form(index, s->meta, s->query.vector.values, s->query.form);
    s->query.form_ready = true;
    return s->query.form;
}

namespace {

// Whether the rounded tables order entries nearly as those of floats do. Look-ups are products with
// the query. Offsets have those with the centroid, and take most of them away where |q - c| is
// small beside |q|, but not their rounding: its part of what is left, about, by the levels of
// make_nibble_table(). Codes of four bits err by far more themselves.
bool rounding_is_small(const ScanState* s, const float* form) {
    constexpr double enough = 0.04;
    constexpr double levels_of_error = 1.5;  // the deviation of a row's values is 1/5 of its width
    const MetaPage& meta = s->meta;
    const double share = levels_of_error / std::min(255.0, 65535.0 / (2.0 * meta.m));
    if (!has_norms(meta.metric)) return share <= enough;
    const float nearest = *std::min_element(s->lists.terms, s->lists.terms + meta.lists);
    return share * std::sqrt(squared_norm(form, meta.code_dims)) <= enough * std::sqrt(nearest);
}

}  // namespace

void read_tables(Relation index, ScanState* s) {
    if (s->lists.table) return;
    const MetaPage& meta = s->meta;
    s->lists.terms = scratch_array<float>(s->scratch, meta.lists);
    s->lists.table = scratch_array<float>(s->scratch, table_floats(meta));
    const float* form = query_form(index, s);
    read_list_terms(index, meta, form, s->lists.terms);
    read_table(index, meta, form, s->lists.table);
    if (meta.bits != 4) return;
    s->lists.nibbles = make_nibble_table(s->lists.table, meta.m,
                                         scratch_array<uint8>(s->scratch, table_floats(meta)));
    s->lists.rounded = rounding_is_small(s, form);
}

uint32 scan_page_nibbles(const ScanState* s, const CodeColumns& columns, float list_term,
                         double bound, NibbleHit* hits) {
    const bool rounded = s->refined.used && s->lists.rounded;
    return rounded ? scan_rounded_nibbles(s->lists.nibbles, columns, list_term, bound, hits)
                   : scan_nibbles(s->lists.nibbles, columns, list_term, bound, hits);
}

namespace {

// All entries pass, but the scan aims by a filter of rows: it counts near ones by the rank of their
// list (widening.h).
void sample(const GatherState& gather, float distance, uint32 rank) {
    sample_entry(&gather.scan->widening, {distance, 1, rank});
}

// Offers entries from `first` on to the selection, for codes of four bits. `rank` is the list's.
void gather_nibbles(const GatherState& gather, const CodeColumns& columns, float list_term,
                    const ItemPointerData* tids, EntryPlaces* places, uint32 first, uint32 rank) {
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
            sample(gather, hits[i].distance, rank);
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
    const uint32 rank = s->lists.ranks ? s->lists.ranks[list] : 0;
    gather->scan->widening.entries += count;
    gather->scan->widening.passing += count;
    if (s->meta.bits == 4) {
        gather_nibbles(*gather, columns, s->lists.terms[list], tids, &places, first, rank);
        return;
    }
    if (gather->coming) prefetch_entries(gather->coming, layout);
    float distances[max_page_entries + 8];
    scan_codes(s->lists.table, layout.m, columns, s->lists.terms[list], distances);
    for (uint32 i = first; i < count; ++i) {
        if (distances[i] > gather->selection->bound()) continue;
        sample(*gather, distances[i], rank);
        gather->selection->offer(distances[i], tid_number(tids[i]), places.of(i));
    }
}

}  // namespace

void gather_from(void* state, uint32 list, Page page, const EntryLayout& layout, uint32 first) {
    const GatherState* gather = static_cast<GatherState*>(state);
    if (gather->scan->conditions.count > 0)
        gather_passing(gather->scan, gather->selection, list, page, layout, first);
    else
        gather_entries(state, list, page, layout, first);
}

}  // namespace pgwarp
