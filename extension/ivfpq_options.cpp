#include <cstddef>

#include "extension/ivfpq.h"

extern "C" {
#include "access/reloptions.h"
}

namespace pgwarp {

namespace {

relopt_kind options_kind;

relopt_enum_elt_def quantizer_names[] = {
    {"pq", static_cast<int>(QuantizerKind::pq)},
    {"opq", static_cast<int>(QuantizerKind::opq)},
    {"lsq", static_cast<int>(QuantizerKind::lsq)},
    {nullptr, 0},
};

}  // namespace

void init_options() {
    options_kind = add_reloption_kind();
    add_int_reloption(options_kind, "lists", "Number of inverted lists; 0 chooses by the rows", 0,
                      0, max_lists, AccessExclusiveLock);
    add_int_reloption(options_kind, "m", "Bytes of a code; 0 chooses by the dimensions", 0, 0,
                      max_m, AccessExclusiveLock);
    add_int_reloption(options_kind, "bits", "Bits of a sub-quantizer, 4 or 8; 0 chooses", 0, 0, 8,
                      AccessExclusiveLock);
    add_enum_reloption(options_kind, "quantizer", "How codes are made", quantizer_names,
                       static_cast<int>(QuantizerKind::pq),
                       "Valid values are \"pq\", \"opq\" and \"lsq\".", AccessExclusiveLock);
    add_int_reloption(options_kind, "dims",
                      "Dimensions that a rotation leaves; 0: as many as the vectors have", 0, 0,
                      max_rotated_dims, AccessExclusiveLock);
    add_int_reloption(options_kind, "rounds",
                      "Rounds of the search for a code with quantizer = 'lsq'; 0 chooses", 0, 0,
                      max_search_rounds, AccessExclusiveLock);
}

bytea* ivfpq_options(Datum reloptions, bool validate) {
    const auto option = [](const char* name, size_t offset, relopt_type type = RELOPT_TYPE_INT) {
        relopt_parse_elt element = {};
        element.optname = name;
        element.opttype = type;
        element.offset = static_cast<int>(offset);
        return element;
    };
    const relopt_parse_elt table[] = {
        option("lists", offsetof(IndexOptions, lists)),
        option("m", offsetof(IndexOptions, m)),
        option("bits", offsetof(IndexOptions, bits)),
        option("quantizer", offsetof(IndexOptions, quantizer), RELOPT_TYPE_ENUM),
        option("dims", offsetof(IndexOptions, dims)),
        option("rounds", offsetof(IndexOptions, rounds)),
    };
    return static_cast<bytea*>(build_reloptions(reloptions, validate, options_kind,
                                                sizeof(IndexOptions), table, lengthof(table)));
}

IndexOptions options_of(Relation index) {
    if (index->rd_options) return *reinterpret_cast<IndexOptions*>(index->rd_options);
    return {0, 0, 0, 0, static_cast<int>(QuantizerKind::pq), 0, 0};
}

const char* quantizer_name(QuantizerKind kind) {
    for (const relopt_enum_elt_def& name : quantizer_names)
        if (name.string_val && name.symbol_val == static_cast<int>(kind)) return name.string_val;
    return "unknown";
}

}  // namespace pgwarp
