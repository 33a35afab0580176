#include <algorithm>
#include <cmath>

#include "kernels/distance.h"
#include "kernels/list_levels.h"
#include "kernels/list_scan.h"
#include "extension/index/model.h"
#include "extension/scan/tables.h"

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
    constexpr double enough = 0.04;          // of a distance
    constexpr double levels_of_error = 1.5;  // the deviation of a row's values is 1/5 of its width
    const MetaPage& meta = s->meta;
    const double share = levels_of_error / std::min(255.0, 65535.0 / (2.0 * meta.m));
    if (!has_norms(meta.metric)) return share <= enough;
    const float nearest = nearest_compared(s->lists);
    return share * std::sqrt(squared_norm(form, meta.code_dims)) <= enough * std::sqrt(nearest);
}

}  // namespace

void read_tables(Relation index, ScanState* s) {
    if (s->lists.table) return;
    const MetaPage& meta = s->meta;
    s->lists.terms = scratch_array<float>(s->scratch, meta.lists);
    s->lists.order = scratch_array<uint32>(s->scratch, meta.lists);
    if (meta.parents > 0) {
        s->lists.parent_terms = scratch_array<float>(s->scratch, meta.parents);
        s->lists.parent_order = scratch_array<uint32>(s->scratch, meta.parents);
        s->lists.parents = scratch_array<ParentPlace>(s->scratch, Size{meta.parents} + 1);
    }
    s->lists.table = scratch_array<float>(s->scratch, table_floats(meta));
    const float* form = query_form(index, s);
    begin_list_order(index, meta, form, &s->lists);
    compare_lists(index, meta, &s->lists,
                  static_cast<uint32>(lists_to_compare(s->group.end, meta.lists)));
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

}  // namespace pgwarp
