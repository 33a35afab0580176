#include <cstring>

#include "extension/toast_reader.h"

extern "C" {
#include "access/detoast.h"
#include "access/genam.h"
#include "access/heaptoast.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/toast_internals.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
}

namespace pgwarp {

struct ToastReader {
    Oid toast_id;
    Relation toast;  // null until the first value
    Relation* indexes;
    int index_count;
    IndexScanDesc scan;
    TupleTableSlot* slot;
    CompatToastSnapshot snapshot;
};

namespace {

void open_relations(ToastReader* reader) {
    const MemoryContext before = MemoryContextSwitchTo(GetMemoryChunkContext(reader));
    reader->toast = table_open(reader->toast_id, AccessShareLock);
    const int valid =
        toast_open_indexes(reader->toast, AccessShareLock, &reader->indexes, &reader->index_count);
    reader->slot = table_slot_create(reader->toast, nullptr);
    reader->scan = compat_index_beginscan(reader->toast, reader->indexes[valid],
                                          compat_toast_snapshot(&reader->snapshot), 1, 0);
    MemoryContextSwitchTo(before);
}

// Copies the chunks of a value into place. False where they are not what they should be.
bool copy_chunks(ToastReader* reader, Oid value_id, char* to, int32 size) {
    ScanKeyData key;
    ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(value_id));
    index_rescan(reader->scan, &key, 1, nullptr, 0);
    int32 expected = 0;
    while (index_getnext_slot(reader->scan, ForwardScanDirection, reader->slot)) {
        bool is_null;
        const int32 sequence = DatumGetInt32(slot_getattr(reader->slot, 2, &is_null));
        Datum chunk = slot_getattr(reader->slot, 3, &is_null);
        if (is_null || sequence != expected || VARATT_IS_EXTENDED(DatumGetPointer(chunk)))
            return false;
        const int32 at = sequence * static_cast<int32>(TOAST_MAX_CHUNK_SIZE);
        const int32 length = static_cast<int32>(VARSIZE(DatumGetPointer(chunk))) - VARHDRSZ;
        if (at >= size || length != Min(size - at, static_cast<int32>(TOAST_MAX_CHUNK_SIZE)))
            return false;
        memcpy(to + at, VARDATA(DatumGetPointer(chunk)), static_cast<Size>(length));
        ++expected;
    }
    return expected * static_cast<int64>(TOAST_MAX_CHUNK_SIZE) >= size;
}

}  // namespace

ToastReader* open_toast_reader(Relation heap) {
    ToastReader* reader = static_cast<ToastReader*>(palloc0(sizeof(ToastReader)));
    reader->toast_id = heap->rd_rel->reltoastrelid;
    return reader;
}

varlena* read_value(ToastReader* reader, Datum value) {
    varlena* given = reinterpret_cast<varlena*>(DatumGetPointer(value));
    if (!VARATT_IS_EXTERNAL_ONDISK(given)) return pg_detoast_datum(given);
    varatt_external pointer;
    VARATT_EXTERNAL_GET_POINTER(pointer, given);
    if (VARATT_EXTERNAL_IS_COMPRESSED(pointer) || pointer.va_toastrelid != reader->toast_id)
        return pg_detoast_datum(given);

    if (!reader->toast) open_relations(reader);
    const int32 size = static_cast<int32>(VARATT_EXTERNAL_GET_EXTSIZE(pointer));
    varlena* result = static_cast<varlena*>(palloc(static_cast<Size>(size) + VARHDRSZ));
    SET_VARSIZE(result, size + VARHDRSZ);
    const bool whole = copy_chunks(reader, pointer.va_valueid, VARDATA(result), size);
    ExecClearTuple(reader->slot);
    // PostgreSQL knows best how to report what is wrong with a value.
    return whole ? result : pg_detoast_datum(given);
}

void close_toast_reader(ToastReader* reader) {
    if (reader->toast) {
        index_endscan(reader->scan);
        ExecDropSingleTupleTableSlot(reader->slot);
        toast_close_indexes(reader->indexes, reader->index_count, AccessShareLock);
        table_close(reader->toast, AccessShareLock);
    }
    pfree(reader);
}

}  // namespace pgwarp
