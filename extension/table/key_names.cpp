#include <algorithm>
#include <cstring>

#include "extension/table/key_names.h"

extern "C" {
#include "access/itup.h"
#include "access/nbtree.h"
#include "access/toast_compression.h"
#include "access/toast_internals.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
}

namespace pgwarp {

struct KeyNames {
    MemoryContext context;  // of this
    MemoryContext texts;    // of the names
    Size bytes;             // of all names
    Size most_bytes;
    bool must_be_short;  // require_short_keys()
    text** names;        // (room), by number
    Size count;
    Size room;
    uint32* slots;  // (slot_count), a power of two: number + 1; 0: free
    Size slot_count;
};

namespace {

constexpr Size least_slots = 1024;
// A name beside its text: its header in memory, its place in `names`, its slots.
constexpr Size name_bytes = 40;

bool is_integer(Oid base) {
    return base == INT8OID || base == INT4OID || base == INT2OID;
}

void make_room(KeyNames* names) {
    names->room = std::max<Size>(least_slots / 2, 2 * names->room);
    const Size bytes = names->room * sizeof(text*);
    names->names =
        static_cast<text**>(names->names ? repalloc_huge(names->names, bytes)
                                         : MemoryContextAllocHuge(names->context, bytes));
}

// The slot of a name, or the free one where it belongs.
uint32* slot_of(const KeyNames* names, const text* name) {
    const char* data = VARDATA_ANY(name);
    const Size length = VARSIZE_ANY_EXHDR(name);
    Size at = hash_bytes(reinterpret_cast<const unsigned char*>(data), static_cast<int>(length));
    while (true) {
        uint32* slot = &names->slots[at++ & (names->slot_count - 1)];
        if (*slot == 0) return slot;
        const text* other = names->names[*slot - 1];
        if (VARSIZE_ANY_EXHDR(other) == length && memcmp(VARDATA_ANY(other), data, length) == 0)
            return slot;
    }
}

void make_slots(KeyNames* names, Size count) {
    if (names->slots) pfree(names->slots);
    names->slot_count = count;
    names->slots = static_cast<uint32*>(MemoryContextAllocExtended(
        names->context, count * sizeof(uint32), MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
    for (Size i = 0; i < names->count; ++i)
        *slot_of(names, names->names[i]) = static_cast<uint32>(i) + 1;
}

// What an entry of a btree may take.
constexpr Size most_entry_bytes =
    MAXALIGN_DOWN((BLCKSZ - MAXALIGN(SizeOfPageHeaderData + 3 * sizeof(ItemIdData)) -
                   MAXALIGN(sizeof(BTPageOpaqueData))) /
                  3) -
    MAXALIGN(sizeof(ItemPointerData));

// The entry has the name compressed, where that makes it shorter.
void check_length(const text* name) {
    const auto entry_bytes = [](Size bytes) {
        return MAXALIGN(sizeof(IndexTupleData) + INTALIGN(bytes) + sizeof(int32));
    };
    if (entry_bytes(VARHDRSZ + VARSIZE_ANY_EXHDR(name)) <= most_entry_bytes) return;
    const Datum compressed =
        toast_compress_datum(PointerGetDatum(name), static_cast<char>(default_toast_compression));
    const bool fits = DatumGetPointer(compressed) &&
                      entry_bytes(VARSIZE_ANY(DatumGetPointer(compressed))) <= most_entry_bytes;
    if (DatumGetPointer(compressed)) pfree(DatumGetPointer(compressed));
    if (fits) return;
    const char* data = VARDATA_ANY(name);
    const auto length = static_cast<int>(VARSIZE_ANY_EXHDR(name));
    ereport(ERROR,
            (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
             errmsg("key \"%.*s...\" is too long for a primary key", pg_mbcliplen(data, length, 40),
                    data),
             errdetail("It has %d bytes.", length),
             errhint("Use keys of 2,600 bytes at most: numbers, uuids, or hashes of these.")));
}

}  // namespace

KeyNames* new_key_names(Size most_bytes) {
    auto* names = static_cast<KeyNames*>(palloc0(sizeof(KeyNames)));
    names->context = CurrentMemoryContext;
    names->texts = AllocSetContextCreate(CurrentMemoryContext, "key names", ALLOCSET_DEFAULT_SIZES);
    names->most_bytes = most_bytes;
    make_slots(names, least_slots);
    return names;
}

KeyNames* names_in_result(const ReturnSetInfo* result, int column, Size most_bytes) {
    return TupleDescAttr(result->setDesc, column)->atttypid == TEXTOID ? new_key_names(most_bytes)
                                                                       : nullptr;
}

bool is_key_type(const KeyNames* names, Oid type, Oid* base) {
    *base = getBaseType(type);
    return is_integer(*base) ||
           (names && (*base == UUIDOID || *base == TEXTOID || *base == VARCHAROID));
}

void report_key_type(const KeyNames* names, const char* column, const char* table, Oid type) {
    ereport(ERROR,
            (errcode(ERRCODE_DATATYPE_MISMATCH),
             errmsg("column \"%s\" of table \"%s\" is of type %s, not %s", column, table,
                    format_type_be(type), names ? "a type of keys" : "an integer"),
             names ? errhint("Keys are of type uuid, text, varchar, bigint, integer or smallint.")
                   : errhint("Keys are of type bigint, integer or smallint. For uuid and text "
                             "there are functions whose names end in _text.")));
}

int64 key_of(KeyNames* names, Datum value, Oid base) {
    const auto integer = [&] {
        return base == INT8OID   ? DatumGetInt64(value)
               : base == INT4OID ? int64{DatumGetInt32(value)}
                                 : int64{DatumGetInt16(value)};
    };
    if (!names) return integer();
    if (base == TEXTOID || base == VARCHAROID) {
        text* name = DatumGetTextPP(value);
        const int64 number = number_key_name(names, name);
        if (PointerGetDatum(name) != value) pfree(name);
        return number;
    }
    // Room for an int64 or a uuid, as text.
    struct {
        alignas(int32) char bytes[VARHDRSZ + 40];
    } buffer;
    char* data = buffer.bytes + VARHDRSZ;
    if (base == UUIDOID) {
        char* written = DatumGetCString(DirectFunctionCall1(uuid_out, value));
        strcpy(data, written);
        pfree(written);
    } else {
        pg_lltoa(integer(), data);
    }
    SET_VARSIZE(buffer.bytes, VARHDRSZ + strlen(data));
    return number_key_name(names, reinterpret_cast<const text*>(buffer.bytes));
}

int64 number_key_name(KeyNames* names, const text* name) {
    uint32* slot = slot_of(names, name);
    if (*slot != 0) return *slot - 1;
    const Size length = VARSIZE_ANY_EXHDR(name);
    if (names->must_be_short) check_length(name);
    names->bytes += length + name_bytes;
    if (names->bytes > names->most_bytes || names->count == PG_INT32_MAX)
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                        errmsg("keys do not fit into maintenance_work_mem"),
                        errdetail("There is room for %zu of them.", names->count),
                        errhint("Increase maintenance_work_mem, or use integers as keys.")));
    if (names->count == names->room) make_room(names);
    text* copy = static_cast<text*>(MemoryContextAlloc(names->texts, VARHDRSZ + length));
    SET_VARSIZE(copy, VARHDRSZ + length);
    memcpy(VARDATA(copy), VARDATA_ANY(name), length);
    const Size number = names->count++;
    names->names[number] = copy;
    *slot = static_cast<uint32>(number) + 1;
    if (2 * names->count > names->slot_count) make_slots(names, 2 * names->slot_count);
    return static_cast<int64>(number);
}

void require_short_keys(KeyNames* names) {
    names->must_be_short = true;
}

int64 find_key_name(const KeyNames* names, const text* name) {
    return int64{*slot_of(names, name)} - 1;
}

Datum key_datum(const KeyNames* names, int64 key) {
    return names ? PointerGetDatum(names->names[key]) : Int64GetDatum(key);
}

const char* key_text(const KeyNames* names, int64 key) {
    return names ? text_to_cstring(names->names[key])
                 : psprintf("%lld", static_cast<long long>(key));
}

bool key_is_less(const KeyNames* names, int64 a, int64 b) {
    if (!names) return a < b;
    const text* first = names->names[a];
    const text* second = names->names[b];
    const Size lengths[] = {VARSIZE_ANY_EXHDR(first), VARSIZE_ANY_EXHDR(second)};
    const int compared =
        memcmp(VARDATA_ANY(first), VARDATA_ANY(second), std::min(lengths[0], lengths[1]));
    return compared < 0 || (compared == 0 && lengths[0] < lengths[1]);
}

void forget_key_names(KeyNames* names) {
    MemoryContextReset(names->texts);
    names->bytes = names->count = 0;
    std::fill_n(names->slots, names->slot_count, 0u);
}

}  // namespace pgwarp
