#include <cstring>

#include "extension/graph/edge_writer.h"

extern "C" {
#include "access/htup_details.h"
#include "access/tupmacs.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
}

namespace pgwarp {

namespace {

struct ResultWriter {
    EdgeWriter writer;
    Tuplestorestate* rows;
    TupleTableSlot* slot;  // the row; the tuplestore copies it
    const KeyNames* names;
    // Addresses of the row's values, where there are no names.
    char* src;
    char* rank;
    char* dst;
    char* distance;
};

void write_row(EdgeWriter* edges, int64 src, int32 rank, int64 dst, float4 distance) {
    ResultWriter* writer = reinterpret_cast<ResultWriter*>(edges);
    memcpy(writer->src, &src, sizeof(src));
    memcpy(writer->rank, &rank, sizeof(rank));
    memcpy(writer->dst, &dst, sizeof(dst));
    memcpy(writer->distance, &distance, sizeof(distance));
    tuplestore_puttupleslot(writer->rows, writer->slot);
}

void write_named_row(EdgeWriter* edges, int64 src, int32 rank, int64 dst, float4 distance) {
    ResultWriter* writer = reinterpret_cast<ResultWriter*>(edges);
    const Datum values[] = {key_datum(writer->names, src), Int32GetDatum(rank),
                            key_datum(writer->names, dst), Float4GetDatum(distance)};
    ExecClearTuple(writer->slot);
    memcpy(writer->slot->tts_values, values, sizeof(values));
    memset(writer->slot->tts_isnull, 0, lengthof(values) * sizeof(bool));
    tuplestore_puttupleslot(writer->rows, ExecStoreVirtualTuple(writer->slot));
}

}  // namespace

EdgeWriter* open_edge_writer(const ReturnSetInfo* result, const KeyNames* names) {
    const Oid key = names ? TEXTOID : INT8OID;
    const Oid types[] = {key, INT4OID, key, FLOAT4OID};
    const TupleDesc columns = result->setDesc;
    ResultWriter* writer = static_cast<ResultWriter*>(palloc0(sizeof(ResultWriter)));
    Datum values[lengthof(types)] = {Int64GetDatum(0), Int32GetDatum(0), Int64GetDatum(0),
                                     Float4GetDatum(0)};
    bool nulls[lengthof(types)] = {};
    if (columns->natts != lengthof(types)) elog(ERROR, "an edge has four columns");
    for (int i = 0; i < columns->natts; ++i)
        if (TupleDescAttr(columns, i)->atttypid != types[i])
            elog(ERROR, "column %d of an edge is of another type", i + 1);
    writer->rows = result->setResult;
    writer->names = names;
    writer->writer.write = names ? write_named_row : write_row;
    if (names) {
        writer->slot = MakeSingleTupleTableSlot(columns, &TTSOpsVirtual);
        return &writer->writer;
    }
    MinimalTuple row = compat_form_minimal_tuple(columns, values, nulls);
    char* data = reinterpret_cast<char*>(row) + row->t_hoff - MINIMAL_TUPLE_OFFSET;
    Size offset = 0;
    char* places[lengthof(types)];
    for (int i = 0; i < columns->natts; ++i) {
        const auto* column = TupleDescAttr(columns, i);
        offset = att_align_nominal(offset, column->attalign);
        places[i] = data + offset;
        offset += column->attlen;
    }
    if (data + offset != reinterpret_cast<char*>(row) + row->t_len)
        elog(ERROR, "a row of an edge has another length");
    writer->slot = MakeSingleTupleTableSlot(columns, &TTSOpsMinimalTuple);
    ExecStoreMinimalTuple(row, writer->slot, false);
    writer->src = places[0];
    writer->rank = places[1];
    writer->dst = places[2];
    writer->distance = places[3];
    return &writer->writer;
}

}  // namespace pgwarp
