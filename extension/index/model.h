// The trained model of an index: written once, read from its pages.
#pragma once

#include "kernels/quantizer.h"
#include "extension/index/format.h"

namespace pgwarp {

inline QuantizerShape shape_of(const MetaPage& meta) {
    return {meta.code_dims, meta.lists, meta.m, meta.metric, meta.bits, meta.search_rounds};
}

// Whether distances by the codes of two indexes can be compared: codes err alike, and leave nothing
// out that differs between indexes, as the dimensions that a rotation drops do.
inline bool has_like_codes(const MetaPage& a, const MetaPage& b) {
    return a.m == b.m && a.bits == b.bits && a.quantizer == b.quantizer && a.dims == b.dims &&
           a.metric == b.metric && a.code_dims == a.dims && b.code_dims == b.dims;
}

// A vector of the table in model form, (code_dims): in index form, then rotated where the index has
// a rotation. All functions below take vectors in model form. Returns the part of the squared norm
// that a rotation to fewer dimensions drops; every L2 distance includes it.
float model_form(Relation index, const MetaPage& meta, const float* vector, float* form);

// Each list's part of the distance, (lists): |q - c|^2, or -<q, c> for inner product.
void read_list_terms(Relation index, const MetaPage& meta, const float* query, float* terms);
// Those of lists [begin, end); `terms` is that of list 0.
void read_list_terms(Relation index, const MetaPage& meta, const float* query, uint32 begin,
                     uint32 end, float* terms);

// Where lists have parents: the same of these, (parents), and their lists, (parents + 1). The last
// place is behind all lists.
void read_parent_terms(Relation index, const MetaPage& meta, const float* query, float* terms);
void read_parent_places(Relation index, const MetaPage& meta, ParentPlace* places);
bool parents_are_sound(const MetaPage& meta, const ParentPlace* places);

// The query's table: (m)(256), or (2m)(16) with four bits.
inline Size table_floats(const MetaPage& meta) {
    return Size{shape_of(meta).parts()} * codewords_of(meta);
}
void read_table(Relation index, const MetaPage& meta, const float* query, float* table);

// The centroid of a list, (code_dims).
void read_centroid(Relation index, const MetaPage& meta, uint32 list, float* centroid);

// Those of lists [begin, end), (end - begin)(code_dims).
void read_centroids(Relation index, const MetaPage& meta, uint32 begin, uint32 end,
                    float* centroids);

// The list nearest to a vector, of those of the nearest parents, and its centroid (code_dims).
uint32 nearest_list(Relation index, const MetaPage& meta, const float* form, float* centroid);

// The code (m) of a residual by a product quantizer; returns the entry's offset for L2.
float encode_by_pieces(Relation index, const MetaPage& meta, const float* residual,
                       const float* centroid, uint8* code);

// The codebook in the layout of the kernels, (codebook_rows)(256).
void read_codebook(Relation index, const MetaPage& meta, float* codebook);

// The whole model, copied into the current memory context.
Quantizer read_model(Relation index, const MetaPage& meta);

// Passes the pages of a model to the sink as images, from meta.centroids on. All lists in the
// directory are empty.
using PageSink = void (*)(void* state, BlockNumber block, Page image);
void write_model(const MetaPage& meta, const Quantizer& model, PageSink sink, void* state);

// Sets the blocks of the model in `meta` for a run that starts at `first`; returns its length.
BlockNumber place_model(MetaPage* meta, BlockNumber first);

}  // namespace pgwarp
