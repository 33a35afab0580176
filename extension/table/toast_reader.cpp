#include <cstring>

#include "extension/table/heap_hints.h"
#include "extension/table/toast_reader.h"

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
    TupleTableSlot* slot;
    CompatToastSnapshot snapshot_room;
    Snapshot snapshot;
    IndexFetchTableData* fetch;  // null where heap_hints do not work for the TOAST relation

    // The path by index, opened at first use.
    Relation* indexes;
    int index_count;
    IndexScanDesc scan;
};

namespace {

// Where this session found the first chunk of a value; the others follow it on that page and the
// next ones. A chunk names its value, so a wrong hint is noticed.
constexpr uint32 room = 65536;
struct ValueHint {
    Oid toast;
    Oid value;
    ItemPointerData first;
};
ValueHint value_hints[room];

// One value in this many is looked up by index in spite of a hint, which bumps the usage count: see
// pin_known().
constexpr uint32 long_way = 32;
uint32 reads = 0;

ValueHint* hint_of(const ToastReader* reader, Oid value) {
    return &value_hints[(value + reader->toast_id * 0x9e37) % room];
}

void open_relation(ToastReader* reader) {
    const MemoryContext before = MemoryContextSwitchTo(GetMemoryChunkContext(reader));
    reader->toast = table_open(reader->toast_id, AccessShareLock);
    reader->slot = table_slot_create(reader->toast, nullptr);
    reader->snapshot = compat_toast_snapshot(&reader->snapshot_room);
    if (can_hint(reader->toast)) reader->fetch = compat_index_fetch_begin(reader->toast);
    MemoryContextSwitchTo(before);
}

void open_index(ToastReader* reader) {
    const MemoryContext before = MemoryContextSwitchTo(GetMemoryChunkContext(reader));
    const int valid =
        toast_open_indexes(reader->toast, AccessShareLock, &reader->indexes, &reader->index_count);
    reader->scan =
        compat_index_beginscan(reader->toast, reader->indexes[valid], reader->snapshot, 1, 0);
    MemoryContextSwitchTo(before);
}

// A value being read: its chunks are copied into place one after the other.
struct Copy {
    Oid value;
    char* to;
    int32 size;
    int32 chunks;  // copied so far

    bool whole() const { return chunks * static_cast<int64>(TOAST_MAX_CHUNK_SIZE) >= size; }

    // False where the slot does not hold the next chunk, or the chunk is malformed.
    bool take(TupleTableSlot* slot) {
        bool is_null;
        if (DatumGetObjectId(slot_getattr(slot, 1, &is_null)) != value) return false;
        if (DatumGetInt32(slot_getattr(slot, 2, &is_null)) != chunks || whole()) return false;
        varlena* chunk =
            reinterpret_cast<varlena*>(DatumGetPointer(slot_getattr(slot, 3, &is_null)));
        if (is_null || VARATT_IS_EXTENDED(chunk)) return false;
        const int32 at = chunks * static_cast<int32>(TOAST_MAX_CHUNK_SIZE);
        const int32 length = static_cast<int32>(VARSIZE(chunk)) - VARHDRSZ;
        if (length != Min(size - at, static_cast<int32>(TOAST_MAX_CHUNK_SIZE))) return false;
        memcpy(to + at, VARDATA(chunk), static_cast<Size>(length));
        ++chunks;
        return true;
    }
};

// Whether `b` directly follows `a`: in the next slot, or first on the next page.
bool follows(const ItemPointerData& a, const ItemPointerData& b) {
    const BlockNumber block = ItemPointerGetBlockNumberNoCheck(&a);
    const OffsetNumber offset = ItemPointerGetOffsetNumberNoCheck(&a);
    const BlockNumber next_block = ItemPointerGetBlockNumberNoCheck(&b);
    const OffsetNumber next_offset = ItemPointerGetOffsetNumberNoCheck(&b);
    return next_block == block ? next_offset == offset + 1
                               : next_block == block + 1 && next_offset == FirstOffsetNumber;
}

// By the index, as PostgreSQL does. Leaves a hint where all chunks follow each other.
bool copy_by_index(ToastReader* reader, Copy* copy) {
    if (!reader->scan) open_index(reader);
    ScanKeyData key;
    ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(copy->value));
    index_rescan(reader->scan, &key, 1, nullptr, 0);
    ItemPointerData first = {}, last = {};
    bool together = reader->fetch != nullptr;
    while (index_getnext_slot(reader->scan, ForwardScanDirection, reader->slot)) {
        const ItemPointerData tid = reader->slot->tts_tid;
        if (copy->chunks == 0)
            first = tid;
        else
            together = together && follows(last, tid);
        last = tid;
        if (!copy->take(reader->slot)) return false;
        if (reader->fetch) note_hint(reader->toast, reader->slot, tid);
    }
    if (!copy->whole()) return false;
    if (together && copy->size > 0)
        *hint_of(reader, copy->value) = {reader->toast_id, copy->value, first};
    return true;
}

// Copies the next chunk, if it lies at `tid`.
bool copy_chunk_at(ToastReader* reader, Copy* copy, ItemPointerData tid) {
    bool call_again = false;
    bool all_dead = false;
    return pin_known(reader->toast, reader->fetch, tid) &&
           table_index_fetch_tuple(reader->fetch, &tid, reader->snapshot, reader->slot, &call_again,
                                   &all_dead) &&
           copy->take(reader->slot);
}

bool copy_by_hint(ToastReader* reader, Copy* copy) {
    const ValueHint* hint = hint_of(reader, copy->value);
    if (!reader->fetch || hint->value != copy->value || hint->toast != reader->toast_id ||
        ++reads % long_way == 0)
        return false;
    ItemPointerData tid = hint->first;
    while (!copy->whole()) {
        if (!copy_chunk_at(reader, copy, tid)) {
            if (copy->chunks == 0) return false;
            ItemPointerSet(&tid, ItemPointerGetBlockNumberNoCheck(&tid) + 1, FirstOffsetNumber);
            if (!copy_chunk_at(reader, copy, tid)) return false;
        }
        ItemPointerSetOffsetNumber(&tid, ItemPointerGetOffsetNumberNoCheck(&tid) + 1);
    }
    return true;
}

bool copy_chunks(ToastReader* reader, Oid value, char* to, int32 size) {
    if (!reader->toast) open_relation(reader);
    Copy hinted{value, to, size, 0};
    bool whole = copy_by_hint(reader, &hinted);
    if (!whole) {
        Copy looked_up{value, to, size, 0};
        whole = copy_by_index(reader, &looked_up);
    }
    ExecClearTuple(reader->slot);
    if (reader->fetch) table_index_fetch_reset(reader->fetch);
    return whole;
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

    const int32 size = static_cast<int32>(VARATT_EXTERNAL_GET_EXTSIZE(pointer));
    varlena* result = static_cast<varlena*>(palloc(static_cast<Size>(size) + VARHDRSZ));
    SET_VARSIZE(result, size + VARHDRSZ);
    // Let PostgreSQL's own reader report what is wrong with a value.
    return copy_chunks(reader, pointer.va_valueid, VARDATA(result), size) ? result
                                                                          : pg_detoast_datum(given);
}

void close_toast_reader(ToastReader* reader) {
    if (reader->scan) {
        index_endscan(reader->scan);
        toast_close_indexes(reader->indexes, reader->index_count, AccessShareLock);
    }
    if (reader->toast) {
        if (reader->fetch) table_index_fetch_end(reader->fetch);
        ExecDropSingleTupleTableSlot(reader->slot);
        table_close(reader->toast, AccessShareLock);
    }
    pfree(reader);
}

}  // namespace pgwarp
