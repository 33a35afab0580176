// The trained model on its pages. Scans and single inserts read the pages in the buffer cache: all
// backends share that copy, and a backend needs no memory for a model of any size.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/distance.h"
#include "kernels/list_levels.h"
#include "kernels/list_scan.h"
#include "kernels/nibble_scan.h"
#include "kernels/product_quantizer.h"
#include "kernels/rotation.h"
#include "extension/index/column.h"
#include "extension/index/format.h"
#include "extension/index/model.h"
#include "extension/index/page.h"

namespace pgwarp {

namespace {

// The rows of one page: whole rows, or a segment of one.
template <typename Element>
struct PageRows {
    uint32 first;  // row number
    uint32 count;
    uint32 begin;         // first element of a row here
    uint32 length;        // elements of a row here
    const Element* data;  // (count)(length)
};

// Rows [begin, end) of a run of pages.
struct RowRange {
    uint32 begin;
    uint32 end;
};

// Visits the pages of a run of rows that have some of these, each under its share lock.
template <typename Element, typename Visit>
void visit_pages(Relation index, BlockNumber first, PageKind kind, uint32 rows, uint32 elements,
                 const RowRange& range, Visit visit) {
    const RowLayout layout = RowLayout::of(elements, std::is_same_v<Element, float>);
    const uint32 first_page = range.begin / layout.rows_per_page;
    BlockNumber block = first + first_page * layout.segments;
    for (uint32 row = first_page * layout.rows_per_page; row < range.end;
         row += layout.rows_per_page)
        for (uint32 segment = 0; segment < layout.segments; ++segment, ++block) {
            const Buffer buffer = read_page(index, block, kind, BUFFER_LOCK_SHARE);
            Page page = BufferGetPage(buffer);
            const uint32 here = Min(layout.rows_per_page, rows - row);
            if (page_tail(page)->count != here)
                report_damage(index, block, "it does not hold the rows it should");
            const uint32 begin = segment * layout.segment_elements;
            const uint32 length = Min(layout.segment_elements, elements - begin);
            const uint32 skipped = Max(row, range.begin) - row;
            visit(PageRows<Element>{row + skipped, Min(here, range.end - row) - skipped, begin,
                                    length, page_elements<Element>(page) + Size{skipped} * length});
            UnlockReleaseBuffer(buffer);
        }
}

// A part of the model, on its pages.
struct RowRun {
    BlockNumber first;
    PageKind kind;
    uint32 rows;
    uint32 elements;
};

// visit_pages() with the model's element type: `visit` takes PageRows of float and of bfloat16.
template <typename Visit>
void visit_rows(Relation index, const MetaPage& meta, const RowRun& run, const RowRange& range,
                Visit visit) {
    if (meta.wide)
        visit_pages<float>(index, run.first, run.kind, run.rows, run.elements, range, visit);
    else
        visit_pages<bfloat16>(index, run.first, run.kind, run.rows, run.elements, range, visit);
}

RowRun centroid_run(const MetaPage& meta) {
    return {meta.centroids, PageKind::centroids, meta.lists, meta.code_dims};
}
RowRun parent_run(const MetaPage& meta) {
    return {meta.parent_rows, PageKind::parents, meta.parents, meta.code_dims};
}

template <typename Visit>
void visit_codebook(Relation index, const MetaPage& meta, Visit visit) {
    const uint32 rows = codebook_rows(meta);
    visit_rows(index, meta, {meta.codebook, PageKind::codebook, rows, codewords_of(meta)},
               {0, rows}, visit);
}

template <typename Visit>
void visit_rotation(Relation index, const MetaPage& meta, Visit visit) {
    visit_rows(index, meta, {meta.rotation, PageKind::rotation, meta.code_dims, meta.dims},
               {0, meta.code_dims}, visit);
}

template <typename Element>
void copy_floats(const Element* from, Size count, float* to) {
    for (Size i = 0; i < count; ++i) to[i] = to_float(from[i]);
}

template <typename Element>
void read_centroid_of(Relation index, const MetaPage& meta, uint32 list, float* centroid) {
    const RowLayout layout = RowLayout::of(meta.code_dims, meta.wide);
    const BlockNumber first = meta.centroids + list / layout.rows_per_page * layout.segments;
    for (uint32 segment = 0; segment < layout.segments; ++segment) {
        const Buffer buffer =
            read_page(index, first + segment, PageKind::centroids, BUFFER_LOCK_SHARE);
        const uint32 begin = segment * layout.segment_elements;
        const uint32 length = Min(layout.segment_elements, meta.code_dims - begin);
        copy_floats(
            page_elements<Element>(BufferGetPage(buffer)) + list % layout.rows_per_page * length,
            length, centroid + begin);
        UnlockReleaseBuffer(buffer);
    }
}

// The codebook in the layout of its pages, (codebook_rows)(codewords of a sub-quantizer).
void read_codewords(Relation index, const MetaPage& meta, float* words) {
    visit_codebook(index, meta, [&]<typename Element>(const PageRows<Element>& page) {
        copy_floats(page.data, static_cast<Size>(page.count) * page.length,
                    words + static_cast<Size>(page.first) * page.length);
    });
}

void write_rows(const MetaPage& meta, BlockNumber block, PageKind kind, const float* data,
                uint32 rows, uint32 elements, PageSink sink, void* state) {
    const RowLayout layout = RowLayout::of(elements, meta.wide);
    PGAlignedBlock image;
    for (uint32 row = 0; row < rows; row += layout.rows_per_page)
        for (uint32 segment = 0; segment < layout.segments; ++segment, ++block) {
            const uint32 here = Min(layout.rows_per_page, rows - row);
            const uint32 begin = segment * layout.segment_elements;
            const uint32 length = Min(layout.segment_elements, elements - begin);
            page_init(image.data, kind, 0);
            page_tail(image.data)->count = static_cast<uint16>(here);
            // Segments exist only where a page holds one row, so rows are contiguous.
            const float* from = data + static_cast<Size>(row) * elements + begin;
            const Size count = static_cast<Size>(here) * length;
            if (meta.wide)
                memcpy(page_elements<float>(image.data), from, count * sizeof(float));
            else
                std::transform(from, from + count, page_elements<bfloat16>(image.data),
                               to_bfloat16);
            sink(state, block, image.data);
        }
}

}  // namespace

float model_form(Relation index, const MetaPage& meta, const float* vector, float* form) {
    if (!has_rotation(meta)) {
        index_form(meta.metric, vector, meta.dims, form);
        return 0;
    }
    float* whole = static_cast<float*>(palloc(meta.dims * sizeof(float)));
    index_form(meta.metric, vector, meta.dims, whole);
    visit_rotation(index, meta, [&]<typename Element>(const PageRows<Element>& page) {
        const RowsOf<Element> rows{page.data, page.length, page.count};
        float partial[page_room / sizeof(bfloat16)];
        dot_products(whole + page.begin, rows, page.length, partial);
        for (uint32 i = 0; i < page.count; ++i) {
            float* sum = &form[page.first + i];
            *sum = page.begin == 0 ? partial[i] : *sum + partial[i];
        }
    });
    const float dropped = dropped_norm(whole, meta.dims, form, meta.code_dims);
    pfree(whole);
    return dropped;
}

namespace {

void read_terms(Relation index, const MetaPage& meta, const RowRun& run, const RowRange& range,
                const float* query, float* terms) {
    const bool l2 = has_norms(meta.metric);
    visit_rows(index, meta, run, range, [&]<typename Element>(const PageRows<Element>& page) {
        const RowsOf<Element> centroids{page.data, page.length, page.count};
        float partial[page_room / sizeof(bfloat16)];
        if (l2)
            squared_l2_distances(query + page.begin, centroids, page.length, partial);
        else
            dot_products(query + page.begin, centroids, page.length, partial);
        for (uint32 i = 0; i < page.count; ++i) {
            const float term = l2 ? partial[i] : -partial[i];
            float* total = &terms[page.first + i];
            *total = page.begin == 0 ? term : *total + term;
        }
    });
    // NaN comes from sums that overflowed: such lists are far away. Lists are sorted by their
    // terms, and NaN would break the order.
    for (uint32 i = range.begin; i < range.end; ++i)
        if (std::isnan(terms[i])) terms[i] = std::numeric_limits<float>::infinity();
}

}  // namespace

void read_list_terms(Relation index, const MetaPage& meta, const float* query, float* terms) {
    read_terms(index, meta, centroid_run(meta), {0, meta.lists}, query, terms);
}

void read_list_terms(Relation index, const MetaPage& meta, const float* query, uint32 begin,
                     uint32 end, float* terms) {
    read_terms(index, meta, centroid_run(meta), {begin, end}, query, terms);
}

void read_parent_terms(Relation index, const MetaPage& meta, const float* query, float* terms) {
    read_terms(index, meta, parent_run(meta), {0, meta.parents}, query, terms);
}

void read_parent_places(Relation index, const MetaPage& meta, ParentPlace* places) {
    for (uint32 parent = 0; parent < meta.parents; parent += parents_per_page) {
        const BlockNumber block = meta.parent_places + parent / parents_per_page;
        const uint32 here = Min(parents_per_page, meta.parents - parent);
        const Buffer buffer = read_page(index, block, PageKind::parent_places, BUFFER_LOCK_SHARE);
        memcpy(places + parent, page_parents(BufferGetPage(buffer)), here * sizeof(ParentPlace));
        UnlockReleaseBuffer(buffer);
    }
    places[meta.parents] = {meta.lists, 0};
    if (!parents_are_sound(meta, places))
        report_damage(index, meta.parent_places, "the lists of a parent cannot be");
}

bool parents_are_sound(const MetaPage& meta, const ParentPlace* places) {
    if (meta.parents > 0 && places[0].first != 0) return false;
    for (uint32 i = 0; i < meta.parents; ++i)
        if (places[i].first >= places[i + 1].first || places[i + 1].first > meta.lists ||
            !(places[i].radius >= 0))
            return false;
    return true;
}

void read_table(Relation index, const MetaPage& meta, const float* query, float* table) {
    const QuantizerShape shape = shape_of(meta);
    const float factor = product_factor(meta.metric);
    memset(table, 0, table_floats(meta) * sizeof(float));
    uint32 part = 0;
    visit_codebook(index, meta, [&]<typename Element>(const PageRows<Element>& page) {
        float factors[page_room / sizeof(bfloat16) / nibble_words];
        for (uint32 i = 0; i < page.count; ++i)
            factors[i] = factor * query[shape.dim_of_row(page.first + i)];
        for (uint32 i = 0; i < page.count;) {
            while (page.first + i >= shape.part_begin(part + 1)) ++part;
            const uint32 end = Min(page.count, shape.part_begin(part + 1) - page.first);
            const Element* rows = page.data + Size{i} * page.length;
            float* sums = table + Size{part} * page.length;
            if (page.length == codewords)
                add_codebook_rows(factors + i, rows, end - i, sums);
            else
                add_nibble_rows(factors + i, rows, end - i, sums);
            i = end;
        }
    });
}

void read_centroid(Relation index, const MetaPage& meta, uint32 list, float* centroid) {
    if (meta.wide)
        read_centroid_of<float>(index, meta, list, centroid);
    else
        read_centroid_of<bfloat16>(index, meta, list, centroid);
}

uint32 nearest_list(Relation index, const MetaPage& meta, const float* form, float* centroid) {
    // Training assigns vectors to lists by L2 for every metric.
    MetaPage by_l2 = meta;
    by_l2.metric = Metric::l2;
    float* terms = static_cast<float*>(palloc(meta.lists * sizeof(float)));
    uint32 list = 0;
    const auto look = [&](uint32 begin, uint32 end) {
        read_list_terms(index, by_l2, form, begin, end, terms);
        for (uint32 i = begin; i < end; ++i)
            if (terms[i] < terms[list]) list = i;
    };
    if (meta.parents == 0) {
        look(0, meta.lists);
    } else {
        auto* places =
            static_cast<ParentPlace*>(palloc((Size{meta.parents} + 1) * sizeof(ParentPlace)));
        auto* parent_terms = static_cast<float*>(palloc(meta.parents * sizeof(float)));
        auto* order = static_cast<uint32*>(palloc(meta.parents * sizeof(uint32)));
        read_parent_places(index, meta, places);
        read_parent_terms(index, by_l2, form, parent_terms);
        for (uint32 i = 0; i < meta.parents; ++i) order[i] = i;
        const uint32 compared = Min(meta.parents, assigned_parents);
        std::partial_sort(order, order + compared, order + meta.parents,
                          [parent_terms](uint32 a, uint32 b) {
                              return parent_terms[a] < parent_terms[b] ||
                                     (parent_terms[a] == parent_terms[b] && a < b);
                          });
        list = places[order[0]].first;
        terms[list] = std::numeric_limits<float>::infinity();
        for (uint32 i = 0; i < compared; ++i)
            look(places[order[i]].first, places[order[i] + 1].first);
        pfree(order);
        pfree(parent_terms);
        pfree(places);
    }
    pfree(terms);
    read_centroid(index, meta, list, centroid);
    return list;
}

float encode_by_pieces(Relation index, const MetaPage& meta, const float* residual,
                       const float* centroid, uint8* code) {
    const QuantizerShape shape = shape_of(meta);
    if (meta.bits == 4) {
        float* words = static_cast<float*>(palloc(Size{shape.dims} * nibble_words * sizeof(float)));
        read_codewords(index, meta, words);
        const float offset = encode_nibbles(shape, words, residual, centroid, code);
        pfree(words);
        return offset;
    }
    PieceEncoder encoder;
    uint32 piece = 0;
    float offset = 0;
    visit_codebook(index, meta, [&]<typename Element>(const PageRows<Element>& page) {
        for (uint32 i = 0; i < page.count; ++i) {
            const uint32 dim = page.first + i;
            encoder.add(residual[dim], centroid[dim], page.data + i * codewords);
            if (dim + 1 < shape.piece_begin(piece + 1)) continue;
            const PieceEncoder::Result result = encoder.finish();
            code[piece++] = result.code;
            offset += result.offset;
        }
    });
    return offset;
}

void read_codebook(Relation index, const MetaPage& meta, float* codebook) {
    if (meta.bits != 4) {
        read_codewords(index, meta, codebook);
        return;
    }
    float* words = static_cast<float*>(
        palloc(static_cast<Size>(meta.code_dims) * nibble_words * sizeof(float)));
    read_codewords(index, meta, words);
    pair_nibble_words(shape_of(meta), words, codebook);
    pfree(words);
}

namespace {

// Rows [begin, end) of a run of the model, (end - begin)(elements).
void read_rows(Relation index, const MetaPage& meta, const RowRun& run, const RowRange& range,
               float* rows) {
    visit_rows(index, meta, run, range, [&]<typename Element>(const PageRows<Element>& page) {
        copy_floats(page.data, Size{page.count} * page.length,
                    rows + Size{page.first - range.begin} * run.elements + page.begin);
    });
}

}  // namespace

void read_centroids(Relation index, const MetaPage& meta, uint32 begin, uint32 end,
                    float* centroids) {
    read_rows(index, meta, centroid_run(meta), {begin, end}, centroids);
}

Quantizer read_model(Relation index, const MetaPage& meta) {
    const auto alloc = [](Size floats) {
        return static_cast<float*>(
            MemoryContextAllocHuge(CurrentMemoryContext, floats * sizeof(float)));
    };
    const auto read = [&](const RowRun& run) {
        float* rows = alloc(Size{run.rows} * run.elements);
        read_rows(index, meta, run, {0, run.rows}, rows);
        return rows;
    };
    const float* centroids = read(centroid_run(meta));
    float* codebook = alloc(static_cast<Size>(codebook_rows(meta)) * codewords);
    read_codebook(index, meta, codebook);
    Quantizer model{shape_of(meta), centroids, codebook};
    if (meta.parents > 0) {
        auto* places =
            static_cast<ParentPlace*>(palloc((Size{meta.parents} + 1) * sizeof(ParentPlace)));
        auto* first = static_cast<uint32*>(palloc((Size{meta.parents} + 1) * sizeof(uint32)));
        read_parent_places(index, meta, places);
        for (uint32 i = 0; i <= meta.parents; ++i) first[i] = places[i].first;
        pfree(places);
        model.parents = {meta.parents, read(parent_run(meta)), first};
    }
    if (has_rotation(meta)) {
        float* matrix = alloc(static_cast<Size>(meta.code_dims) * meta.dims);
        visit_rotation(index, meta, [&]<typename Element>(const PageRows<Element>& page) {
            copy_floats(page.data, static_cast<Size>(page.count) * page.length,
                        matrix + static_cast<Size>(page.first) * meta.dims + page.begin);
        });
        model.rotation = {meta.dims, meta.code_dims, matrix};
    }
    return model;
}

BlockNumber place_model(MetaPage* meta, BlockNumber first) {
    meta->centroids = first;
    meta->codebook = meta->centroids + centroid_pages(*meta);
    meta->rotation = meta->codebook + codebook_pages(*meta);
    meta->parent_rows = meta->rotation + rotation_pages(*meta);
    meta->parent_places = meta->parent_rows + parent_row_pages(*meta);
    meta->directory = meta->parent_places + parent_place_pages(*meta);
    meta->has_undirected_list = 1;
    return training_end(*meta) - first;
}

namespace {

void write_parents(const MetaPage& meta, const Quantizer& model, PageSink sink, void* state) {
    const Parents& parents = model.parents;
    const uint32 dims = meta.code_dims;
    write_rows(meta, meta.parent_rows, PageKind::parents, parents.centroids, parents.count, dims,
               sink, state);
    for (uint32 begin = 0; begin < parents.count; begin += parents_per_page) {
        PGAlignedBlock image;
        page_init(image.data, PageKind::parent_places, 0);
        const uint32 here = Min(parents_per_page, parents.count - begin);
        page_tail(image.data)->count = static_cast<uint16>(here);
        for (uint32 i = 0; i < here; ++i) {
            const float* centroid = parents.centroids + Size{begin + i} * dims;
            float farthest = 0;
            for (uint32 list = parents.first[begin + i]; list < parents.first[begin + i + 1];
                 ++list)
                farthest = std::max(
                    farthest,
                    squared_l2_distance(centroid, model.centroids + Size{list} * dims, dims));
            // More than sums of floats are off by.
            constexpr float slack = 1.001f;
            page_parents(image.data)[i] = {parents.first[begin + i], slack * std::sqrt(farthest)};
        }
        sink(state, meta.parent_places + begin / parents_per_page, image.data);
    }
}

}  // namespace

void write_model(const MetaPage& meta, const Quantizer& model, PageSink sink, void* state) {
    write_rows(meta, meta.centroids, PageKind::centroids, model.centroids, meta.lists,
               meta.code_dims, sink, state);
    if (meta.bits == 4) {
        float* words = static_cast<float*>(
            palloc(static_cast<Size>(meta.code_dims) * nibble_words * sizeof(float)));
        nibble_words_of(model.shape, model.codebook, words);
        write_rows(meta, meta.codebook, PageKind::codebook, words, meta.code_dims, nibble_words,
                   sink, state);
        pfree(words);
    } else {
        write_rows(meta, meta.codebook, PageKind::codebook, model.codebook, codebook_rows(meta),
                   codewords, sink, state);
    }
    if (has_rotation(meta))
        write_rows(meta, meta.rotation, PageKind::rotation, model.rotation.matrix, meta.code_dims,
                   meta.dims, sink, state);
    if (meta.parents > 0) write_parents(meta, model, sink, state);
    const uint32 lists = directory_lists(meta);
    for (uint32 first = 0; first < lists; first += places_per_page) {
        PGAlignedBlock image;
        page_init(image.data, PageKind::directory, 0);
        for (uint32 i = 0; i < Min(places_per_page, lists - first); ++i)
            page_places(image.data)[i] = {InvalidBlockNumber, InvalidBlockNumber, 0, 0};
        sink(state, meta.directory + first / places_per_page, image.data);
    }
}

}  // namespace pgwarp
