#include <cstddef>

#include "extension/index/format.h"
#include "extension/index/lapack_check.h"
#include "extension/index/options.h"
#include "extension/settings.h"

extern "C" {
#include "access/amapi.h"
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

relopt_enum_elt_def refinement_names[] = {
    {"auto", refine_auto},
    {"none", static_cast<int>(RefinementKind::none)},
    {"int8", static_cast<int>(RefinementKind::int8)},
    {nullptr, 0},
};

relopt_enum_elt_def placement_names[] = {
    {"auto", static_cast<int>(Placement::automatic)},
    {"single", static_cast<int>(Placement::single)},
    {"replicate", static_cast<int>(Placement::replicate)},
    {"shard", static_cast<int>(Placement::shard)},
    {nullptr, 0},
};

IndexOptions default_options() {
    return {0, 0, 0, 0, static_cast<int>(QuantizerKind::pq), 0, 0, refine_auto, placement_unset, 0};
}

// A rotation is rounded, so distances after it are off by more than the bound that a refinement
// gives: nearest rows would be missed.
bool can_refine(const MetaPage& meta) {
    return meta.dims <= max_refined_dims && !has_rotation(meta);
}

// Where the option is not given: for vectors so long that they lie in TOAST, where a visit takes
// several times as long as in a row (bench/notes/codes.md). The same on every machine: an index
// outlives the device that may be there at its build, and standbys have their own.
RefinementKind choose_refinement(const MetaPage& meta) {
    return can_refine(meta) && lies_in_toast(meta) ? RefinementKind::int8 : RefinementKind::none;
}

// Where neither bits nor m is given: short codes that only find candidates may be coarser, and
// those of four bits are scanned several times as fast by a CPU, and as fast by a device.
int choose_bits(const MetaPage& meta) {
    const bool coarse = meta.refinement != RefinementKind::none && lies_in_toast(meta) &&
                        meta.quantizer == QuantizerKind::pq && meta.asked_m == 0;
    return coarse ? 4 : default_bits;
}

void check_refinement(const MetaPage& meta) {
    if (meta.dims > max_refined_dims)
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                        errmsg("column cannot have more than %u dimensions for refine = '%s'",
                               max_refined_dims, refinement_name(meta.refinement))));
    if (has_rotation(meta))
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("refine = '%s' cannot be given with quantizer = '%s'",
                               refinement_name(meta.refinement), quantizer_name(meta.quantizer)),
                        errdetail("Distances after a rotation differ by more than such codes "
                                  "allow for.")));
}

// Rejects, before any work, options that no index of these dimensions can have, and a quantizer
// that needs LAPACK where there is none.
void check_quantizer(QuantizerKind kind, uint32 dims, const IndexOptions& options) {
    if (options.bits != 0 && options.bits != 4 && options.bits != 8)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("bits must be 4 or 8, not %d", options.bits)));
    if (kind != QuantizerKind::opq && options.dims > 0)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("dims can be given with quantizer = 'opq' only")));
    if (kind != QuantizerKind::lsq && options.rounds > 0)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("rounds can be given with quantizer = 'lsq' only")));
    if (kind == QuantizerKind::lsq && options.bits == 4)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("bits must be 8 with quantizer = 'lsq'")));
    if (kind == QuantizerKind::lsq && options.m > max_lsq_m)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("m cannot be greater than %d with quantizer = 'lsq'", max_lsq_m)));
    if (kind == QuantizerKind::pq) return;
    if (dims > static_cast<uint32>(max_rotated_dims))
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                        errmsg("column cannot have more than %d dimensions for quantizer = '%s'",
                               max_rotated_dims, quantizer_name(kind))));
    if (static_cast<uint32>(options.dims) > dims)
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                 errmsg("dims cannot be greater than the number of dimensions"),
                 errdetail("dims is %d, the column has %u dimensions.", options.dims, dims)));
    check_lapack(quantizer_name(kind), ERROR);
}

// Rejects code lengths that the dimensions do not allow.
void check_code(const MetaPage& meta) {
    if (meta.asked_m > meta.code_dims)
        ereport(
            ERROR,
            (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
             errmsg("m cannot be greater than the number of dimensions"),
             meta.code_dims == meta.dims
                 ? errdetail("m is %u, the column has %u dimensions.", meta.asked_m, meta.dims)
                 : errdetail("m is %u, codes have %u dimensions.", meta.asked_m, meta.code_dims)));
    if (meta.asked_m > static_cast<uint32>(max_m))
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("m cannot be greater than %d", max_m),
                        errdetail("m is %u: an entry would not fit a page.", meta.asked_m)));
    if (meta.bits == 4 && meta.code_dims < 2)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("bits = 4 needs at least two dimensions")));
    if (meta.bits == 4 && meta.asked_m > meta.code_dims / 2)
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                 errmsg("m cannot be greater than half the number of dimensions with bits = 4"),
                 errdetail("m is %u, codes have %u dimensions.", meta.asked_m, meta.code_dims)));
}

}  // namespace

void init_options() {
    options_kind = add_reloption_kind();
    add_int_reloption(options_kind, "lists", "Number of inverted lists; 0 chooses by the rows", 0,
                      0, max_lists, AccessExclusiveLock);
    add_int_reloption(options_kind, "parents",
                      "Centroids that queries are compared with before those of lists; 0 chooses "
                      "by the lists, 1: none",
                      0, 0, max_parents, AccessExclusiveLock);
    // check_code() knows the dimensions, and tells them.
    add_int_reloption(options_kind, "m", "Bytes of a code; 0 chooses by the dimensions", 0, 0,
                      max_dims, AccessExclusiveLock);
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
    add_enum_reloption(options_kind, "refine", "Finer codes, to rank candidates by",
                       refinement_names, refine_auto,
                       "Valid values are \"auto\", \"none\" and \"int8\".", AccessExclusiveLock);
    // Scans read it: those that run go on with what they have.
    add_enum_reloption(options_kind, "placement", "Devices of the service that have the index",
                       placement_names, placement_unset,
                       "Valid values are \"auto\", \"single\", \"replicate\" and \"shard\".",
                       ShareUpdateExclusiveLock);
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
        option("refine", offsetof(IndexOptions, refine), RELOPT_TYPE_ENUM),
        option("placement", offsetof(IndexOptions, placement), RELOPT_TYPE_ENUM),
        option("parents", offsetof(IndexOptions, parents)),
    };
    return static_cast<bytea*>(build_reloptions(reloptions, validate, options_kind,
                                                sizeof(IndexOptions), table, lengthof(table)));
}

bool is_ivfpq(Relation index) {
    return index->rd_indam && index->rd_indam->amoptions == ivfpq_options;
}

IndexOptions options_of(Relation index) {
    if (index->rd_options) return *reinterpret_cast<IndexOptions*>(index->rd_options);
    return default_options();
}

IndexOptions parse_options(Datum reloptions, bool is_null) {
    if (is_null) return default_options();
    return *reinterpret_cast<IndexOptions*>(ivfpq_options(reloptions, false));
}

void apply_options(const IndexOptions& options, MetaPage* meta) {
    const auto kind = static_cast<QuantizerKind>(options.quantizer);
    check_quantizer(kind, meta->dims, options);
    meta->quantizer = kind;
    meta->code_dims = options.dims > 0 ? static_cast<uint32>(options.dims) : meta->dims;
    meta->search_rounds = 0;
    if (kind == QuantizerKind::lsq)
        meta->search_rounds =
            static_cast<uint32>(options.rounds > 0 ? options.rounds : default_search_rounds);
    meta->asked_lists = static_cast<uint32>(options.lists);
    meta->asked_parents = static_cast<uint32>(options.parents);
    if (meta->asked_lists > 0 && meta->asked_parents > meta->asked_lists)
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                 errmsg("parents cannot be greater than lists"),
                 errdetail("parents is %u, lists is %u.", meta->asked_parents, meta->asked_lists)));
    meta->asked_m = static_cast<uint32>(options.m);
    if (options.refine == refine_auto) {
        meta->refinement = choose_refinement(*meta);
    } else {
        meta->refinement = static_cast<RefinementKind>(options.refine);
        if (meta->refinement != RefinementKind::none) check_refinement(*meta);
    }
    meta->bits = static_cast<uint8>(options.bits > 0 ? options.bits : choose_bits(*meta));
    check_code(*meta);
}

const char* quantizer_name(QuantizerKind kind) {
    for (const relopt_enum_elt_def& name : quantizer_names)
        if (name.string_val && name.symbol_val == static_cast<int>(kind)) return name.string_val;
    return "unknown";
}

const char* refinement_name(RefinementKind kind) {
    for (const relopt_enum_elt_def& name : refinement_names)
        if (name.string_val && name.symbol_val == static_cast<int>(kind)) return name.string_val;
    return "unknown";
}

}  // namespace pgwarp
