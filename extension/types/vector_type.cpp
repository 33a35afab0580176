#include <cstring>

#include "kernels/row_elements.h"
#include "extension/types/halfvec.h"
#include "extension/types/vector_type.h"

extern "C" {
#include "access/htup_details.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

// vector_io.cpp
Datum pgwarp_vector_in(PG_FUNCTION_ARGS);
Datum pgwarp_halfvec_in(PG_FUNCTION_ARGS);
}

namespace pgwarp {

namespace {

// The types of vectors that this session has met. A change of any type in the catalog empties it.
struct KnownType {
    Oid type;  // a base type
    VectorFormat format;
};
constexpr int max_known = 8;
KnownType known[max_known];
int known_count = 0;

void forget_types() {
    known_count = 0;
}

// Whether a path names pgvector's library, as "$libdir/vector" does.
bool is_pgvector(const char* library) {
    const char* slash = strrchr(library, '/');
    const char* name = slash ? slash + 1 : library;
    return strcmp(name, "vector") == 0 || strcmp(name, "vector" DLSUFFIX) == 0;
}

// The symbol of a function in pgvector's library, in the current memory context; null where the
// function is another.
const char* pgvector_symbol(Oid function) {
    HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
    if (!HeapTupleIsValid(tuple)) elog(ERROR, "cache lookup failed for function %u", function);
    const char* found = nullptr;
    if (reinterpret_cast<Form_pg_proc>(GETSTRUCT(tuple))->prolang == ClanguageId) {
        bool no_symbol;
        bool no_library;
        const Datum symbol = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &no_symbol);
        const Datum library = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_probin, &no_library);
        if (!no_symbol && !no_library && is_pgvector(TextDatumGetCString(library)))
            found = TextDatumGetCString(symbol);
    }
    ReleaseSysCache(tuple);
    return found;
}

// pgvector's types, by their input function. They store values as ours do.
VectorFormat pgvector_format(Oid input) {
    const char* symbol = pgvector_symbol(input);
    if (!symbol) return VectorFormat::none;
    if (strcmp(symbol, "vector_in") == 0) return VectorFormat::float32;
    if (strcmp(symbol, "halfvec_in") == 0) return VectorFormat::float16;
    return VectorFormat::none;
}

// A type is recognised by its input function: its name and schema may be any, and none but a
// superuser can make a type with such a function.
VectorFormat look_up_format(Oid base) {
    Oid input;
    Oid parameter;
    getTypeInputInfo(base, &input, &parameter);
    const VectorFormat format = pgvector_format(input);
    if (format != VectorFormat::none) return format;
    FmgrInfo function;
    fmgr_info(input, &function);
    if (function.fn_addr == pgwarp_vector_in) return VectorFormat::float32;
    if (function.fn_addr == pgwarp_halfvec_in) return VectorFormat::float16;
    return VectorFormat::none;
}

VectorFormat known_format(Oid type) {
    for (int i = 0; i < known_count; ++i)
        if (known[i].type == type) return known[i].format;
    return VectorFormat::none;
}

VectorFormat format_of(Oid base) {
    static bool registered = false;
    // The cache is an int up to 18, and an enumeration from 19 on: the lambda takes either.
    if (!registered)
        CacheRegisterSyscacheCallback(
            TYPEOID, [](Datum, auto, uint32) { forget_types(); }, Datum{0});
    registered = true;
    VectorFormat format = known_format(base);
    if (format != VectorFormat::none) return format;
    format = look_up_format(base);
    if (format != VectorFormat::none && known_count < max_known)
        known[known_count++] = {base, format};
    return format;
}

// The part of a value behind its varlena header, which may be of four bytes or of one.
constexpr Size header_bytes = offsetof(Vector, x) - offsetof(Vector, dims);
static_assert(header_bytes == offsetof(HalfVector, x) - offsetof(HalfVector, dims));

[[noreturn]] void report_no_type() {
    elog(ERROR, "not a type of vectors");
}

template <typename Any>
uint32 plain_dims(const varlena* plain) {
    int16 dims;
    memcpy(&dims, VARDATA_ANY(plain), sizeof(dims));
    Assert(VARSIZE_ANY_EXHDR(plain) == header_bytes + Size(dims) * sizeof(typename Any::Element));
    return static_cast<uint32>(dims);
}

}  // namespace

bool is_pgvector_function(Oid function) {
    return pgvector_symbol(function) != nullptr;
}

VectorType VectorType::of(Oid type, int32 typmod) {
    const VectorFormat known = known_format(type);
    if (known != VectorFormat::none) return {known, declared_dims(typmod)};
    const Oid base = getBaseTypeAndTypmod(type, &typmod);
    return {format_of(base), declared_dims(typmod)};
}

const char* VectorType::name() const {
    switch (format_) {
        case VectorFormat::none:
            break;
        case VectorFormat::float32:
            return Vector::type_name;
        case VectorFormat::float16:
            return HalfVector::type_name;
    }
    report_no_type();
}

uint32 VectorType::value_bytes() const {
    switch (format_) {
        case VectorFormat::none:
            break;
        case VectorFormat::float32:
            return sizeof(float);
        case VectorFormat::float16:
            return sizeof(float16);
    }
    report_no_type();
}

RowElements VectorType::elements() const {
    switch (format_) {
        case VectorFormat::none:
            break;
        case VectorFormat::float32:
            return RowElements::float32;
        case VectorFormat::float16:
            return RowElements::float16;
    }
    report_no_type();
}

bool VectorType::copy_elements(const varlena* plain, uint32 dims, void* to) const {
    if (dims_of(plain) != dims) return false;
    memcpy(to, VARDATA_ANY(plain) + header_bytes, dims * value_bytes());
    return true;
}

VectorView VectorType::view(Datum datum) const {
    return view(pg_detoast_datum(reinterpret_cast<varlena*>(DatumGetPointer(datum))));
}

VectorView VectorType::view(const varlena* detoasted) const {
    switch (format_) {
        case VectorFormat::none:
            break;
        case VectorFormat::float32: {
            const auto* vector = reinterpret_cast<const Vector*>(detoasted);
            return {vector->x, static_cast<uint32>(vector->dims)};
        }
        case VectorFormat::float16: {
            const auto* vector = reinterpret_cast<const HalfVector*>(detoasted);
            const auto dims = static_cast<uint32>(vector->dims);
            auto* values = static_cast<float*>(palloc(dims * sizeof(float)));
            to_floats(vector->x, dims, values);
            return {values, dims};
        }
    }
    report_no_type();
}

StoredVector VectorType::stored(const varlena* detoasted) const {
    switch (format_) {
        case VectorFormat::none:
            break;
        case VectorFormat::float32: {
            const auto* vector = reinterpret_cast<const Vector*>(detoasted);
            return {vector->x, static_cast<uint32>(vector->dims), format_};
        }
        case VectorFormat::float16: {
            const auto* vector = reinterpret_cast<const HalfVector*>(detoasted);
            return {vector->x, static_cast<uint32>(vector->dims), format_};
        }
    }
    report_no_type();
}

void VectorType::end_view(const VectorView& view, const varlena* detoasted) const {
    const char* values = reinterpret_cast<const char*>(view.values);
    const char* value = reinterpret_cast<const char*>(detoasted);
    if (values < value || values >= value + VARSIZE(detoasted)) pfree(const_cast<char*>(values));
}

uint32 VectorType::dims_of(const varlena* plain) const {
    switch (format_) {
        case VectorFormat::none:
            break;
        case VectorFormat::float32:
            return plain_dims<Vector>(plain);
        case VectorFormat::float16:
            return plain_dims<HalfVector>(plain);
    }
    report_no_type();
}

bool VectorType::read(const varlena* plain, uint32 dims, float* to) const {
    switch (format_) {
        case VectorFormat::none:
            break;
        case VectorFormat::float32:
            if (plain_dims<Vector>(plain) != dims) return false;
            memcpy(to, VARDATA_ANY(plain) + header_bytes, dims * sizeof(float));
            return true;
        case VectorFormat::float16:
            if (plain_dims<HalfVector>(plain) != dims) return false;
            to_floats(VARDATA_ANY(plain) + header_bytes, dims, to);
            return true;
    }
    report_no_type();
}

Datum VectorType::make(const float* values, uint32 dims) const {
    switch (format_) {
        case VectorFormat::none:
            break;
        case VectorFormat::float32: {
            Vector* vector = new_value<Vector>(static_cast<int>(dims));
            memcpy(vector->x, values, dims * sizeof(float));
            return PointerGetDatum(vector);
        }
        case VectorFormat::float16: {
            HalfVector* vector = new_value<HalfVector>(static_cast<int>(dims));
            set_elements(vector, values);
            return PointerGetDatum(vector);
        }
    }
    report_no_type();
}

void VectorType::round(float* values, uint32 dims) const {
    switch (format_) {
        case VectorFormat::none:
            break;
        case VectorFormat::float32:
            return;
        case VectorFormat::float16: {
            HalfVector* vector = new_value<HalfVector>(static_cast<int>(dims));
            set_elements(vector, values);
            to_floats(vector->x, dims, values);
            pfree(vector);
            return;
        }
    }
    report_no_type();
}

varlena* VectorType::copy(Datum datum) {
    return pg_detoast_datum_copy(reinterpret_cast<varlena*>(DatumGetPointer(datum)));
}

}  // namespace pgwarp
