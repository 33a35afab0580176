// ivfpq_info and ivfpq_recall_curve: the parameters, sizes and recall curve of an index.

#include <algorithm>
#include <cmath>

#include "extension/index/format.h"
#include "extension/index/options.h"
#include "extension/index/effort.h"
#include "extension/index/argument.h"
#include "extension/index/page.h"
#include "extension/index/place.h"
#include "extension/scan/exact.h"
#include "extension/settings.h"
#include "extension/util/signature.h"

extern "C" {
#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/timestamp.h"
}

namespace pgwarp {

namespace {

// Collects one row of output in the order of the function's columns.
struct RowBuilder {
    Datum values[48];
    bool nulls[48];
    int count;

    void add(Datum value) {
        nulls[count] = false;
        values[count++] = value;
    }
    void add_null() {
        nulls[count] = true;
        values[count++] = Datum{0};
    }
    void add_time(int64 at) {
        if (at == 0)
            add_null();
        else
            add(TimestampTzGetDatum(at));
    }
};

// The index's columns after the vector: names, or expressions.
Datum attribute_names(Relation index) {
    Datum names[INDEX_MAX_KEYS];
    const int columns = IndexRelationGetNumberOfKeyAttributes(index);
    for (int i = 1; i < columns; ++i)
        names[i - 1] =
            DirectFunctionCall3(pg_get_indexdef_ext, ObjectIdGetDatum(RelationGetRelid(index)),
                                Int32GetDatum(i + 1), BoolGetDatum(true));
    return PointerGetDatum(construct_array(names, columns - 1, TEXTOID, -1, false, TYPALIGN_INT));
}

// What is told is about scans with LIMIT 10.
constexpr int shown_k = 1;
constexpr uint32 shown_rows = RecallCurve::k_values[shown_k];
static_assert(shown_rows == 10);

// Recall@10 by probes as a JSON object, for the largest measured number of candidates that is not
// above `candidates`.
Datum curve_json(const RecallCurve& curve, uint32 candidates) {
    uint32 factor = 0;
    while (factor + 1 < RecallCurve::factors &&
           RecallCurve::factor_values[factor + 1] * RecallCurve::k_values[shown_k] <= candidates)
        ++factor;
    StringInfoData text;
    initStringInfo(&text);
    appendStringInfoChar(&text, '{');
    for (uint32 step = 0; step < curve.steps; ++step)
        appendStringInfo(&text, "%s\"%u\": %.4f", step > 0 ? ", " : "", curve.probes[step],
                         curve.recall[shown_k][step][factor] / 65535.0);
    appendStringInfoChar(&text, '}');
    return DirectFunctionCall1(json_in, CStringGetDatum(text.data));
}

// What a scan does now, and which recall is expected of it.
void add_expectation(const MetaPage& meta, const Effort& effort, RowBuilder* row) {
    ExpectedRecall expected;
    const bool by_query = effort.threshold > 0;
    if (meta.lists > 0)
        row->add(BoolGetDatum(by_query));
    else
        row->add_null();
    if (by_query)
        row->add(Float4GetDatum(effort.threshold));
    else
        row->add_null();
    const bool exact = searches_exactly(meta);
    if (exact) expected = {1, 0};
    if (exact || (meta.lists > 0 && expected_recall(meta, shown_rows, effort, &expected))) {
        row->add(Float8GetDatum(expected.recall));
        row->add(Float8GetDatum(expected.within));
    } else {
        row->add_null();
        row->add_null();
    }
}

// Where the curve is from, and what live searches without a condition taught.
void add_origin(const MetaPage& meta, RowBuilder* row) {
    if (has_curve(meta)) {
        const bool given = meta.curve_source == CurveSource::queries;
        row->add(CStringGetTextDatum(given ? "queries" : "rows"));
        row->add(Int32GetDatum(static_cast<int32>(meta.curve.queries[shown_k])));
        row->add_time(meta.curve_at);
    } else {
        for (int i = 0; i < 3; ++i) row->add_null();
    }
    const LearnedEffort& learned = meta.learned(false);
    if (learned.at != 0) {
        row->add(Float4GetDatum(learned.correction[shown_k]));
        row->add(Float4GetDatum(learned.recall));
        row->add(Int64GetDatum(learned.audited));
        row->add_time(learned.at);
    } else {
        for (int i = 0; i < 4; ++i) row->add_null();
    }
}

// The page may be damaged: the message ends with its room, and is text of no encoding until
// checked.
void add_pending_reason(const PendingReason& reason, RowBuilder* row) {
    const int length = static_cast<int>(strnlen(reason.message, PendingReason::room));
    if (length > 0 && pg_verifymbstr(reason.message, length, true)) {
        row->add(PointerGetDatum(cstring_to_text_with_len(reason.message, length)));
        row->add_time(reason.since);
    } else {
        row->add_null();
        row->add_null();
    }
}

// One side of the curve for one k: with one number of lists for all queries, or by query.
void put_curve(ReturnSetInfo* result, Oid index, const RecallCurve& curve, int k, bool by_query) {
    const uint32 rows = RecallCurve::k_values[k];
    const uint32 steps = by_query ? curve.by_query_steps : curve.steps;
    for (uint32 step = 0; step < steps; ++step) {
        // A k with fewer steps repeats its last one.
        if (by_query && step > 0 && curve.threshold[k][step] <= curve.threshold[k][step - 1]) break;
        const double lists = by_query ? curve.query_probes[k][step] : curve.probes[step];
        const double scanned = by_query ? curve.query_scanned[k][step] : curve.scanned[step];
        for (int f = 0; f < RecallCurve::factors; ++f) {
            const uint16 recall =
                by_query ? curve.query_recall[k][step][f] : curve.recall[k][step][f];
            RowBuilder row = {};
            row.add(Int32GetDatum(static_cast<int32>(rows)));
            row.add(Int32GetDatum(static_cast<int32>(std::ceil(lists))));
            row.add(Int32GetDatum(
                static_cast<int32>(RecallCurve::factor_values[f] * RecallCurve::wanted(rows))));
            row.add(Float8GetDatum(scanned));
            row.add(Float8GetDatum(recall / 65535.0));
            if (by_query)
                row.add(Float4GetDatum(curve.threshold[k][step]));
            else
                row.add_null();
            row.add(Int32GetDatum(static_cast<int32>(curve.queries[k])));
            row.add(ObjectIdGetDatum(index));
            tuplestore_putvalues(result->setResult, result->setDesc, row.values, row.nulls);
        }
    }
}

struct ListSizes {
    int64 rows;
    int64 pages;
    int64 empty;     // lists
    int64* lengths;  // (lists), sorted
};

ListSizes read_list_sizes(Relation index, const MetaPage& meta) {
    ListSizes sizes = {};
    sizes.lengths = static_cast<int64*>(palloc(Max(meta.lists, 1u) * sizeof(int64)));
    for (uint32 list = 0; list < meta.lists; ++list) {
        CHECK_FOR_INTERRUPTS();
        sizes.lengths[list] = count_entries(index, meta, list);
        sizes.pages += read_place(index, meta, list).pages;
        sizes.rows += sizes.lengths[list];
        sizes.empty += sizes.lengths[list] == 0;
    }
    std::sort(sizes.lengths, sizes.lengths + meta.lists);
    if (meta.has_undirected_list) {
        sizes.rows += count_entries(index, meta, undirected_list(meta));
        sizes.pages += read_place(index, meta, undirected_list(meta)).pages;
    }
    return sizes;
}

void add_list_lengths(const MetaPage& meta, const ListSizes& sizes, RowBuilder* row) {
    if (meta.lists == 0) {
        for (int i = 0; i < 4; ++i) row->add_null();
        return;
    }
    row->add(Int64GetDatum(sizes.empty));
    row->add(Int64GetDatum(sizes.lengths[0]));
    row->add(Int64GetDatum(sizes.lengths[meta.lists / 2]));
    row->add(Int64GetDatum(sizes.lengths[meta.lists - 1]));
}

void put_info(ReturnSetInfo* result, Relation index) {
    const MetaPage meta = read_meta(index);
    const bool trained = meta.lists > 0;
    const ListSizes sizes = read_list_sizes(index, meta);
    const int64 pending = count_entries(index, meta, pending_list);
    const int64 pages = RelationGetNumberOfBlocks(index);
    const int64 model_pages = trained ? training_end(meta) - meta.centroids : 0;
    const Effort effort = choose_effort(meta, shown_rows, false);

    RowBuilder row = {};
    const auto add_if_trained = [&](Datum value) {
        if (trained)
            row.add(value);
        else
            row.add_null();
    };
    row.add(BoolGetDatum(trained));
    row.add(Int32GetDatum(static_cast<int32>(meta.dims)));
    row.add(CStringGetTextDatum(sql_name(meta.metric)));
    row.add(attribute_names(index));
    add_if_trained(Int32GetDatum(static_cast<int32>(meta.lists)));
    add_if_trained(Int32GetDatum(static_cast<int32>(meta.m)));
    row.add(Int32GetDatum(meta.bits));
    row.add(CStringGetTextDatum(quantizer_name(meta.quantizer)));
    row.add(Int32GetDatum(static_cast<int32>(meta.code_dims)));
    row.add(CStringGetTextDatum(refinement_name(meta.refinement)));
    row.add(Int64GetDatum(sizes.rows + pending));
    row.add(Int64GetDatum(pending));
    row.add(Int64GetDatum(pages));
    row.add(Int64GetDatum(pages * BLCKSZ));
    row.add(Int64GetDatum(model_pages * BLCKSZ));
    row.add(Int64GetDatum(sizes.pages * BLCKSZ));
    row.add(Int64GetDatum(int64{meta.refinement_pages} * BLCKSZ));
    row.add(Int64GetDatum(int64{meta.pending.pages} * BLCKSZ));
    row.add(Int64GetDatum(int64{meta.free_pages} * BLCKSZ));
    add_list_lengths(meta, sizes, &row);
    add_if_trained(Int64GetDatum(meta.training_rows));
    add_if_trained(Int64GetDatum(static_cast<int64>(meta.rows_at_build)));
    add_if_trained(Float4GetDatum(meta.quantization_error));
    row.add(Float8GetDatum(settings.target_recall));
    const int64 candidates = searches_exactly(meta) ? sizes.rows + pending : effort.candidates;
    add_if_trained(Int32GetDatum(static_cast<int32>(effort.probes)));
    add_if_trained(Int32GetDatum(static_cast<int32>(std::min<int64>(candidates, PG_INT32_MAX))));
    if (has_curve(meta))
        row.add(curve_json(meta.curve, effort.candidates));
    else
        row.add_null();
    add_expectation(meta, effort, &row);
    add_origin(meta, &row);
    row.add(ObjectIdGetDatum(RelationGetRelid(index)));
    add_pending_reason(meta.pending_reason, &row);
    add_if_trained(Int32GetDatum(static_cast<int32>(meta.parents)));
    Assert(row.count == result->setDesc->natts);
    tuplestore_putvalues(result->setResult, result->setDesc, row.values, row.nulls);
    pfree(sizes.lengths);
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(ivfpq_info) {
    check_signature(fcinfo, 1, 45);
    compat_init_materialized(fcinfo);
    const IndexLeaves parts = find_parts(PG_GETARG_OID(0));
    for (int i = 0; i < parts.count; ++i) {
        const OpenIndex open = open_part(parts.leaves[i], AccessShareLock);
        put_info(reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo), open.index);
        close_index(open);
    }
    return Datum{0};
}

PGWARP_FUNCTION(ivfpq_recall_curve) {
    check_signature(fcinfo, 2, 8);
    compat_init_materialized(fcinfo);
    ReturnSetInfo* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    const bool by_query = PG_GETARG_BOOL(1);
    const IndexLeaves parts = find_parts(PG_GETARG_OID(0));
    for (int i = 0; i < parts.count; ++i) {
        const OpenIndex open = open_part(parts.leaves[i], AccessShareLock);
        const MetaPage meta = read_meta(open.index);
        close_index(open);
        for (int k = 0; k < RecallCurve::ks && has_curve(meta); ++k)
            if (meta.curve.queries[k] > 0)
                put_curve(result, parts.leaves[i].index, meta.curve, k, by_query);
    }
    return Datum{0};
}
