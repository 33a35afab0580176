// The vector type in text, [1,2.5,-3e-05], and in the binary protocol: int16 dimensions, int16
// zero, then the elements as float4, all big-endian.

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "kernels/decimal.h"
#include "extension/types/vector.h"

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

    bool reject(const char* detail = nullptr) const {
        PGWARP_REJECT(context, false,
                      (errcode(ERRCODE_INVALID_TEXT_REPRESENTATION),
                       errmsg("invalid input syntax for type vector: \"%s\"", literal),
                       detail ? errdetail("%s", detail) : 0));
    }

    bool open() {
        position = skip_spaces(position);
        if (*position != '[') return reject("Vector contents must start with \"[\".");
        position = skip_spaces(position + 1);
        return *position != ']' || check_dims(0, context);
    }

    bool read_element(float* value) {
        position = skip_spaces(position);
        if (const char* end = parse_plain_decimal(position, limit, value)) {
            position = end;
            return true;
        }
        char* end;
        errno = 0;
        *value = std::strtof(position, &end);
        if (end == position) return reject();
        // Underflow sets ERANGE, too, but its result, zero or nearly so, is accepted.
        if (errno == ERANGE && std::isinf(*value))
            PGWARP_REJECT(context, false,
                          (errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
                           errmsg("\"%s\" is out of range for type vector",
                                  pnstrdup(position, static_cast<Size>(end - position)))));
        position = end;
        return check_element(*value, context);
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

}  // namespace
}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_vector_in) {
    const char* literal = PG_GETARG_CSTRING(0);
    const int32 typmod = PG_GETARG_INT32(2);
    TextReader reader = {literal, literal + std::strlen(literal), literal, fcinfo->context};

    // The number of elements is known only at the end; 64 kB of stack are cheaper than a pass to
    // count them.
    float elements[max_dims];
    int dims = 0;
    if (!reader.open()) PG_RETURN_NULL();
    for (bool more = true; more;) {
        if (dims == max_dims) {
            check_dims(dims + 1, fcinfo->context);
            PG_RETURN_NULL();
        }
        if (!reader.read_element(&elements[dims++])) PG_RETURN_NULL();
        if (!reader.read_separator(&more)) PG_RETURN_NULL();
    }
    if (!reader.close()) PG_RETURN_NULL();
    if (!check_expected_dims(typmod, dims, fcinfo->context)) PG_RETURN_NULL();

    Vector* result = new_vector(dims);
    std::memcpy(result->x, elements, static_cast<size_t>(dims) * sizeof(float));
    PG_RETURN_POINTER(result);
}

PGWARP_FUNCTION(pgwarp_vector_out) {
    Vector* vector = datum_get_vector(PG_GETARG_DATUM(0));

    // FLOAT_SHORTEST_DECIMAL_LEN includes a terminating zero, which makes room for the separator.
    char* text = static_cast<char*>(
        palloc(static_cast<Size>(vector->dims) * FLOAT_SHORTEST_DECIMAL_LEN + 3));
    char* end = text;
    for (int i = 0; i < vector->dims; i++) {
        *end++ = i == 0 ? '[' : ',';
        end += float_to_shortest_decimal_bufn(vector->x[i], end);
    }
    *end++ = ']';
    *end = '\0';

    PG_FREE_IF_COPY(vector, 0);
    PG_RETURN_CSTRING(text);
}

PGWARP_FUNCTION(pgwarp_vector_typmod_in) {
    int count;
    const int32* typmods = ArrayGetIntegerTypmods(PG_GETARG_ARRAYTYPE_P(0), &count);

    if (count != 1)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("invalid type modifier")));
    if (*typmods < 1)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("dimensions for type vector must be at least 1")));
    if (*typmods > max_dims)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("dimensions for type vector cannot exceed %d", max_dims)));
    PG_RETURN_INT32(*typmods);
}

PGWARP_FUNCTION(pgwarp_vector_recv) {
    auto* message = reinterpret_cast<StringInfo>(PG_GETARG_POINTER(0));
    const int32 typmod = PG_GETARG_INT32(2);
    const int dims = static_cast<int>(pq_getmsgint(message, sizeof(int16)));
    const int unused = static_cast<int>(pq_getmsgint(message, sizeof(int16)));

    check_dims(dims);
    check_expected_dims(typmod, dims);
    if (unused != 0)
        ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION),
                        errmsg("expected unused to be 0, not %d", unused)));

    const int bytes = dims * static_cast<int>(sizeof(float));
    const char* elements = pq_getmsgbytes(message, bytes);
    Vector* result = new_vector(dims);
    for (int i = 0; i < dims; i++) {
        uint32 bits;
        std::memcpy(&bits, elements + static_cast<size_t>(i) * sizeof(bits), sizeof(bits));
        bits = pg_ntoh32(bits);
        std::memcpy(&result->x[i], &bits, sizeof(bits));
    }
    check_elements(result);
    PG_RETURN_POINTER(result);
}

PGWARP_FUNCTION(pgwarp_vector_send) {
    const Vector* vector = datum_get_vector(PG_GETARG_DATUM(0));
    StringInfoData message;

    // Enlarges the message once, rather than with a check and a call for each element.
    pq_begintypsend(&message);
    enlargeStringInfo(&message, (vector->dims + 1) * static_cast<int>(sizeof(uint32)));
    pq_writeint16(&message, static_cast<uint16>(vector->dims));
    pq_writeint16(&message, static_cast<uint16>(vector->unused));
    for (int i = 0; i < vector->dims; i++) {
        uint32 bits;
        std::memcpy(&bits, &vector->x[i], sizeof(bits));
        pq_writeint32(&message, bits);
    }
    PG_RETURN_BYTEA_P(pq_endtypsend(&message));
}
