#include <cstddef>

#include "extension/ivfpq.h"

extern "C" {
#include "access/reloptions.h"
}

namespace pgwarp {

namespace {

relopt_kind options_kind;

}  // namespace

void init_options() {
    options_kind = add_reloption_kind();
    add_int_reloption(options_kind, "lists", "Number of inverted lists; 0 chooses by the rows", 0,
                      0, max_lists, AccessExclusiveLock);
    add_int_reloption(options_kind, "m", "Bytes of a code; 0 chooses by the dimensions", 0, 0,
                      max_m, AccessExclusiveLock);
    add_int_reloption(options_kind, "bits", "Bits of a sub-quantizer", code_bits, code_bits,
                      code_bits, AccessExclusiveLock);
}

bytea* ivfpq_options(Datum reloptions, bool validate) {
    const auto option = [](const char* name, size_t offset) {
        relopt_parse_elt element = {};
        element.optname = name;
        element.opttype = RELOPT_TYPE_INT;
        element.offset = static_cast<int>(offset);
        return element;
    };
    const relopt_parse_elt table[] = {
        option("lists", offsetof(IndexOptions, lists)),
        option("m", offsetof(IndexOptions, m)),
        option("bits", offsetof(IndexOptions, bits)),
    };
    return static_cast<bytea*>(build_reloptions(reloptions, validate, options_kind,
                                                sizeof(IndexOptions), table, lengthof(table)));
}

IndexOptions options_of(Relation index) {
    if (index->rd_options) return *reinterpret_cast<IndexOptions*>(index->rd_options);
    return {0, 0, 0, code_bits};
}

}  // namespace pgwarp
