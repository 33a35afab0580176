#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/sort_keys.h"
#include "extension/guard.h"
#include "extension/create/sort.h"
#include "extension/util/large_memory.h"

extern "C" {
#include "access/htup_details.h"
#include "catalog/pg_operator_d.h"
#include "catalog/pg_type_d.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/memutils.h"
}

namespace pgwarp {

// Where one process has all rows, they stay in memory as long as they fit, and threads sort them.
// Else they go through a tuplesort, which spills to disk and merges runs across processes: a tuple
// is a key of list and TID, then offset, code, attributes and refinement.
struct EntrySort {
    int tid_bits;  // of a key; the others are the list's
    uint32 m;
    uint32 attribute_bytes;
    uint32 refinement_bytes;
    int memory;  // kilobytes

    // In memory; `chunks` is null where a tuplesort holds the rows.
    MemoryContext context;
    char** chunks;    // each: keys (rows), offsets (rows), codes (rows)(m), attributes, refinements
    int chunk_shift;  // a chunk has 1 << chunk_shift rows
    Size room;        // rows
    Size count;
    KeyedRow* order;  // once sorted
    uint64* starts;   // (row_groups() + 1)
    Size next;

    Tuplesortstate* sort;
    TupleTableSlot* in;
    TupleTableSlot* out;
    bytea* entry;
};

namespace {

// A key holds the TID's 48 bits, if there are few lists. With many lists, offsets have 11 bits:
// heap pages have no more rows.
constexpr int all_tid_bits = 48;
constexpr int offset_bits = 11;
constexpr int short_tid_bits = 32 + offset_bits;
static_assert(MaxHeapTuplesPerPage < 1 << offset_bits);
static_assert(row_groups(max_plain_lists) <= 1u << (64 - all_tid_bits), "they share one uint64");
static_assert(row_groups(max_lists) <= 1u << (64 - short_tid_bits), "they share one uint64");

int tid_bits_for(uint32 lists) {
    return lists <= max_plain_lists ? all_tid_bits : short_tid_bits;
}
// Large allocations can use huge pages; memory counts only once it is written to.
constexpr int min_chunk_shift = 12;
constexpr int max_chunk_shift = 20;
constexpr Size max_chunk_bytes = Size{32} << 20;

Size payload_bytes(const EntrySort* sort) {
    return sizeof(float) + sort->m + sort->attribute_bytes + sort->refinement_bytes;
}

Size chunk_rows(const EntrySort* sort) {
    return Size{1} << sort->chunk_shift;
}

Size chunk_bytes(const EntrySort* sort) {
    return chunk_rows(sort) * (sizeof(uint64) + payload_bytes(sort));
}

// Addresses of a row's parts.
struct EntryPlace {
    uint64* key;
    float* offset;
    uint8* code;
    uint8* attributes;
    uint8* refinement;
};

EntryPlace entry_place(const EntrySort* sort, Size row) {
    char* keys = sort->chunks[row >> sort->chunk_shift];
    char* offsets = keys + chunk_rows(sort) * sizeof(uint64);
    char* codes = offsets + chunk_rows(sort) * sizeof(float);
    char* attributes = codes + chunk_rows(sort) * sort->m;
    char* refinements = attributes + chunk_rows(sort) * sort->attribute_bytes;
    const Size at = row & (chunk_rows(sort) - 1);
    return {reinterpret_cast<uint64*>(keys) + at, reinterpret_cast<float*>(offsets) + at,
            reinterpret_cast<uint8*>(codes) + at * sort->m,
            reinterpret_cast<uint8*>(attributes) + at * sort->attribute_bytes,
            reinterpret_cast<uint8*>(refinements) + at * sort->refinement_bytes};
}

void begin_in_memory(EntrySort* sort) {
    // Keep a quarter free: if the rows do not fit, chunks and tuplesort coexist for a while.
    // Sorting needs an array beside the rows, and counters for each thread.
    const Size bytes = static_cast<Size>(sort->memory) * 1024 / 4 * 3;
    const Size row_bytes = sizeof(uint64) + payload_bytes(sort) + 2 * sizeof(KeyedRow);
    const Size room = bytes / row_bytes;
    // At least this many chunks, so that the partly filled last one wastes little memory.
    constexpr Size min_chunks = 16;
    sort->chunk_shift = min_chunk_shift;
    while (sort->chunk_shift < max_chunk_shift && 2 * chunk_bytes(sort) <= max_chunk_bytes &&
           2 * chunk_rows(sort) * min_chunks <= room)
        ++sort->chunk_shift;
    sort->room = room / chunk_rows(sort) * chunk_rows(sort);
    if (sort->room == 0) return;
    sort->context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq entries", ALLOCSET_DEFAULT_SIZES);
    sort->chunks = static_cast<char**>(
        MemoryContextAlloc(sort->context, (sort->room >> sort->chunk_shift) * sizeof(char*)));
}

void begin_tuplesort(EntrySort* sort, SortCoordinate coordinate) {
    TupleDesc descriptor = CreateTemplateTupleDesc(2);
    TupleDescInitEntry(descriptor, 1, "key", INT8OID, -1, 0);
    TupleDescInitEntry(descriptor, 2, "entry", BYTEAOID, -1, 0);
    compat_finalize(descriptor);
    AttrNumber attribute = 1;
    Oid operation = Int8LessOperator;
    Oid collation = InvalidOid;
    bool nulls_first = false;
    sort->sort = compat_sort_begin(descriptor, &attribute, &operation, &collation, &nulls_first,
                                   sort->memory, coordinate);
    sort->in = MakeSingleTupleTableSlot(descriptor, &TTSOpsVirtual);
    sort->out = MakeSingleTupleTableSlot(descriptor, &TTSOpsMinimalTuple);
    const Size bytes = VARHDRSZ + payload_bytes(sort);
    sort->entry = static_cast<bytea*>(palloc0(bytes));
    SET_VARSIZE(sort->entry, bytes);
}

// The order of keys, for a tuplesort of signed numbers.
int64 signed_key(uint64 key) {
    return static_cast<int64>(key ^ uint64{1} << 63);
}
uint64 unsigned_key(int64 key) {
    return static_cast<uint64>(key) ^ uint64 { 1 } << 63;
}

void put_tuple(EntrySort* sort, uint64 key, float offset, const uint8* code,
               const uint8* attributes, const uint8* refinement) {
    char* data = VARDATA(sort->entry);
    const auto put = [&data](const void* from, Size bytes) {
        if (bytes > 0) memcpy(data, from, bytes);
        data += bytes;
    };
    put(&offset, sizeof(float));
    put(code, sort->m);
    put(attributes, sort->attribute_bytes);
    put(refinement, sort->refinement_bytes);
    ExecClearTuple(sort->in);
    sort->in->tts_values[0] = Int64GetDatum(signed_key(key));
    sort->in->tts_values[1] = PointerGetDatum(sort->entry);
    sort->in->tts_isnull[0] = sort->in->tts_isnull[1] = false;
    ExecStoreVirtualTuple(sort->in);
    tuplesort_puttupleslot(sort->sort, sort->in);
}

// Called when the rows no longer fit into memory.
void move_to_tuplesort(EntrySort* sort) {
    const MemoryContext before = MemoryContextSwitchTo(MemoryContextGetParent(sort->context));
    begin_tuplesort(sort, nullptr);
    for (Size first = 0; first < sort->count; first += chunk_rows(sort)) {
        for (Size row = first; row < Min(first + chunk_rows(sort), sort->count); ++row) {
            const EntryPlace place = entry_place(sort, row);
            put_tuple(sort, *place.key, *place.offset, place.code, place.attributes,
                      place.refinement);
            if (row % 4096 == 0) CHECK_FOR_INTERRUPTS();
        }
        pfree(sort->chunks[first >> sort->chunk_shift]);
    }
    MemoryContextDelete(sort->context);
    sort->chunks = nullptr;
    MemoryContextSwitchTo(before);
}

uint64 entry_key(const EntrySort* sort, uint32 list, uint64 tid) {
    if (sort->tid_bits == all_tid_bits) return uint64{list} << all_tid_bits | tid;
    const uint64 offset = tid & 0xffff;
    if (offset >= 1 << offset_bits)
        ereport(
            ERROR,
            (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
             errmsg("cannot build an index with more than %d lists on this table", max_plain_lists),
             errdetail("Its access method has rows with offset %d, and only offsets up to %d "
                       "are supported with more lists than that.",
                       static_cast<int>(offset), (1 << offset_bits) - 1)));
    return uint64{list} << short_tid_bits | tid >> 16 << offset_bits | offset;
}

uint32 list_in(const EntrySort* sort, uint64 key) {
    return static_cast<uint32>(key >> sort->tid_bits);
}

uint64 tid_in(const EntrySort* sort, uint64 key) {
    const uint64 tid = key & ((uint64{1} << sort->tid_bits) - 1);
    if (sort->tid_bits == all_tid_bits) return tid;
    return tid >> offset_bits << 16 | (tid & ((1 << offset_bits) - 1));
}

// Stores the rows from `first` to `end`, for which there must be room.
void put_in_memory(EntrySort* sort, const EncodedRows& rows, Size first, Size end) {
    while (first < end) {
        const Size at = sort->count & (chunk_rows(sort) - 1);
        if (at == 0)
            sort->chunks[sort->count >> sort->chunk_shift] =
                static_cast<char*>(alloc_large(sort->context, chunk_bytes(sort)));
        const Size here = Min(end - first, chunk_rows(sort) - at);
        const EntryPlace place = entry_place(sort, sort->count);
        for (Size i = 0; i < here; ++i)
            place.key[i] = entry_key(sort, rows.lists[first + i], rows.tids[first + i]);
        memcpy(place.offset, rows.offsets + first, here * sizeof(float));
        memcpy(place.code, rows.codes + first * sort->m, here * sort->m);
        if (sort->attribute_bytes > 0)
            memcpy(place.attributes, rows.attributes + first * sort->attribute_bytes,
                   here * sort->attribute_bytes);
        if (sort->refinement_bytes > 0)
            memcpy(place.refinement, rows.refinements + first * sort->refinement_bytes,
                   here * sort->refinement_bytes);
        sort->count += here;
        first += here;
    }
}

void sort_in_memory(EntrySort* sort, uint32 lists, int threads) {
    const uint32 groups = row_groups(lists);
    sort->order =
        static_cast<KeyedRow*>(alloc_large(sort->context, sort->count * sizeof(KeyedRow)));
    sort->starts = static_cast<uint64*>(
        MemoryContextAllocHuge(sort->context, (Size{groups} + 1) * sizeof(uint64)));
    guarded_interruptibly([&] {
        Workers workers(threads, query_interrupts());
        // A chunk begins with its keys.
        sort_by_group(
            workers,
            {reinterpret_cast<uint64* const*>(sort->chunks), chunk_rows(sort), sort->count},
            sort->tid_bits, groups, sort->order, sort->starts);
    });
}

}  // namespace

EntrySort* begin_entry_sort(const EntrySortShape& shape, SortCoordinate coordinate) {
    EntrySort* sort = static_cast<EntrySort*>(palloc0(sizeof(EntrySort)));
    sort->tid_bits = tid_bits_for(shape.lists);
    sort->m = shape.m;
    sort->attribute_bytes = shape.attribute_bytes;
    sort->refinement_bytes = shape.refinement_bytes;
    sort->memory = shape.memory;
    if (!coordinate) begin_in_memory(sort);
    if (!sort->chunks) begin_tuplesort(sort, coordinate);
    return sort;
}

void sort_rows(void* state, const EncodedRows& rows) {
    EntrySort* sort = static_cast<EntrySort*>(state);
    Size first = 0;
    if (sort->chunks) {
        first = Min(rows.count, sort->room - sort->count);
        put_in_memory(sort, rows, 0, first);
        if (first < rows.count) move_to_tuplesort(sort);
    }
    for (; first < rows.count; ++first)
        put_tuple(sort, entry_key(sort, rows.lists[first], rows.tids[first]), rows.offsets[first],
                  rows.codes + first * sort->m, rows.attributes + first * sort->attribute_bytes,
                  rows.refinements + first * sort->refinement_bytes);
}

void perform_entry_sort(EntrySort* sort, uint32 lists, int threads) {
    if (sort->chunks)
        sort_in_memory(sort, lists, threads);
    else
        tuplesort_performsort(sort->sort);
}

const uint64* list_starts(const EntrySort* sort) {
    return sort->chunks ? sort->starts : nullptr;
}

MemoryContext entries_context(const EntrySort* sort) {
    return sort->context;
}

EncodedRow sorted_row(const EntrySort* sort, uint64 at) {
    // Rows of a list are scattered in memory: prefetch.
    constexpr uint64 ahead = 16;
    if (at + ahead < sort->count) {
        const EntryPlace later = entry_place(sort, sort->order[at + ahead].row);
        __builtin_prefetch(later.offset);
        __builtin_prefetch(later.code);
        if (sort->attribute_bytes > 0) __builtin_prefetch(later.attributes);
        if (sort->refinement_bytes > 0) __builtin_prefetch(later.refinement);
    }
    const uint64 key = sort->order[at].key;
    const EntryPlace place = entry_place(sort, sort->order[at].row);
    return {list_in(sort, key), tid_in(sort, key), *place.offset,
            place.code,         place.attributes,  place.refinement};
}

bool next_sorted_row(EntrySort* sort, EncodedRow* row) {
    if (sort->chunks) {
        if (sort->next == sort->count) return false;
        *row = sorted_row(sort, sort->next++);
        return true;
    }
    if (!tuplesort_gettupleslot(sort->sort, true, false, sort->out, nullptr)) return false;
    slot_getallattrs(sort->out);
    const uint64 key = unsigned_key(DatumGetInt64(sort->out->tts_values[0]));
    const char* data = VARDATA_ANY(DatumGetPointer(sort->out->tts_values[1]));
    row->list = list_in(sort, key);
    row->tid = tid_in(sort, key);
    memcpy(&row->offset, data, sizeof(float));
    row->code = reinterpret_cast<const uint8*>(data + sizeof(float));
    row->attributes = row->code + sort->m;
    row->refinement = row->attributes + sort->attribute_bytes;
    return true;
}

void end_entry_sort(EntrySort* sort) {
    if (sort->chunks) {
        MemoryContextDelete(sort->context);
    } else {
        ExecDropSingleTupleTableSlot(sort->in);
        ExecDropSingleTupleTableSlot(sort->out);
        tuplesort_end(sort->sort);
        pfree(sort->entry);
    }
    pfree(sort);
}

}  // namespace pgwarp
