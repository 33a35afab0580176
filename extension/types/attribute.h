// Attributes: what an index keeps of its columns beside the vector, as unsigned numbers
// (kernels/conditions.h).
//
//   ordered      numbers in the order of the values: integers, floats, dates and times, "char"
//   enumeration  the value's OID. The order of an enum's values is in the catalog.
//   hash         a hash of the value, for equality. Different values may have equal hashes.
//   signature    bits of hashes of an array's elements, for && and @>. Another array may have them.
//
// Conditions on the last two find every row that passes, and may find others: the executor checks
// the condition again.
#pragma once

#include <optional>

#include "kernels/conditions.h"
#include "extension/compat.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// Stored on disk: never renumber.
enum class AttributeKind : uint8 { ordered = 1, enumeration = 2, hash = 3, signature = 4 };

// Support function of operator classes whose attributes are hashes.
inline constexpr uint16 hash_procedure = 2;

// Strategies of operators on attributes. The first five are those of a btree.
enum class AttributeStrategy : uint16 {
    less = 1,
    less_equal = 2,
    equal = 3,
    greater_equal = 4,
    greater = 5,
    overlaps = 6,
    contains = 7,
    // Differs from all values of an array. No operator class has it: see scan/filter_keys.h.
    not_equal = 8,
};
// Those of operator classes.
inline constexpr uint16 attribute_strategies = 7;

struct Attribute {
    AttributeKind kind;
    uint8 bytes;
    Oid type;        // of its values
    Oid base_type;   // the operator class's: equal to `type`, or polymorphic
    Oid family;      // of operators
    Oid collation;   // hash
    FmgrInfo* hash;  // hash: of a value; signature: of an element
    Oid element;     // signature: type of the elements
};

// The attribute of an index column, counted from 1; the first column is the vector. Reports columns
// that cannot be one. May allocate in the current memory context.
Attribute attribute_of(Relation index, int column);

// What an operator class for a type makes of its values, if it has a hash function or not.
std::optional<AttributeKind> attribute_kind(Oid base_type, bool has_hash);

// Whether the numbers of attributes of a type decide conditions with an operator, by its strategy
// and its right type. Equal hashes do not tell that values are equal: they decide no inequality.
bool decides(AttributeKind kind, Oid base_type, AttributeStrategy strategy, Oid right_type);
// The same for an attribute. PostgreSQL does not keep operators out of a family that its attributes
// cannot serve.
bool decides(const Attribute& attribute, AttributeStrategy strategy, Oid right_type);

bool needs_recheck(const Attribute& attribute);
// Whether many values that fail a condition may look as if they passed.
bool is_rough(const Attribute& attribute);

// The number of a value that is not null.
uint64 attribute_number(const Attribute& attribute, Datum value);

// Where a value lies among the numbers of an ordered attribute. The value may be of another type of
// the same operator family.
struct AttributePosition {
    uint64 number;  // of the nearest value that the attribute's type has
    int compared;   // that value compared with the given one: -1, 0 or 1
};
AttributePosition attribute_position(const Attribute& attribute, Datum value, Oid type);

// The bits that an array element sets in a signature.
uint64 element_bits(const Attribute& attribute, Datum element);

}  // namespace pgwarp
