// The options of an index, WITH (...).
#pragma once

#include "extension/index/format.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// As in WITH (...); 0 means: choose.
struct IndexOptions {
    int32 vl_len_;
    int lists;
    int m;
    int bits;
    int quantizer;  // QuantizerKind
    int dims;       // of codes
    int rounds;     // of the search for additive codes
};
void init_options();
// The access method's callback.
bytea* ivfpq_options(Datum reloptions, bool validate);
// Whether this is an index of ours: no other access method has that callback.
bool is_ivfpq(Relation index);
IndexOptions options_of(Relation index);
// Options as pg_class has them.
IndexOptions parse_options(Datum reloptions, bool is_null);
// Checks the options for an index of meta->dims dimensions, before any work, and sets the fields of
// the metapage that they decide.
void apply_options(const IndexOptions& options, MetaPage* meta);
// As in WITH.
const char* quantizer_name(QuantizerKind kind);

}  // namespace pgwarp
