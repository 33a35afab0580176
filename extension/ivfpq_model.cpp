// The trained model on its pages. Scans and single inserts work on the pages where they lie: the
// buffer cache is the one copy that all backends share, and a backend needs no memory for a model
// of any size.

#include <cstring>

#include "kernels/distance.h"
#include "kernels/list_scan.h"
#include "kernels/product_quantizer.h"
#include "extension/ivfpq_model.h"
#include "extension/ivfpq_page.h"

namespace pgwarp {

namespace {

// Calls visit(row, first dimension, floats, count, floats of the row here) for each page of a run
// of rows, under the page's share lock.
template <typename Visit>
void for_each_page_of_rows(Relation index, BlockNumber first, PageKind kind, uint32 rows,
                           uint32 floats, Visit visit) {
    const RowLayout layout = RowLayout::of(floats);
    BlockNumber block = first;
    for (uint32 row = 0; row < rows; row += layout.rows_per_page)
        for (uint32 segment = 0; segment < layout.segments; ++segment, ++block) {
            const Buffer buffer = read_page(index, block, kind, BUFFER_LOCK_SHARE);
            Page page = BufferGetPage(buffer);
            const uint32 here = Min(layout.rows_per_page, rows - row);
            if (page_tail(page)->count != here)
                report_damage(index, block, "it does not hold the rows it should");
            const uint32 begin = segment * layout.segment_floats;
            visit(row, begin, page_floats(page), here, Min(layout.segment_floats, floats - begin));
            UnlockReleaseBuffer(buffer);
        }
}

// One codebook row a dimension.
template <typename Visit>
void for_each_codebook_row(Relation index, const MetaPage& meta, Visit visit) {
    for_each_page_of_rows(index, meta.codebook, PageKind::codebook, meta.dims, codewords,
                          [&](uint32 row, uint32, const float* data, uint32 rows, uint32) {
                              for (uint32 i = 0; i < rows; ++i)
                                  visit(row + i, data + i * codewords);
                          });
}

void read_centroid(Relation index, const MetaPage& meta, uint32 list, float* centroid) {
    const RowLayout layout = RowLayout::of(meta.dims);
    const BlockNumber first = meta.centroids + list / layout.rows_per_page * layout.segments;
    for (uint32 segment = 0; segment < layout.segments; ++segment) {
        const Buffer buffer =
            read_page(index, first + segment, PageKind::centroids, BUFFER_LOCK_SHARE);
        const uint32 begin = segment * layout.segment_floats;
        const uint32 length = Min(layout.segment_floats, meta.dims - begin);
        memcpy(centroid + begin,
               page_floats(BufferGetPage(buffer)) + list % layout.rows_per_page * length,
               length * sizeof(float));
        UnlockReleaseBuffer(buffer);
    }
}

void write_rows(BlockNumber block, PageKind kind, const float* data, uint32 rows, uint32 floats,
                PageSink sink, void* state) {
    const RowLayout layout = RowLayout::of(floats);
    PGAlignedBlock image;
    for (uint32 row = 0; row < rows; row += layout.rows_per_page)
        for (uint32 segment = 0; segment < layout.segments; ++segment, ++block) {
            const uint32 here = Min(layout.rows_per_page, rows - row);
            const uint32 begin = segment * layout.segment_floats;
            const uint32 length = Min(layout.segment_floats, floats - begin);
            page_init(image.data, kind, 0);
            page_tail(image.data)->count = static_cast<uint16>(here);
            // Segments exist only where a page holds one row, so rows are contiguous.
            memcpy(page_floats(image.data), data + static_cast<Size>(row) * floats + begin,
                   static_cast<Size>(here) * length * sizeof(float));
            sink(state, block, image.data);
        }
}

}  // namespace

void read_list_terms(Relation index, const MetaPage& meta, const float* query, float* terms) {
    const bool l2 = meta.metric != Metric::inner_product;
    for_each_page_of_rows(
        index, meta.centroids, PageKind::centroids, meta.lists, meta.dims,
        [&](uint32 row, uint32 begin, const float* data, uint32 rows, uint32 floats) {
            const Rows centroids{data, floats, rows};
            float partial[page_room / sizeof(float)];
            if (l2)
                squared_l2_distances(query + begin, centroids, floats, partial);
            else
                dot_products(query + begin, centroids, floats, partial);
            for (uint32 i = 0; i < rows; ++i) {
                const float term = l2 ? partial[i] : -partial[i];
                terms[row + i] = begin == 0 ? term : terms[row + i] + term;
            }
        });
}

void read_table(Relation index, const MetaPage& meta, const float* query, float* table) {
    const QuantizerShape shape = shape_of(meta);
    const float factor = table_factor(meta.metric);
    memset(table, 0, static_cast<Size>(meta.m) * codewords * sizeof(float));
    uint32 piece = 0;
    for_each_codebook_row(index, meta, [&](uint32 dim, const float* row) {
        while (dim >= shape.piece_begin(piece + 1)) ++piece;
        add_codebook_row(factor * query[dim], row, table + static_cast<Size>(piece) * codewords);
    });
}

EncodedVector encode_vector(Relation index, const MetaPage& meta, const float* vector,
                            uint8* code) {
    // The nearest centroid by L2 for every metric, as in training.
    MetaPage by_l2 = meta;
    by_l2.metric = Metric::l2;
    float* terms = static_cast<float*>(palloc(meta.lists * sizeof(float)));
    read_list_terms(index, by_l2, vector, terms);
    uint32 list = 0;
    for (uint32 i = 1; i < meta.lists; ++i)
        if (terms[i] < terms[list]) list = i;
    pfree(terms);

    float* centroid = static_cast<float*>(palloc(meta.dims * sizeof(float)));
    read_centroid(index, meta, list, centroid);
    const QuantizerShape shape = shape_of(meta);
    PieceEncoder encoder;
    uint32 piece = 0;
    float offset = 0;
    for_each_codebook_row(index, meta, [&](uint32 dim, const float* row) {
        encoder.add(vector[dim] - centroid[dim], centroid[dim], row);
        if (dim + 1 < shape.piece_begin(piece + 1)) return;
        const PieceEncoder::Result result = encoder.finish();
        code[piece++] = result.code;
        offset += result.offset;
    });
    pfree(centroid);
    return {list, meta.metric == Metric::inner_product ? 0 : offset};
}

Quantizer read_model(Relation index, const MetaPage& meta) {
    const auto alloc = [](Size floats) {
        return static_cast<float*>(
            MemoryContextAllocHuge(CurrentMemoryContext, floats * sizeof(float)));
    };
    float* centroids = alloc(static_cast<Size>(meta.lists) * meta.dims);
    float* codebook = alloc(static_cast<Size>(meta.dims) * codewords);
    for_each_page_of_rows(
        index, meta.centroids, PageKind::centroids, meta.lists, meta.dims,
        [&](uint32 row, uint32 begin, const float* data, uint32 rows, uint32 floats) {
            memcpy(centroids + static_cast<Size>(row) * meta.dims + begin, data,
                   static_cast<Size>(rows) * floats * sizeof(float));
        });
    for_each_codebook_row(index, meta, [&](uint32 dim, const float* row) {
        memcpy(codebook + static_cast<Size>(dim) * codewords, row, codewords * sizeof(float));
    });
    return {shape_of(meta), centroids, codebook};
}

BlockNumber place_model(MetaPage* meta, BlockNumber first) {
    meta->centroids = first;
    meta->codebook = meta->centroids + RowLayout::of(meta->dims).pages(meta->lists);
    meta->directory = meta->codebook + RowLayout::of(codewords).pages(meta->dims);
    return training_end(*meta) - first;
}

void write_model(const MetaPage& meta, const Quantizer& model, PageSink sink, void* state) {
    write_rows(meta.centroids, PageKind::centroids, model.centroids, meta.lists, meta.dims, sink,
               state);
    write_rows(meta.codebook, PageKind::codebook, model.codebook, meta.dims, codewords, sink,
               state);
    for (uint32 first = 0; first < meta.lists; first += places_per_page) {
        PGAlignedBlock image;
        page_init(image.data, PageKind::directory, 0);
        for (uint32 i = 0; i < Min(places_per_page, meta.lists - first); ++i)
            page_places(image.data)[i] = {InvalidBlockNumber, InvalidBlockNumber, 0, 0};
        sink(state, meta.directory + first / places_per_page, image.data);
    }
}

}  // namespace pgwarp
