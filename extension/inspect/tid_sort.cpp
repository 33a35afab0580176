#include <cstring>

#include "extension/inspect/tid_sort.h"

extern "C" {
#include "catalog/pg_operator_d.h"
#include "catalog/pg_type_d.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
}

namespace pgwarp {

namespace {

// With attributes, a record is a bytea, whose order is that of its bytes: the TID comes first, its
// high bytes before the low ones. Attributes follow, if the record has them.
struct RecordHead {
    uint64 big_endian_tid;
    BlockNumber block;
    uint32 slot;
};
static_assert(sizeof(RecordHead) == 16);

}  // namespace

TidSort begin_tid_sort(uint32 attribute_bytes) {
    Tuplesortstate* sort =
        attribute_bytes == 0
            ? compat_begin_datum_sort(INT8OID, Int8LessOperator, maintenance_work_mem)
            : compat_begin_datum_sort(BYTEAOID, ByteaLessOperator, maintenance_work_mem);
    return {sort, attribute_bytes, Datum{0}};
}

void put_record(TidSort* sort, const TidRecord& record) {
    if (sort->attribute_bytes == 0) {
        tuplesort_putdatum(sort->sort, Int64GetDatum(static_cast<int64>(record.tid)), false);
        return;
    }
    const Size attributes = record.attributes ? sort->attribute_bytes : 0;
    const Size bytes = VARHDRSZ + sizeof(RecordHead) + attributes;
    auto* value = static_cast<varlena*>(palloc(bytes));
    SET_VARSIZE(value, bytes);
    const RecordHead head{pg_hton64(record.tid), record.block, record.slot};
    memcpy(VARDATA(value), &head, sizeof(head));
    if (attributes > 0) memcpy(VARDATA(value) + sizeof(head), record.attributes, attributes);
    tuplesort_putdatum(sort->sort, PointerGetDatum(value), false);
    pfree(value);
}

bool next_record(TidSort* sort, TidRecord* record) {
    Datum value;
    bool is_null;
    *record = {0, InvalidBlockNumber, 0, nullptr};
    if (DatumGetPointer(sort->read)) pfree(DatumGetPointer(sort->read));
    sort->read = Datum{0};
    if (!compat_get_datum_copy(sort->sort, &value, &is_null)) return false;
    if (sort->attribute_bytes == 0) {
        record->tid = static_cast<uint64>(DatumGetInt64(value));
        return true;
    }
    sort->read = value;
    const auto* bytes = reinterpret_cast<const varlena*>(DatumGetPointer(value));
    RecordHead head;
    memcpy(&head, VARDATA_ANY(bytes), sizeof(head));
    record->tid = pg_ntoh64(head.big_endian_tid);
    record->block = head.block;
    record->slot = head.slot;
    if (VARSIZE_ANY_EXHDR(bytes) > sizeof(head))
        record->attributes = reinterpret_cast<const uint8*>(VARDATA_ANY(bytes)) + sizeof(head);
    return true;
}

void end_tid_sort(TidSort* sort) {
    tuplesort_end(sort->sort);
}

}  // namespace pgwarp
