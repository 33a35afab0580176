#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "extension/types/attribute.h"
#include "extension/types/vector_type.h"

extern "C" {
#include "access/genam.h"
#include "catalog/pg_type.h"
#include "parser/parse_coerce.h"
#include "pgtime.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/datetime.h"
#include "utils/float.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"
}

namespace pgwarp {

namespace {

// Bytes of an ordered attribute; 0: the type has none.
uint8 ordered_bytes(Oid type) {
    switch (type) {
        case BOOLOID:
        case CHAROID:
            return 1;
        case INT2OID:
            return 2;
        case INT4OID:
        case FLOAT4OID:
        case DATEOID:
        case OIDOID:
            return 4;
        case INT8OID:
        case FLOAT8OID:
        case TIMEOID:
        case TIMESTAMPOID:
        case TIMESTAMPTZOID:
            return 8;
        default:
            return 0;
    }
}

// Signed numbers in the order of unsigned ones.
uint64 shift_sign(int64 value, int64 least) {
    return static_cast<uint64>(value) - static_cast<uint64>(least);
}

// PostgreSQL's order: -0 equals 0, and NaN equals NaN and comes last.
template <typename Float, typename Bits>
Bits float_number(Float value) {
    constexpr Bits sign = Bits{1} << (8 * sizeof(Bits) - 1);
    if (std::isnan(value)) return static_cast<Bits>(~Bits{0});
    if (value == 0) return sign;
    const auto bits = std::bit_cast<Bits>(value);
    return static_cast<Bits>(bits & sign ? ~bits : bits | sign);
}

uint64 number_of(float value) {
    return float_number<float, uint32_t>(value);
}

uint64 number_of(double value) {
    return float_number<double, uint64_t>(value);
}

int compare(double a, double b) {
    return float8_cmp_internal(a, b);
}

int compare(int64 a, int64 b) {
    return a < b ? -1 : a > b ? 1 : 0;
}

bool is_integer(Oid type) {
    return type == INT2OID || type == INT4OID || type == INT8OID;
}

bool is_float(Oid type) {
    return type == FLOAT4OID || type == FLOAT8OID;
}

int64 integer_of(Datum value, Oid type) {
    return type == INT2OID   ? DatumGetInt16(value)
           : type == INT4OID ? DatumGetInt32(value)
                             : DatumGetInt64(value);
}

double float_of(Datum value, Oid type) {
    return type == FLOAT4OID ? static_cast<double>(DatumGetFloat4(value)) : DatumGetFloat8(value);
}

int64 least_integer(Oid type) {
    return type == INT2OID ? PG_INT16_MIN : type == INT4OID ? PG_INT32_MIN : PG_INT64_MIN;
}

int64 largest_integer(Oid type) {
    return type == INT2OID ? PG_INT16_MAX : type == INT4OID ? PG_INT32_MAX : PG_INT64_MAX;
}

// The timestamp nearest to a value of another type.
struct NearestTimestamp {
    Timestamp timestamp;
    int compared;  // with the value
};

// Of a date: its midnight. A date after the last finite timestamp is less than the infinite one.
NearestTimestamp midnight_of(DateADT date) {
    if (DATE_IS_NOBEGIN(date)) return {DT_NOBEGIN, 0};
    if (DATE_IS_NOEND(date)) return {DT_NOEND, 0};
    if (date >= TIMESTAMP_END_JULIAN - POSTGRES_EPOCH_JDATE) return {DT_NOEND, 1};
    return {date * USECS_PER_DAY, 0};
}

// Of a timestamp without time zone: the timestamptz that it is in the session's time zone, as
// PostgreSQL's operators have it. One beyond the finite ones lies between these and the infinite.
NearestTimestamp zoned_of(Timestamp local) {
    if (TIMESTAMP_NOT_FINITE(local)) return {local, 0};
    pg_tm parts;
    fsec_t fraction;
    if (timestamp2tm(local, nullptr, &parts, &fraction, nullptr, nullptr) != 0)
        ereport(ERROR,
                (errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE), errmsg("timestamp out of range")));
    const Timestamp zoned =
        local + DetermineTimeZoneOffset(&parts, session_timezone) * USECS_PER_SEC;
    if (zoned < MIN_TIMESTAMP) return {DT_NOBEGIN, -1};
    if (zoned >= END_TIMESTAMP) return {DT_NOEND, 1};
    return {zoned, 0};
}

DateADT date_of(Timestamp timestamp) {
    if (TIMESTAMP_IS_NOBEGIN(timestamp)) return DATEVAL_NOBEGIN;
    if (TIMESTAMP_IS_NOEND(timestamp)) return DATEVAL_NOEND;
    int64 days = timestamp / USECS_PER_DAY;
    if (timestamp % USECS_PER_DAY < 0) --days;
    return static_cast<DateADT>(days);
}

AttributePosition same_type_position(const Attribute& attribute, Datum value) {
    return {attribute_number(attribute, value), 0};
}

FmgrInfo* element_hash(Oid element, Relation index, int column) {
    TypeCacheEntry* cache = lookup_type_cache(element, TYPECACHE_HASH_PROC_FINFO);
    if (!OidIsValid(cache->hash_proc_finfo.fn_oid))
        ereport(ERROR,
                (errcode(ERRCODE_UNDEFINED_FUNCTION),
                 errmsg("could not identify a hash function for type %s", format_type_be(element)),
                 errdetail("Column %d of index \"%s\" is an array of that type.", column,
                           RelationGetRelationName(index))));
    return &cache->hash_proc_finfo;
}

[[noreturn]] void report_unsuitable(const Attribute& attribute, int column) {
    if (VectorType::of(attribute.type))
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("an ivfpq index cannot have two vectors"),
                        errdetail("The first column is the vector to search by; the others are "
                                  "attributes for conditions."),
                        errhint("Create an index for each column of vectors.")));
    // A user's operator class without a hash function.
    ereport(ERROR,
            (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
             errmsg("column %d of an ivfpq index cannot be of type %s", column,
                    format_type_be(attribute.type)),
             errdetail("The first column is the vector to search by; the others are attributes "
                       "for conditions."),
             errhint("An operator class for a type of your own needs its = as operator %d and "
                     "a hash function as function %d.",
                     static_cast<int>(AttributeStrategy::equal), hash_procedure)));
    pg_unreachable();
}

}  // namespace

std::optional<AttributeKind> attribute_kind(Oid base_type, bool has_hash) {
    if (has_hash) return AttributeKind::hash;
    if (base_type == ANYENUMOID) return AttributeKind::enumeration;
    if (base_type == ANYARRAYOID) return AttributeKind::signature;
    if (ordered_bytes(base_type) > 0) return AttributeKind::ordered;
    return {};
}

Attribute attribute_of(Relation index, int column) {
    const int i = column - 1;
    const auto number = static_cast<AttrNumber>(column);
    Attribute attribute = {};
    attribute.type = getBaseType(TupleDescAttr(RelationGetDescr(index), i)->atttypid);
    attribute.base_type = index->rd_opcintype[i];
    attribute.family = index->rd_opfamily[i];
    attribute.collation = index->rd_indcollation[i];
    const std::optional<AttributeKind> kind = attribute_kind(
        attribute.base_type, OidIsValid(index_getprocid(index, number, hash_procedure)));
    if (!kind) report_unsuitable(attribute, column);
    attribute.kind = *kind;
    switch (attribute.kind) {
        case AttributeKind::hash:
            attribute.bytes = sizeof(uint32);
            attribute.hash = index_getprocinfo(index, number, hash_procedure);
            break;
        case AttributeKind::enumeration:
            attribute.bytes = sizeof(Oid);
            break;
        case AttributeKind::signature:
            attribute.bytes = sizeof(uint64);
            attribute.element = get_base_element_type(attribute.type);
            attribute.hash = element_hash(attribute.element, index, column);
            break;
        case AttributeKind::ordered:
            attribute.bytes = ordered_bytes(attribute.base_type);
            break;
    }
    return attribute;
}

namespace {

// Whether attribute_position() knows the order of values of two types.
bool are_ordered(Oid own, Oid other) {
    return own == other || (is_integer(own) && is_integer(other)) ||
           (is_float(own) && is_float(other)) || (own == DATEOID && other == TIMESTAMPOID) ||
           (own == TIMESTAMPOID && other == DATEOID) ||
           (own == TIMESTAMPTZOID && (other == DATEOID || other == TIMESTAMPOID));
}

}  // namespace

bool decides(AttributeKind kind, Oid base_type, AttributeStrategy strategy, Oid right_type) {
    const bool compares =
        (strategy >= AttributeStrategy::less && strategy <= AttributeStrategy::greater) ||
        strategy == AttributeStrategy::not_equal;
    switch (kind) {
        case AttributeKind::ordered:
            return compares && are_ordered(base_type, right_type);
        case AttributeKind::enumeration:
            return compares && base_type == right_type;
        case AttributeKind::hash:
            return strategy == AttributeStrategy::equal && base_type == right_type;
        case AttributeKind::signature:
            return (strategy == AttributeStrategy::overlaps ||
                    strategy == AttributeStrategy::contains) &&
                   base_type == right_type;
    }
    pg_unreachable();
}

bool decides(const Attribute& attribute, AttributeStrategy strategy, Oid right_type) {
    if (decides(attribute.kind, attribute.base_type, strategy, right_type)) return true;
    // A class for varchar, say, may have text's =, and no other.
    const auto equality = [&](Oid type) {
        return OidIsValid(get_opfamily_member(attribute.family, type, type,
                                              static_cast<int16>(AttributeStrategy::equal)));
    };
    return attribute.kind == AttributeKind::hash && strategy == AttributeStrategy::equal &&
           IsBinaryCoercible(attribute.base_type, right_type) && equality(right_type) &&
           !equality(attribute.base_type);
}

bool needs_recheck(const Attribute& attribute) {
    return attribute.kind == AttributeKind::hash || attribute.kind == AttributeKind::signature;
}

bool is_rough(const Attribute& attribute) {
    return attribute.kind == AttributeKind::signature;
}

uint64 element_bits(const Attribute& attribute, Datum element) {
    const uint32 hash =
        DatumGetUInt32(FunctionCall1Coll(attribute.hash, attribute.collation, element));
    return uint64{1} << hash % 64 | uint64{1} << hash / 64 % 64;
}

namespace {

uint64 signature_of(const Attribute& attribute, Datum value) {
    ArrayType* array = DatumGetArrayTypeP(value);
    int16 length;
    bool by_value;
    char align;
    get_typlenbyvalalign(attribute.element, &length, &by_value, &align);
    Datum* elements;
    bool* nulls;
    int count;
    deconstruct_array(array, attribute.element, length, by_value, align, &elements, &nulls, &count);
    uint64 bits = 0;
    for (int i = 0; i < count; ++i)
        if (!nulls[i]) bits |= element_bits(attribute, elements[i]);
    pfree(elements);
    pfree(nulls);
    if (reinterpret_cast<Pointer>(array) != DatumGetPointer(value)) pfree(array);
    return bits;
}

uint64 ordered_number(Oid type, Datum value) {
    switch (type) {
        case BOOLOID:
            return DatumGetBool(value) ? 1 : 0;
        case CHAROID:
            return static_cast<uint8>(DatumGetChar(value));
        case INT2OID:
        case INT4OID:
        case INT8OID:
            return shift_sign(integer_of(value, type), least_integer(type));
        case OIDOID:
            return DatumGetObjectId(value);
        case FLOAT4OID:
            return number_of(DatumGetFloat4(value));
        case FLOAT8OID:
            return number_of(DatumGetFloat8(value));
        case DATEOID:
            return shift_sign(DatumGetDateADT(value), PG_INT32_MIN);
        case TIMEOID:
            return static_cast<uint64>(DatumGetTimeADT(value));
        case TIMESTAMPOID:
        case TIMESTAMPTZOID:
            return shift_sign(DatumGetTimestamp(value), PG_INT64_MIN);
        default:
            elog(ERROR, "ivfpq keeps no numbers of type %u", type);
    }
    pg_unreachable();
}

}  // namespace

uint64 attribute_number(const Attribute& attribute, Datum value) {
    switch (attribute.kind) {
        case AttributeKind::ordered:
            return ordered_number(attribute.base_type, value);
        case AttributeKind::enumeration:
            return DatumGetObjectId(value);
        case AttributeKind::hash:
            return DatumGetUInt32(FunctionCall1Coll(attribute.hash, attribute.collation, value));
        case AttributeKind::signature:
            return signature_of(attribute, value);
    }
    pg_unreachable();
}

AttributePosition attribute_position(const Attribute& attribute, Datum value, Oid type) {
    const Oid own = attribute.base_type;
    if (type == own || type == InvalidOid) return same_type_position(attribute, value);
    if (is_integer(own) && is_integer(type)) {
        const int64 given = integer_of(value, type);
        const int64 nearest = Min(Max(given, least_integer(own)), largest_integer(own));
        return {shift_sign(nearest, least_integer(own)), compare(nearest, given)};
    }
    if (is_float(own) && is_float(type)) {
        const double given = float_of(value, type);
        if (own == FLOAT8OID) return {number_of(given), 0};
        const auto nearest = static_cast<float>(given);
        return {number_of(nearest), compare(static_cast<double>(nearest), given)};
    }
    if (own == DATEOID && type == TIMESTAMPOID) {
        const Timestamp given = DatumGetTimestamp(value);
        const DateADT nearest = date_of(given);
        return {shift_sign(nearest, PG_INT32_MIN), compare(midnight_of(nearest).timestamp, given)};
    }
    if (own == TIMESTAMPOID && type == DATEOID) {
        const NearestTimestamp nearest = midnight_of(DatumGetDateADT(value));
        return {shift_sign(nearest.timestamp, PG_INT64_MIN), nearest.compared};
    }
    if (own == TIMESTAMPTZOID && (type == DATEOID || type == TIMESTAMPOID)) {
        NearestTimestamp nearest = type == DATEOID ? midnight_of(DatumGetDateADT(value))
                                                   : NearestTimestamp{DatumGetTimestamp(value), 0};
        if (nearest.compared == 0) nearest = zoned_of(nearest.timestamp);
        return {shift_sign(nearest.timestamp, PG_INT64_MIN), nearest.compared};
    }
    elog(ERROR, "ivfpq cannot compare type %u with type %u", own, type);
    pg_unreachable();
}

}  // namespace pgwarp
