// The options of an index, WITH (...).
#pragma once

#include "extension/index/format.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// As given in WITH (...); 0: the build chooses.
struct IndexOptions {
    int32 vl_len_;
    int lists;
    int m;
    int bits;
    int quantizer;  // QuantizerKind
    int dims;       // of the rotated vectors that codes are made of
    int rounds;     // of the search for additive codes
    int refine;     // RefinementKind, or refine_auto
    int placement;  // Placement, or placement_unset; not of the build: it counts as soon as it is
                    // set
    int parents;    // of lists; 1: none
};
inline constexpr int refine_auto = -1;
inline constexpr int placement_unset = -1;  // as pgwarp.placement says
void init_options();
// The access method's callback.
bytea* ivfpq_options(Datum reloptions, bool validate);
// Whether this is an ivfpq index: no other access method has that callback.
bool is_ivfpq(Relation index);
IndexOptions options_of(Relation index);
// Options in the form of pg_class.reloptions.
IndexOptions parse_options(Datum reloptions, bool is_null);
// Checks the options for an index of meta->dims dimensions, before any work, and sets the fields of
// the metapage that they decide.
void apply_options(const IndexOptions& options, MetaPage* meta);
// The quantizer's name in WITH (...).
const char* quantizer_name(QuantizerKind kind);
const char* refinement_name(RefinementKind kind);

}  // namespace pgwarp
