// ivfpq_info and ivfpq_recall_curve: the parameters, sizes and recall curve of an index.

#include <algorithm>

#include "extension/index/format.h"
#include "extension/index/options.h"
#include "extension/index/effort.h"
#include "extension/index/argument.h"
#include "extension/index/page.h"
#include "extension/index/place.h"
#include "extension/scan/exact.h"
#include "extension/settings.h"

extern "C" {
#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
}

namespace pgwarp {

namespace {

// The number of entries: all pages of a list but the last are full.
int64 list_length(Relation index, const MetaPage& meta, uint32 list) {
    const EntryLayout layout = layout_of(meta, list);
    while (true) {
        const ListPlace place = read_place(index, meta, list);
        if (place.pages == 0) return 0;
        Buffer buffer;
        if (!read_list_page(index, place.tail, list, layout, BUFFER_LOCK_SHARE, &buffer)) {
            // The tail was recycled since its place was read: read the place again.
            if (read_place(index, meta, list).generation != place.generation) continue;
            report_damage(index, place.tail, "it is not the tail of its list");
        }
        const int64 last = page_tail(BufferGetPage(buffer))->count;
        UnlockReleaseBuffer(buffer);
        return int64{place.pages - 1} * layout.capacity + last;
    }
}

// Collects one row of output in the order of the function's columns.
struct RowBuilder {
    Datum values[40];
    bool nulls[40];
    int count;

    void add(Datum value) {
        nulls[count] = false;
        values[count++] = value;
    }
    void add_null() {
        nulls[count] = true;
        values[count++] = Datum{0};
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

// Recall@10 by probes as a JSON object, for the largest measured number of candidates that is not
// above `candidates`.
Datum curve_json(const RecallCurve& curve, uint32 candidates) {
    constexpr int shown_k = 1;
    static_assert(RecallCurve::k_values[shown_k] == 10);
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

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(ivfpq_info) {
    TupleDesc descriptor;
    if (get_call_result_type(fcinfo, nullptr, &descriptor) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    const OpenIndex open = open_index(PG_GETARG_OID(0), AccessShareLock, Purpose::read);
    Relation index = open.index;
    const MetaPage meta = read_meta(index);
    const bool trained = meta.lists > 0;

    int64* lengths = static_cast<int64*>(palloc(Max(meta.lists, 1u) * sizeof(int64)));
    int64 rows = 0;
    int64 list_pages = 0;
    int64 empty = 0;
    for (uint32 list = 0; list < meta.lists; ++list) {
        CHECK_FOR_INTERRUPTS();
        lengths[list] = list_length(index, meta, list);
        list_pages += read_place(index, meta, list).pages;
        rows += lengths[list];
        empty += lengths[list] == 0;
    }
    std::sort(lengths, lengths + meta.lists);
    const int64 pending = list_length(index, meta, pending_list);
    const int64 pages = RelationGetNumberOfBlocks(index);
    const int64 model_pages = trained ? training_end(meta) - meta.centroids : 0;
    const Effort effort = choose_effort(meta, 10);

    RowBuilder row = {};
    row.add(BoolGetDatum(trained));
    row.add(Int32GetDatum(static_cast<int32>(meta.dims)));
    row.add(CStringGetTextDatum(sql_name(meta.metric)));
    row.add(attribute_names(index));
    if (trained) {
        row.add(Int32GetDatum(static_cast<int32>(meta.lists)));
        row.add(Int32GetDatum(static_cast<int32>(meta.m)));
    } else {
        row.add_null();
        row.add_null();
    }
    row.add(Int32GetDatum(meta.bits));
    row.add(CStringGetTextDatum(quantizer_name(meta.quantizer)));
    row.add(Int32GetDatum(static_cast<int32>(meta.code_dims)));
    row.add(Int64GetDatum(rows + pending));
    row.add(Int64GetDatum(pending));
    row.add(Int64GetDatum(pages));
    row.add(Int64GetDatum(pages * BLCKSZ));
    row.add(Int64GetDatum(model_pages * BLCKSZ));
    row.add(Int64GetDatum(list_pages * BLCKSZ));
    row.add(Int64GetDatum(int64{meta.pending.pages} * BLCKSZ));
    row.add(Int64GetDatum(int64{meta.free_pages} * BLCKSZ));
    if (trained) {
        row.add(Int64GetDatum(empty));
        row.add(Int64GetDatum(lengths[0]));
        row.add(Int64GetDatum(lengths[meta.lists / 2]));
        row.add(Int64GetDatum(lengths[meta.lists - 1]));
        row.add(Int64GetDatum(meta.training_rows));
        row.add(Int64GetDatum(static_cast<int64>(meta.rows_at_build)));
        row.add(Float4GetDatum(meta.quantization_error));
    } else {
        for (int i = 0; i < 7; ++i) row.add_null();
    }
    row.add(Float8GetDatum(settings.target_recall));
    if (trained) {
        const int64 candidates = searches_exactly(meta) ? rows + pending : effort.candidates;
        row.add(Int32GetDatum(static_cast<int32>(effort.probes)));
        row.add(Int32GetDatum(static_cast<int32>(std::min<int64>(candidates, PG_INT32_MAX))));
    } else {
        row.add_null();
        row.add_null();
    }
    if (has_curve(meta))
        row.add(curve_json(meta.curve, effort.candidates));
    else
        row.add_null();
    Assert(row.count == descriptor->natts);
    close_index(open);
    PG_RETURN_DATUM(
        HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(descriptor), row.values, row.nulls)));
}

PGWARP_FUNCTION(ivfpq_recall_curve) {
    compat_init_materialized(fcinfo);
    ReturnSetInfo* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    const OpenIndex open = open_index(PG_GETARG_OID(0), AccessShareLock, Purpose::read);
    const MetaPage meta = read_meta(open.index);
    close_index(open);
    const RecallCurve& curve = meta.curve;
    if (!has_curve(meta)) return Datum{0};
    for (int k = 0; k < RecallCurve::ks; ++k)
        for (uint32 step = 0; step < curve.steps && curve.queries[k] > 0; ++step)
            for (int f = 0; f < RecallCurve::factors; ++f) {
                RowBuilder row = {};
                row.add(Int32GetDatum(static_cast<int32>(RecallCurve::k_values[k])));
                row.add(Int32GetDatum(static_cast<int32>(curve.probes[step])));
                row.add(Int32GetDatum(
                    static_cast<int32>(RecallCurve::factor_values[f] *
                                       RecallCurve::wanted(RecallCurve::k_values[k]))));
                row.add(Float8GetDatum(curve.scanned[step]));
                row.add(Float8GetDatum(curve.recall[k][step][f] / 65535.0));
                tuplestore_putvalues(result->setResult, result->setDesc, row.values, row.nulls);
            }
    return Datum{0};
}
