#include <cstring>

#include "extension/ivfpq_sort.h"

extern "C" {
#include "catalog/pg_operator_d.h"
#include "catalog/pg_type_d.h"
#include "executor/tuptable.h"
}

namespace pgwarp {

// A tuple is a key of list and TID, then offset and code.
struct EntrySort {
    Tuplesortstate* sort;
    TupleTableSlot* in;
    TupleTableSlot* out;
    bytea* entry;
    uint32 m;
};

namespace {

constexpr int tid_bits = 48;
static_assert(max_lists <= 1 << (63 - tid_bits), "list and TID share one int64");

}  // namespace

EntrySort* begin_entry_sort(uint32 m, int memory, SortCoordinate coordinate) {
    EntrySort* sort = static_cast<EntrySort*>(palloc0(sizeof(EntrySort)));
    TupleDesc descriptor = CreateTemplateTupleDesc(2);
    TupleDescInitEntry(descriptor, 1, "key", INT8OID, -1, 0);
    TupleDescInitEntry(descriptor, 2, "entry", BYTEAOID, -1, 0);
    AttrNumber attribute = 1;
    Oid operation = Int8LessOperator;
    Oid collation = InvalidOid;
    bool nulls_first = false;
    sort->sort = compat_sort_begin(descriptor, &attribute, &operation, &collation, &nulls_first,
                                   memory, coordinate);
    sort->in = MakeSingleTupleTableSlot(descriptor, &TTSOpsVirtual);
    sort->out = MakeSingleTupleTableSlot(descriptor, &TTSOpsMinimalTuple);
    sort->m = m;
    const Size bytes = VARHDRSZ + sizeof(float) + m;
    sort->entry = static_cast<bytea*>(palloc0(bytes));
    SET_VARSIZE(sort->entry, bytes);
    return sort;
}

void sort_row(void* state, const EncodedRow& row) {
    EntrySort* sort = static_cast<EntrySort*>(state);
    char* data = VARDATA(sort->entry);
    memcpy(data, &row.offset, sizeof(float));
    memcpy(data + sizeof(float), row.code, sort->m);
    ExecClearTuple(sort->in);
    sort->in->tts_values[0] =
        Int64GetDatum(static_cast<int64>(static_cast<uint64>(row.list) << tid_bits | row.tid));
    sort->in->tts_values[1] = PointerGetDatum(sort->entry);
    sort->in->tts_isnull[0] = sort->in->tts_isnull[1] = false;
    ExecStoreVirtualTuple(sort->in);
    tuplesort_puttupleslot(sort->sort, sort->in);
}

void perform_entry_sort(EntrySort* sort) {
    tuplesort_performsort(sort->sort);
}

bool next_sorted_row(EntrySort* sort, EncodedRow* row) {
    if (!tuplesort_gettupleslot(sort->sort, true, false, sort->out, nullptr)) return false;
    slot_getallattrs(sort->out);
    const auto key = static_cast<uint64>(DatumGetInt64(sort->out->tts_values[0]));
    const char* data = VARDATA_ANY(DatumGetPointer(sort->out->tts_values[1]));
    row->list = static_cast<uint32>(key >> tid_bits);
    row->tid = key & ((uint64{1} << tid_bits) - 1);
    memcpy(&row->offset, data, sizeof(float));
    row->code = reinterpret_cast<const uint8*>(data + sizeof(float));
    return true;
}

void end_entry_sort(EntrySort* sort) {
    ExecDropSingleTupleTableSlot(sort->in);
    ExecDropSingleTupleTableSlot(sort->out);
    tuplesort_end(sort->sort);
    pfree(sort->entry);
    pfree(sort);
}

}  // namespace pgwarp
