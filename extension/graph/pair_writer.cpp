// Where keys are integers, one tuple is formed once, and each pair overwrites its values, as in
// edge_writer.cpp: there may be millions of pairs.

#include <cstring>
#include <utility>

#include "extension/graph/pairs.h"

extern "C" {
#include "access/htup_details.h"
#include "access/tupmacs.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
}

namespace pgwarp {

struct PairWriter {
    const ReturnSetInfo* result;
    const KeyNames* names;  // null: the slot has one row, whose values have these addresses
    TupleTableSlot* slot;
    char* places[3];
};

PairWriter* open_pair_writer(const ReturnSetInfo* result, const KeyNames* names) {
    const Oid key = names ? TEXTOID : INT8OID;
    const Oid types[] = {key, key, FLOAT4OID};
    const TupleDesc columns = result->setDesc;
    if (columns->natts != lengthof(types)) elog(ERROR, "a pair has three columns");
    for (int i = 0; i < columns->natts; ++i)
        if (TupleDescAttr(columns, i)->atttypid != types[i])
            elog(ERROR, "column %d of a pair is of another type", i + 1);
    auto* writer = static_cast<PairWriter*>(palloc0(sizeof(PairWriter)));
    writer->result = result;
    writer->names = names;
    if (names) return writer;
    Datum values[lengthof(types)] = {Int64GetDatum(0), Int64GetDatum(0), Float4GetDatum(0)};
    bool nulls[lengthof(types)] = {};
    MinimalTuple row = compat_form_minimal_tuple(columns, values, nulls);
    char* data = reinterpret_cast<char*>(row) + row->t_hoff - MINIMAL_TUPLE_OFFSET;
    Size offset = 0;
    for (int i = 0; i < columns->natts; ++i) {
        const auto* column = TupleDescAttr(columns, i);
        offset = att_align_nominal(offset, column->attalign);
        writer->places[i] = data + offset;
        offset += column->attlen;
    }
    if (data + offset != reinterpret_cast<char*>(row) + row->t_len)
        elog(ERROR, "a row of a pair has another length");
    writer->slot = MakeSingleTupleTableSlot(columns, &TTSOpsMinimalTuple);
    ExecStoreMinimalTuple(row, writer->slot, false);
    return writer;
}

void write_pair(PairWriter* writer, int64 one, int64 other, float4 distance) {
    const ReturnSetInfo* result = writer->result;
    if (key_is_less(writer->names, other, one)) std::swap(one, other);
    if (writer->names) {
        Datum values[] = {key_datum(writer->names, one), key_datum(writer->names, other),
                          Float4GetDatum(distance)};
        bool nulls[lengthof(values)] = {};
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
        return;
    }
    memcpy(writer->places[0], &one, sizeof(one));
    memcpy(writer->places[1], &other, sizeof(other));
    memcpy(writer->places[2], &distance, sizeof(distance));
    tuplestore_puttupleslot(result->setResult, writer->slot);
}

}  // namespace pgwarp
