// The whole on-disk format of an ivfpq index.
//
//   block 0                metapage
//   blocks 1 ..            centroids, codebook, rotation, parents, list directory   (a trained
//                          index; contiguous runs)
//   the rest               list pages, refinement pages, free pages
//
// Every page ends in a PageTail that identifies it, so that a reader detects a page that was
// recycled or damaged. See extension/README.md for locks and versions.
#pragma once

#include <cmath>

#include "kernels/bfloat16.h"
#include "kernels/common.h"
#include "kernels/conditions.h"
#include "kernels/quantizer.h"
#include "kernels/refinement.h"
#include "extension/compat.h"
#include "extension/limits.h"
#include "extension/types/attribute.h"

extern "C" {
#include "storage/block.h"
#include "storage/bufpage.h"
#include "storage/itemptr.h"
}

namespace pgwarp {

inline constexpr uint32 format_magic = 0x57504749;
// 2: rotations, codes of four bits. 3: additive codes. 4: attributes. 5: recall curves for more k,
// and effort by query. 6: refinement codes. 7: parents of lists. 8: a list of rows without a
// direction. Older versions, which have none of these, are readable: fields that they lack are zero
// on their pages.
inline constexpr uint32 format_version = 8;
inline constexpr uint32 oldest_format_version = 1;
inline constexpr BlockNumber meta_block = 0;

inline constexpr int default_bits = 8;

enum class PageKind : uint16 {
    meta = 1,
    centroids = 2,
    codebook = 3,
    directory = 4,
    list = 5,
    free = 6,
    rotation = 7,
    refinement = 8,
    parents = 9,         // their centroids
    parent_places = 10,  // and their lists
};

// How vectors are encoded. Stored on disk: never renumber.
enum class QuantizerKind : uint8 {
    pq = 0,   // product quantizer
    opq = 1,  // product quantizer of vectors rotated by a matrix
    lsq = 2,  // additive: sums of codewords of full length, see kernels/lsq.h
};
// The products of all pairs of codewords take m^2 times 128 kB, and the time to search for a code
// grows likewise: codes are meant to be short.
inline constexpr int max_lsq_m = 16;
inline constexpr int default_search_rounds = 16;
inline constexpr int max_search_rounds = 1024;
// The decomposition of a matrix with this many rows takes seconds and cannot be interrupted.
inline constexpr int max_rotated_dims = 2000;

// The second, finer code of an entry, by which scans order candidates. Stored on disk: never
// renumber.
enum class RefinementKind : uint8 {
    none = 0,
    int8 = 1,  // eight bits for each dimension of the residual, see kernels/refinement.h
};

// The list number of the pending list: the entries of an index that is not trained yet.
inline constexpr uint32 pending_list = 0xffffffff;

// The special space of every page. Written under the page's exclusive lock.
struct PageTail {
    uint32 list;       // list and refinement pages: their list; others: 0
    BlockNumber next;  // list pages: towards the tail; free pages: the next free one
    BlockNumber prev;  // list pages: towards the head; refinement pages: the page of the entries
    uint16 count;      // list pages: entries; pages of the model: rows
    PageKind kind;
};
static_assert(sizeof(PageTail) == 16);

inline constexpr Size page_begin = MAXALIGN(SizeOfPageHeaderData);
inline constexpr Size page_room = BLCKSZ - page_begin - MAXALIGN(sizeof(PageTail));

// One list's place. A list's version is (generation, tail, entries on the tail): an append changes
// the last two, and a change that removes or moves an entry raises the generation in the same WAL
// record. Written under the exclusive lock of the directory page (for the pending list, of the
// metapage), which is taken before that of any page of the list.
struct ListPlace {
    BlockNumber head;  // InvalidBlockNumber: an empty list
    BlockNumber tail;
    uint32 generation;
    uint32 pages;
};
static_assert(sizeof(ListPlace) == 16);

inline constexpr uint32 places_per_page = page_room / sizeof(ListPlace);

// The lists of a parent (kernels/quantizer.h): from `first` to the first of the next parent, or to
// the last list. Never changes.
struct ParentPlace {
    uint32 first;
    float radius;  // no centroid of these lists is farther from the parent's
};
static_assert(sizeof(ParentPlace) == 8);
inline constexpr uint32 parents_per_page = page_room / sizeof(ParentPlace);

// The recall curve of versions before 5. For each k, the share of the k nearest neighbors that a
// scan finds, by its number of probes and of candidates per wanted row.
struct FirstCurve {
    static constexpr int ks = 2;
    uint32 queries;
    uint32 probe_steps;
    uint32 probes[20];
    float scanned[20];
    uint16 recall[ks][20][14];  // for k = 10 and 100, in 1/65535
};
static_assert(sizeof(FirstCurve) == 8 + 8 * 20 + 2 * 2 * 20 * 14);

// What recall was measured with.
enum class CurveSource : uint8 {
    rows = 0,     // of the table
    queries = 1,  // given to ivfpq_learn()
};

// Recall, measured at the end of the build or by ivfpq_learn(): for each k, the share of the k
// nearest neighbors that a scan finds, by its effort for lists and by its candidates per wanted
// row; the last of these stands for any number of candidates. There are two kinds of effort for
// lists: a number of them for all queries, and a threshold by which each query decides
// (kernels/list_plan.h). See curve/curve.
struct RecallCurve {
    static constexpr int ks = 4;
    static constexpr int max_steps = 20;
    static constexpr int factors = 14;
    static constexpr uint32 k_values[ks] = {1, 10, 100, 1000};
    // Candidates per wanted row, of which there are at least `least_wanted`.
    static constexpr uint32 least_wanted = 10;
    static constexpr float factor_values[factors] = {1, 1.25f, 1.5f, 2,  3,  4,  6,
                                                     8, 12,    16,   24, 32, 48, 64};
    static uint32 wanted(uint32 k) { return k < least_wanted ? least_wanted : k; }

    uint32
        queries[ks];  // that measured this k; 0: none, because there are too few rows or neighbors
    static constexpr float unknown_error = 0.75f;  // where no recall was between 0.8 and 0.995
    // Standard error of a recall p: this times sqrt(p (1 - p) / queries). It would be 1 if the
    // neighbors of a query were always found or missed together.
    float error[ks];
    uint32 steps;           // used elements of the arrays below
    uint32 by_query_steps;  // of those by query; 0: there are none
    uint32 probes[max_steps];
    float scanned[max_steps];  // mean number of entries scanned
    float threshold[ks][max_steps];
    float query_probes[ks][max_steps];  // mean number of lists by query, with that threshold
    float query_scanned[ks][max_steps];
    uint16 recall[ks][max_steps][factors];  // in 1/65535
    uint16 query_recall[ks][max_steps][factors];
};
static_assert(sizeof(RecallCurve) == 40 + 8 * 20 + 3 * 4 * 4 * 20 + 2 * 2 * 4 * 20 * 14);

// By how much codes place neighbors too far away: (C - x) / sqrt(C), where x is the squared
// distance of a neighbor, and C that by its code. beyond[o] is of neighbors that are about
// `farthest` / 2^o away; few are farther away than `farthest`. Measured with the curve, by
// list_rule 8 and later.
struct CodeErrors {
    static constexpr int octaves = 8;
    static constexpr int shares = 14;
    float farthest;
    float beyond[octaves][shares];

    // The share of neighbors whose error is greater than the i-th, and the place of such a share.
    static constexpr double share(int i) { return 1.0 / (2 << i); }
    static double place_of(double share) { return -std::log2(share) - 1; }
};
static_assert(sizeof(CodeErrors) == 4 + 4 * 8 * 14);

// What list_rules 4 to 7 measured beside.
using UnusedErrors = float[2][4][CodeErrors::shares];

// What rows of the table are like as queries: measured with the curve, by list_rule 3 and later.
// Squared distances; for inner products, as shares of the shift (kernels/list_plan.h).
struct UsualQueries {
    float nearest;                  // of the nearest list: the median
    float radius[RecallCurve::ks];  // by code: 95% have no greater one
    // The threshold, times the share of rows that is missed with it, of rows that do not see their
    // own list: the greatest of those for 1, 10 and 100 rows. 0: unknown.
    float outside;
};
static_assert(sizeof(UsualQueries) == 24);

// The distance of the nearest list, over the radius: 95% of the rows have no greater share.
// Measured with UsualQueries, by list_rule 5 and later.
struct UsualShares {
    float of_radius[RecallCurve::ks];
};
static_assert(sizeof(UsualShares) == 16);

// What live searches taught, those with conditions and those without apart: see audit/.
struct LearnedEffort {
    // Added to the logit of the target, by the measured k that is nearest to the search's: searches
    // had found less than was asked for. 0 or more.
    float correction[RecallCurve::ks];
    float recall;    // of the audited searches
    uint32 audited;  // searches
    int64 at;        // TimestampTz; 0: nothing was learned
};
static_assert(sizeof(LearnedEffort) == 32);

// Why the last VACUUM left entries pending: an expression of the index failed.
struct PendingReason {
    static constexpr int room = 200;
    int64 since;         // TimestampTz of the first VACUUM that failed so
    char message[room];  // the error's, cut where it is too long; zeros after it; empty: none
};
static_assert(sizeof(PendingReason) == 208);

// Lists beside the current ones: VACUUM is making them, or newer ones have replaced them. Nobody
// appends to these but that VACUUM, and only scans that began before they were replaced read them.
struct OtherLists {
    uint64 replaced_at;     // FullTransactionId: the next one then; 0: they were never current
    BlockNumber centroids;  // their model begins here
    BlockNumber directory;
    uint32 lists;  // 0: there are none
    uint32 m;
};
static_assert(sizeof(OtherLists) == 24);

// Block 0. The build writes it, or the VACUUM that trains an untrained index or replaces its lists;
// if the one that trains did not get to the curve, a later one writes the curve. After that only
// `pending`, `free_*` and `refinement_pages` change, and the curve with its rows, what was learned
// and the pending reason, under the metapage's exclusive lock.
struct MetaPage {
    uint32 magic;
    uint32 version;
    uint64 build_id;  // random, unique to a build: the mirror tells builds apart by it
    uint32 dims;
    uint32 lists;  // 0: untrained
    uint32 m;      // bytes of a code
    uint8 bits;
    Metric metric;
    QuantizerKind quantizer;
    uint8 wide;  // the model's elements are float, not bfloat16

    BlockNumber centroids;
    BlockNumber codebook;
    BlockNumber directory;

    uint32 asked_lists;  // as given in WITH, for a later training; 0: training chooses
    uint32 asked_m;
    uint32 training_rows;      // rows that the model was trained on
    float quantization_error;  // mean squared error of a code, as a share of the mean |x - mean|^2
    int64 seed;                // of training; 0, but earlier versions had a setting
    uint64 rows_at_build;

    ListPlace pending;
    BlockNumber free_head;
    uint32 free_pages;

    union {
        FirstCurve first_curve;  // before version 5
        struct {                 // from then on; zero if nothing was measured
            uint8 unused[sizeof(FirstCurve) - sizeof(CodeErrors) - sizeof(UsualShares) -
                         sizeof(UnusedErrors)];
            CodeErrors errors;
            UsualShares usual_shares;
            UnusedErrors unused_errors;
        };
    };

    // From version 2 on:
    uint32 code_dims;  // dimensions of centroids, and of the vectors that are encoded
    BlockNumber rotation;
    // From version 3 on:
    uint32 search_rounds;  // for additive codes; others: 0
    // From version 4 on:
    AttributeLayout attributes;
    AttributeKind attribute_kinds[max_attributes];
    uint32 unused_figures[9];  // earlier versions measured more
    // From version 5 on:
    RecallCurve curve;
    CurveSource curve_source;
    // Bytes of an element of the column's type. Not read from the page: read_meta() sets it.
    uint8 element_bytes;
    // The rule that the curve's thresholds are for (list_rule of kernels/list_plan.h). Those of
    // other rules are not used.
    uint8 list_rule;
    int64 curve_at;  // TimestampTz; 0: unknown
    LearnedEffort learned_plain;
    // From version 6 on:
    RefinementKind refinement;
    uint32 refinement_pages;
    // In any version: pages of older ones have zeros here.
    PendingReason pending_reason;
    // From version 7 on:
    uint32 parents;  // of lists; 0: they have none
    uint32 asked_parents;
    BlockNumber parent_rows;
    BlockNumber parent_places;
    // From version 8 on:
    uint8 has_undirected_list;  // 1: the directory has its place, behind those of the lists
    // Measured with the curve, for inner products: about the largest norm of a row.
    float largest_norm;
    UsualQueries usual;
    LearnedEffort learned_with_conditions;
    // In any version, as above:
    uint64 curve_rows;    // entries of the lists when the curve was measured; 0: rows_at_build
    uint64 removed_rows;  // entries that VACUUM has removed since then
    OtherLists other;
    float trained_nearest;  // usual.nearest of the first curve of these lists; 0: unknown

    const LearnedEffort& learned(bool with_conditions) const {
        return with_conditions ? learned_with_conditions : learned_plain;
    }
    LearnedEffort& learned(bool with_conditions) {
        return with_conditions ? learned_with_conditions : learned_plain;
    }
    void forget_learned() { learned_plain = learned_with_conditions = {}; }
};
static_assert(sizeof(MetaPage) <= page_room);

// Centroids: rows of `code_dims` elements, whole rows on a page; a row longer than a page is cut
// into segments, one per page. The codebook: rows of as many elements as a sub-quantizer has
// codewords, one row per dimension; for additive codes, one per dimension and byte. The rotation,
// if any: `code_dims` rows of `dims` elements. Parents: rows as centroids have. Elements are
// bfloat16, or float where sixteen bits do not suffice (MetaPage::wide).
struct RowLayout {
    uint32 segments;          // pages per row; 1 unless a row is longer than a page
    uint32 segment_elements;  // elements of a row on one page (the last segment may have fewer)
    uint32 rows_per_page;

    static RowLayout of(uint32 elements, bool wide) {
        const uint32 per_page = page_room / (wide ? sizeof(float) : sizeof(bfloat16));
        if (elements <= per_page) return {1, elements, per_page / elements};
        const uint32 segments = (elements + per_page - 1) / per_page;
        return {segments, (elements + segments - 1) / segments, 1};
    }
    BlockNumber pages(uint32 rows) const {
        return segments > 1 ? rows * segments : (rows + rows_per_page - 1) / rows_per_page;
    }
};
inline BlockNumber centroid_pages(const MetaPage& meta) {
    return RowLayout::of(meta.code_dims, meta.wide).pages(meta.lists);
}
inline uint32 codewords_of(const MetaPage& meta) {
    return 1u << meta.bits;
}
inline uint32 codebook_rows(const MetaPage& meta) {
    return meta.quantizer == QuantizerKind::lsq ? meta.m * meta.code_dims : meta.code_dims;
}
inline BlockNumber codebook_pages(const MetaPage& meta) {
    return RowLayout::of(codewords_of(meta), meta.wide).pages(codebook_rows(meta));
}
// Whether vectors are so long that PostgreSQL moves them out of their rows, unless the table says
// otherwise.
inline bool lies_in_toast(const MetaPage& meta) {
    return meta.dims * meta.element_bytes > 2000;
}
inline bool has_rotation(const MetaPage& meta) {
    return meta.quantizer == QuantizerKind::opq;
}
// For training only: scans and inserts do without LAPACK.
inline bool needs_lapack(const MetaPage& meta) {
    return meta.quantizer != QuantizerKind::pq;
}
inline BlockNumber rotation_pages(const MetaPage& meta) {
    return has_rotation(meta) ? RowLayout::of(meta.dims, meta.wide).pages(meta.code_dims) : 0;
}

inline BlockNumber parent_row_pages(const MetaPage& meta) {
    return meta.parents > 0 ? RowLayout::of(meta.code_dims, meta.wide).pages(meta.parents) : 0;
}
inline BlockNumber parent_place_pages(const MetaPage& meta) {
    return (meta.parents + parents_per_page - 1) / parents_per_page;
}

// The metapage as code that walks lists, or looks for pages of a model, has to see it for the other
// lists. It has neither their centroids nor their codebook.
inline MetaPage meta_of_other(const MetaPage& meta) {
    MetaPage other = meta;
    other.lists = meta.other.lists;
    other.m = meta.other.m;
    other.centroids = meta.other.centroids;
    other.directory = meta.other.directory;
    return other;
}

// The entries that the curve was measured with.
inline uint64 measured_rows(const MetaPage& meta) {
    return meta.curve_rows > 0 ? meta.curve_rows : meta.rows_at_build;
}

// The list of rows whose distance from every query is NaN: zero vectors under cosine. No scan reads
// it before it has returned all other rows. It has no centroid, and its entries have no codes.
inline uint32 undirected_list(const MetaPage& meta) {
    return meta.lists;
}
// Lists that have their places in the directory.
inline uint32 directory_lists(const MetaPage& meta) {
    return meta.lists + meta.has_undirected_list;
}

// A training writes one run of pages: centroids, codebook, rotation, parents, directory.
inline BlockNumber directory_pages(const MetaPage& meta) {
    return (directory_lists(meta) + places_per_page - 1) / places_per_page;
}
inline BlockNumber training_end(const MetaPage& meta) {
    return meta.directory + directory_pages(meta);
}

// Where refinement codes lie: on pages of their own, because a scan reads those of candidates only.
// A list page names its refinement pages: the code of slot i is on page i / per_page, at slot
// i % per_page. A list page has as many of them as its entries need, or more, if it had more
// entries before. A record names its row: a scan that has left the list page recognises a slot that
// has another entry by now.
struct RefinementRecord {
    RefinementHead head;
    ItemPointerData tid;
    uint16 unused;
    // dims codes of one byte follow
};
static_assert(sizeof(RefinementRecord) == 24);

struct RefinementLayout {
    uint32 dims;      // bytes of a code; 0: entries have none
    uint32 stride;    // bytes from one record to the next
    uint32 per_page;  // records

    static RefinementLayout of(RefinementKind kind, uint32 dims) {
        if (kind == RefinementKind::none) return {};
        const auto stride =
            static_cast<uint32>(TYPEALIGN(alignof(float), sizeof(RefinementRecord) + dims));
        return {dims, stride, static_cast<uint32>(page_room / stride)};
    }
    uint32 pages(uint32 entries) const {
        return dims > 0 ? (entries + per_page - 1) / per_page : 0;
    }
    // Of a code with its head, as it is made.
    Size bytes() const { return dims > 0 ? sizeof(RefinementHead) + dims : 0; }
};
static_assert(sizeof(RefinementRecord) + max_refined_dims <= page_room);

// Where the entries of a list page lie. An entry is a code of m bytes (with four bits per
// sub-quantizer, each byte has two, the first in its lower half), attributes, a float and a TID; a
// page holds `capacity` of them in columns, so that a scan reads the codes of adjacent entries
// contiguously:
//     codes (m)(capacity) | attributes | offsets (capacity) float | tids (capacity) 6 bytes
//         | refinement pages, a block number each; 0: there is none yet
// The attributes are as in AttributeColumns, with room for `capacity` entries. In pages of the
// pending list and of the list of rows without a direction m is 0, and there are neither attributes
// nor offsets nor refinements. Pages of a list are full, except the last.
struct EntryLayout {
    uint32 m;
    uint32 capacity;
    uint32 attributes_at;  // bytes from page_begin
    uint32 offsets_at;
    uint32 tids_at;
    AttributeLayout attributes;
    RefinementLayout refinement;

    // Columns for this many entries, without their refinement.
    static EntryLayout with(uint32 m, const AttributeLayout& attributes, uint32 capacity) {
        const uint32 bytes = m + attributes.entry_bytes();
        const auto offsets_at = static_cast<uint32>(TYPEALIGN(sizeof(float), bytes * capacity));
        return {m,
                capacity,
                m * capacity,
                offsets_at,
                static_cast<uint32>(offsets_at + capacity * sizeof(float)),
                attributes,
                {}};
    }
    static EntryLayout without_codes() {
        return {0, static_cast<uint32>(page_room / sizeof(ItemPointerData)), 0, 0, 0, {}, {}};
    }
    static EntryLayout of(uint32 m, const AttributeLayout& attributes,
                          const RefinementLayout& refinement) {
        uint32 capacity =
            page_room / (m + attributes.entry_bytes() + sizeof(float) + sizeof(ItemPointerData));
        // The scan works on groups of eight entries. A page with room for fewer holds as many as
        // fit, one less where padding for the offsets takes its room.
        if (capacity >= 8) capacity -= capacity % 8;
        EntryLayout layout = with(m, attributes, capacity);
        layout.refinement = refinement;
        while (layout.end() > page_room) {
            capacity -= refinement.dims > 0 && capacity > 8 ? 8 : 1;
            layout = with(m, attributes, capacity);
            layout.refinement = refinement;
        }
        return layout;
    }
    uint32 refinements_at() const {
        return static_cast<uint32>(
            TYPEALIGN(alignof(BlockNumber), tids_at + capacity * sizeof(ItemPointerData)));
    }
    Size end() const {
        if (refinement.dims == 0) return tids_at + capacity * sizeof(ItemPointerData);
        return refinements_at() + refinement.pages(capacity) * sizeof(BlockNumber);
    }
};
inline constexpr uint32 max_page_entries = page_room / sizeof(ItemPointerData);
// An entry has to fit a page; 3 bytes are padding in front of its offset. One with a refinement
// needs a block number more, and 2 bytes of padding.
inline constexpr int max_entry_bytes = page_room - sizeof(float) - sizeof(ItemPointerData) - 3;
inline constexpr int refined_entry_bytes = sizeof(BlockNumber) + 2;
// The longest code, of an index without attributes.
inline constexpr int max_m = max_entry_bytes;

inline PageTail* page_tail(Page page) {
    return reinterpret_cast<PageTail*>(PageGetSpecialPointer(page));
}
inline char* page_data(Page page) {
    return static_cast<char*>(page) + page_begin;
}
inline MetaPage* page_meta(Page page) {
    return reinterpret_cast<MetaPage*>(page_data(page));
}
inline ListPlace* page_places(Page page) {
    return reinterpret_cast<ListPlace*>(page_data(page));
}
inline ParentPlace* page_parents(Page page) {
    return reinterpret_cast<ParentPlace*>(page_data(page));
}
template <typename Element>
Element* page_elements(Page page) {
    return reinterpret_cast<Element*>(page_data(page));
}
inline uint8* page_codes(Page page) {
    return reinterpret_cast<uint8*>(page_data(page));
}
inline uint8* page_attributes(Page page, const EntryLayout& layout) {
    return reinterpret_cast<uint8*>(page_data(page) + layout.attributes_at);
}
inline AttributeColumns attribute_columns(Page page, const EntryLayout& layout) {
    return {&layout.attributes, page_attributes(page, layout), layout.capacity,
            page_tail(page)->count};
}
inline float* page_offsets(Page page, const EntryLayout& layout) {
    return reinterpret_cast<float*>(page_data(page) + layout.offsets_at);
}
inline ItemPointerData* page_tids(Page page, const EntryLayout& layout) {
    return reinterpret_cast<ItemPointerData*>(page_data(page) + layout.tids_at);
}

// Valid on a list page.
inline BlockNumber* page_refinements(Page page, const EntryLayout& layout) {
    return reinterpret_cast<BlockNumber*>(page_data(page) + layout.refinements_at());
}
// Of a list page's slot, on the refinement page that has it.
inline RefinementRecord* page_record(Page page, const RefinementLayout& layout, uint32 slot) {
    return reinterpret_cast<RefinementRecord*>(page_data(page) +
                                               Size{slot % layout.per_page} * layout.stride);
}
inline int8* record_codes(RefinementRecord* record) {
    return reinterpret_cast<int8*>(record + 1);
}
inline const int8* record_codes(const RefinementRecord* record) {
    return reinterpret_cast<const int8*>(record + 1);
}

}  // namespace pgwarp
