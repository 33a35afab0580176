#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/sort_keys.h"
#include "extension/guard.h"
#include "extension/ivfpq_sort.h"

extern "C" {
#include "catalog/pg_operator_d.h"
#include "catalog/pg_type_d.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/memutils.h"
}

namespace pgwarp {

// Rows that one process sorts stay in memory as long as they fit, and are sorted by threads there.
// Else they go through a tuplesort, which spills and has its runs merged across processes: a tuple
// is a key of list and TID, then offset and code.
struct EntrySort {
    uint32 m;
    int memory;  // kilobytes

    // In memory; `chunks` is null where a tuplesort has the rows.
    MemoryContext context;
    char** chunks;  // of chunk_rows keys, then as many offsets with their codes
    Size room;      // rows
    Size count;
    KeyedRow* order;  // once sorted
    uint64* starts;   // (lists + 1)
    Size next;

    Tuplesortstate* sort;
    TupleTableSlot* in;
    TupleTableSlot* out;
    bytea* entry;
};

namespace {

constexpr int tid_bits = 48;
static_assert(max_lists <= 1 << (63 - tid_bits), "list and TID share one int64");
constexpr uint64 tid_mask = (uint64{1} << tid_bits) - 1;
constexpr Size chunk_rows = 4096;

Size payload_bytes(const EntrySort* sort) {
    return sizeof(float) + sort->m;
}

uint64* key_of(const EntrySort* sort, Size row) {
    return reinterpret_cast<uint64*>(sort->chunks[row / chunk_rows]) + row % chunk_rows;
}

char* payload_of(const EntrySort* sort, Size row) {
    return sort->chunks[row / chunk_rows] + chunk_rows * sizeof(uint64) +
           row % chunk_rows * payload_bytes(sort);
}

void begin_in_memory(EntrySort* sort) {
    // A quarter stays free: should the rows not fit, chunks and tuplesort are there together for a
    // while. Sorting takes an array beside the rows, and counts for each thread.
    const Size bytes = static_cast<Size>(sort->memory) * 1024 / 4 * 3;
    const Size row_bytes = sizeof(uint64) + payload_bytes(sort) + 2 * sizeof(KeyedRow);
    sort->room = bytes / row_bytes / chunk_rows * chunk_rows;
    if (sort->room == 0) return;
    sort->context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq entries", ALLOCSET_DEFAULT_SIZES);
    sort->chunks = static_cast<char**>(
        MemoryContextAlloc(sort->context, sort->room / chunk_rows * sizeof(char*)));
}

void begin_tuplesort(EntrySort* sort, SortCoordinate coordinate) {
    TupleDesc descriptor = CreateTemplateTupleDesc(2);
    TupleDescInitEntry(descriptor, 1, "key", INT8OID, -1, 0);
    TupleDescInitEntry(descriptor, 2, "entry", BYTEAOID, -1, 0);
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

void put_tuple(EntrySort* sort, uint64 key) {
    ExecClearTuple(sort->in);
    sort->in->tts_values[0] = Int64GetDatum(static_cast<int64>(key));
    sort->in->tts_values[1] = PointerGetDatum(sort->entry);
    sort->in->tts_isnull[0] = sort->in->tts_isnull[1] = false;
    ExecStoreVirtualTuple(sort->in);
    tuplesort_puttupleslot(sort->sort, sort->in);
}

// More rows than fit into memory.
void move_to_tuplesort(EntrySort* sort) {
    const MemoryContext before = MemoryContextSwitchTo(MemoryContextGetParent(sort->context));
    begin_tuplesort(sort, nullptr);
    for (Size first = 0; first < sort->count; first += chunk_rows) {
        for (Size row = first; row < Min(first + chunk_rows, sort->count); ++row) {
            memcpy(VARDATA(sort->entry), payload_of(sort, row), payload_bytes(sort));
            put_tuple(sort, *key_of(sort, row));
        }
        pfree(sort->chunks[first / chunk_rows]);
        CHECK_FOR_INTERRUPTS();
    }
    MemoryContextDelete(sort->context);
    sort->chunks = nullptr;
    MemoryContextSwitchTo(before);
}

void put_in_memory(EntrySort* sort, uint64 key, const EncodedRow& row) {
    const Size at = sort->count;
    if (at % chunk_rows == 0)
        sort->chunks[at / chunk_rows] = static_cast<char*>(
            MemoryContextAlloc(sort->context, chunk_rows * (sizeof(uint64) + payload_bytes(sort))));
    *key_of(sort, at) = key;
    char* payload = payload_of(sort, at);
    memcpy(payload, &row.offset, sizeof(float));
    memcpy(payload + sizeof(float), row.code, sort->m);
    ++sort->count;
}

void sort_in_memory(EntrySort* sort, uint32 lists, int threads) {
    sort->order = static_cast<KeyedRow*>(
        MemoryContextAllocHuge(sort->context, Max(sort->count, Size{1}) * sizeof(KeyedRow)));
    sort->starts = static_cast<uint64*>(
        MemoryContextAllocHuge(sort->context, (Size{lists} + 1) * sizeof(uint64)));
    guarded_interruptibly([&] {
        Workers workers(threads, &QueryCancelPending, &ProcDiePending);
        // A chunk begins with its keys.
        sort_by_group(workers,
                      {reinterpret_cast<uint64* const*>(sort->chunks), chunk_rows, sort->count},
                      tid_bits, lists, sort->order, sort->starts);
    });
}

}  // namespace

EntrySort* begin_entry_sort(uint32 m, int memory, SortCoordinate coordinate) {
    EntrySort* sort = static_cast<EntrySort*>(palloc0(sizeof(EntrySort)));
    sort->m = m;
    sort->memory = memory;
    if (!coordinate) begin_in_memory(sort);
    if (!sort->chunks) begin_tuplesort(sort, coordinate);
    return sort;
}

void sort_row(void* state, const EncodedRow& row) {
    EntrySort* sort = static_cast<EntrySort*>(state);
    const uint64 key = static_cast<uint64>(row.list) << tid_bits | row.tid;
    if (sort->chunks && sort->count == sort->room) move_to_tuplesort(sort);
    if (sort->chunks) {
        put_in_memory(sort, key, row);
        return;
    }
    char* data = VARDATA(sort->entry);
    memcpy(data, &row.offset, sizeof(float));
    memcpy(data + sizeof(float), row.code, sort->m);
    put_tuple(sort, key);
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

EncodedRow sorted_row(const EntrySort* sort, uint64 at) {
    // Rows of one list lie all over memory.
    constexpr uint64 ahead = 16;
    if (at + ahead < sort->count) __builtin_prefetch(payload_of(sort, sort->order[at + ahead].row));
    const uint64 key = sort->order[at].key;
    const char* data = payload_of(sort, sort->order[at].row);
    EncodedRow row;
    row.list = static_cast<uint32>(key >> tid_bits);
    row.tid = key & tid_mask;
    memcpy(&row.offset, data, sizeof(float));
    row.code = reinterpret_cast<const uint8*>(data + sizeof(float));
    return row;
}

void find_lists(const EntrySort* sort, const uint64* tids, uint32 count, uint32* lists) {
    // A filter in the first cache tells of nearly every row that it is none of them.
    constexpr int filter_bits = 18;
    const auto hash = [](uint64 tid) { return tid * 0x9E3779B97F4A7C15 >> (64 - filter_bits); };
    uint64* filter = static_cast<uint64*>(palloc0((Size{1} << filter_bits) / 8));
    KeyedRow* wanted = static_cast<KeyedRow*>(palloc(Max(Size{count}, Size{1}) * sizeof(KeyedRow)));
    for (uint32 i = 0; i < count; ++i) {
        lists[i] = PG_UINT32_MAX;
        wanted[i] = {tids[i], i};
        filter[hash(tids[i]) / 64] |= uint64{1} << hash(tids[i]) % 64;
    }
    const auto before = [](const KeyedRow& a, const KeyedRow& b) { return a.key < b.key; };
    std::sort(wanted, wanted + count, before);
    for (Size at = 0; at < sort->count; ++at) {
        const uint64 tid = sort->order[at].key & tid_mask;
        if (!(filter[hash(tid) / 64] >> hash(tid) % 64 & 1)) continue;
        // A row may be the neighbor of several.
        for (const KeyedRow* found =
                 std::lower_bound(wanted, wanted + count, KeyedRow{tid, 0}, before);
             found != wanted + count && found->key == tid; ++found)
            lists[found->row] = static_cast<uint32>(sort->order[at].key >> tid_bits);
    }
    pfree(wanted);
    pfree(filter);
}

bool next_sorted_row(EntrySort* sort, EncodedRow* row) {
    if (sort->chunks) {
        if (sort->next == sort->count) return false;
        *row = sorted_row(sort, sort->next++);
        return true;
    }
    if (!tuplesort_gettupleslot(sort->sort, true, false, sort->out, nullptr)) return false;
    slot_getallattrs(sort->out);
    const uint64 key = static_cast<uint64>(DatumGetInt64(sort->out->tts_values[0]));
    const char* data = VARDATA_ANY(DatumGetPointer(sort->out->tts_values[1]));
    row->list = static_cast<uint32>(key >> tid_bits);
    row->tid = key & tid_mask;
    memcpy(&row->offset, data, sizeof(float));
    row->code = reinterpret_cast<const uint8*>(data + sizeof(float));
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
