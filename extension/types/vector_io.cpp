// Types of vectors in text, [1,2.5,-3e-05], and in the binary protocol: int16 dimensions, int16
// zero, then the elements, of four bytes or of two, all big-endian.

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "kernels/decimal.h"
#include "kernels/bfloat16.h"
#include "extension/types/halfvec.h"

extern "C" {
#include "common/shortest_dec.h"
#include "lib/stringinfo.h"
#include "libpq/pqformat.h"
#include "port/pg_bswap.h"
#include "utils/array.h"
}

namespace pgwarp {
namespace {

// isspace() depends on the locale.
const char* skip_spaces(const char* text) {
    while (*text == ' ' || (*text >= '\t' && *text <= '\r')) text++;
    return text;
}

// The parser of a vector's text.
struct TextReader {
    const char* literal;  // the whole text, for messages
    const char* limit;    // its terminating zero
    const char* position;
    fmNodePtr context;  // of the input function, for soft errors
    const char* type;
    float range;  // what is as large or larger is out of the type's range

    bool reject(const char* detail = nullptr) const {
        PGWARP_REJECT(context, false,
                      (errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
                       errmsg("invalid input syntax for type %s: \"%s\"", type, literal),
                       detail ? errdetail("%s", detail) : 0));
    }

    bool open() {
        position = skip_spaces(position);
        if (*position != '[') return reject("Vector contents must start with \"[\".");
        position = skip_spaces(position + 1);
        return *position != ']' || check_dims(0, type, context);
    }

    bool reject_range(const char* end) const {
        PGWARP_REJECT(context, false,
                      (errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
                       errmsg("\"%s\" is out of range for type %s",
                              pnstrdup(position, static_cast<Size>(end - position)), type)));
    }

    bool read_element(float* value) {
        position = skip_spaces(position);
        if (const char* end = parse_plain_decimal(position, limit, value)) {
            if (std::fabs(*value) >= range) return reject_range(end);
            position = end;
            return true;
        }
        char* end;
        errno = 0;
        *value = std::strtof(position, &end);
        if (end == position) return reject();
        // Underflow sets ERANGE, too, but its result, zero or nearly so, is accepted. An infinite
        // value that the text names is another error.
        const bool overflow = std::isinf(*value) ? errno == ERANGE : std::fabs(*value) >= range;
        if (overflow) return reject_range(end);
        position = end;
        return check_element(*value, type, context);
    }

    // After an element: sets whether another one follows.
    bool read_separator(bool* more) {
        position = skip_spaces(position);
        if (*position != ',' && *position != ']') return reject();
        *more = *position++ == ',';
        return true;
    }

    bool close() {
        position = skip_spaces(position);
        return *position == '\0' || reject("Junk after closing right brace.");
    }
};

// The parser's view of a type.
constexpr float range_of(const Vector*) {
    return std::numeric_limits<float>::infinity();
}
constexpr float range_of(const HalfVector*) {
    return halfvec_limit;
}

// Null where a soft error was saved.
template <typename Any>
Any* read_text(FunctionCallInfo fcinfo) {
    const char* literal = PG_GETARG_CSTRING(0);
    const int32 typmod = PG_GETARG_INT32(2);
    TextReader reader = {literal,        literal + std::strlen(literal),
                         literal,        fcinfo->context,
                         Any::type_name, range_of(static_cast<Any*>(nullptr))};

    // The number of elements is known only at the end; 64 kB of stack are cheaper than a pass to
    // count them.
    float elements[max_dims];
    int dims = 0;
    if (!reader.open()) return nullptr;
    for (bool more = true; more;) {
        if (dims == max_dims) {
            check_dims(dims + 1, Any::type_name, fcinfo->context);
            return nullptr;
        }
        if (!reader.read_element(&elements[dims++])) return nullptr;
        if (!reader.read_separator(&more)) return nullptr;
    }
    if (!reader.close()) return nullptr;
    if (!check_expected_dims(typmod, dims, fcinfo->context)) return nullptr;

    Any* result = new_value<Any>(dims);
    set_elements(result, elements);
    return result;
}

template <typename Any>
char* write_text(FunctionCallInfo fcinfo) {
    Any* vector = datum_get<Any>(PG_GETARG_DATUM(0));

    // FLOAT_SHORTEST_DECIMAL_LEN includes a terminating zero, which makes room for the separator.
    char* text = static_cast<char*>(
        palloc(static_cast<Size>(vector->dims) * FLOAT_SHORTEST_DECIMAL_LEN + 3));
    char* end = text;
    for (int i = 0; i < vector->dims; i++) {
        *end++ = i == 0 ? '[' : ',';
        end += float_to_shortest_decimal_bufn(to_float(vector->x[i]), end);
    }
    *end++ = ']';
    *end = '\0';

    PG_FREE_IF_COPY(vector, 0);
    return text;
}

int32 read_typmod(FunctionCallInfo fcinfo, const char* type) {
    int count;
    const int32* typmods = ArrayGetIntegerTypmods(PG_GETARG_ARRAYTYPE_P(0), &count);

    if (count != 1)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("invalid type modifier")));
    if (*typmods < 1)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("dimensions for type %s must be at least 1", type)));
    if (*typmods > max_dims)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("dimensions for type %s cannot exceed %d", type, max_dims)));
    return *typmods;
}

// Elements in the order of the network.
void read_elements(const char* from, Vector* vector) {
    for (int i = 0; i < vector->dims; i++) {
        uint32 bits;
        std::memcpy(&bits, from + static_cast<size_t>(i) * sizeof(bits), sizeof(bits));
        bits = pg_ntoh32(bits);
        std::memcpy(&vector->x[i], &bits, sizeof(bits));
    }
    check_elements(vector->x, vector->dims, Vector::type_name);
}

void read_elements(const char* from, HalfVector* vector) {
    for (int i = 0; i < vector->dims; i++) {
        uint16 bits;
        std::memcpy(&bits, from + static_cast<size_t>(i) * sizeof(bits), sizeof(bits));
        vector->x[i] = static_cast<float16>(pg_ntoh16(bits));
        if (!is_finite(vector->x[i])) check_element(to_float(vector->x[i]), HalfVector::type_name);
    }
}

void write_element(StringInfo message, float element) {
    uint32 bits;
    std::memcpy(&bits, &element, sizeof(bits));
    pq_writeint32(message, bits);
}

void write_element(StringInfo message, float16 element) {
    pq_writeint16(message, static_cast<uint16>(element));
}

template <typename Any>
Any* receive(FunctionCallInfo fcinfo) {
    auto* message = reinterpret_cast<StringInfo>(PG_GETARG_POINTER(0));
    const int32 typmod = PG_GETARG_INT32(2);
    const int dims = static_cast<int>(pq_getmsgint(message, sizeof(int16)));
    const int unused = static_cast<int>(pq_getmsgint(message, sizeof(int16)));

    check_dims_of<Any>(dims);
    check_expected_dims(typmod, dims);
    if (unused != 0)
        ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION),
                        errmsg("expected unused to be 0, not %d", unused)));

    const int bytes = dims * static_cast<int>(sizeof(typename Any::Element));
    const char* elements = pq_getmsgbytes(message, bytes);
    Any* result = new_value<Any>(dims);
    read_elements(elements, result);
    return result;
}

template <typename Any>
bytea* send(FunctionCallInfo fcinfo) {
    const Any* vector = datum_get<Any>(PG_GETARG_DATUM(0));
    StringInfoData message;

    // Enlarges the message once, rather than with a check and a call for each element.
    pq_begintypsend(&message);
    enlargeStringInfo(&message, vector->dims * static_cast<int>(sizeof(typename Any::Element)) + 4);
    pq_writeint16(&message, static_cast<uint16>(vector->dims));
    pq_writeint16(&message, static_cast<uint16>(vector->unused));
    for (int i = 0; i < vector->dims; i++) write_element(&message, vector->x[i]);
    return pq_endtypsend(&message);
}

}  // namespace
}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_vector_in) {
    Vector* vector = read_text<Vector>(fcinfo);
    if (!vector) PG_RETURN_NULL();
    PG_RETURN_POINTER(vector);
}

PGWARP_FUNCTION(pgwarp_vector_out) {
    PG_RETURN_CSTRING(write_text<Vector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_vector_typmod_in) {
    PG_RETURN_INT32(read_typmod(fcinfo, Vector::type_name));
}

PGWARP_FUNCTION(pgwarp_vector_recv) {
    PG_RETURN_POINTER(receive<Vector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_vector_send) {
    PG_RETURN_BYTEA_P(send<Vector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_halfvec_in) {
    HalfVector* vector = read_text<HalfVector>(fcinfo);
    if (!vector) PG_RETURN_NULL();
    PG_RETURN_POINTER(vector);
}

PGWARP_FUNCTION(pgwarp_halfvec_out) {
    PG_RETURN_CSTRING(write_text<HalfVector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_halfvec_typmod_in) {
    PG_RETURN_INT32(read_typmod(fcinfo, HalfVector::type_name));
}

PGWARP_FUNCTION(pgwarp_halfvec_recv) {
    PG_RETURN_POINTER(receive<HalfVector>(fcinfo));
}

PGWARP_FUNCTION(pgwarp_halfvec_send) {
    PG_RETURN_BYTEA_P(send<HalfVector>(fcinfo));
}
