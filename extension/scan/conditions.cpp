#include <algorithm>
#include <limits>
#include <optional>

#include "extension/scan/conditions.h"
#include "extension/types/attribute.h"

extern "C" {
#include "access/htup_details.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/catcache.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
}

namespace pgwarp {

namespace {

constexpr Condition no_entry(uint8 attribute) {
    return {ConditionKind::never, attribute, 0, 0, {}};
}

// Values of one type.
struct Arguments {
    Datum* values;  // (count), none of them null
    int count;
    Oid type;
    bool has_null;  // beside these
};

Arguments elements_of(Datum of) {
    Arguments arguments = {};
    ArrayType* array = DatumGetArrayTypeP(of);
    arguments.type = ARR_ELEMTYPE(array);
    int16 length;
    bool by_value;
    char align;
    get_typlenbyvalalign(arguments.type, &length, &by_value, &align);
    bool* nulls;
    int count;
    deconstruct_array(array, arguments.type, length, by_value, align, &arguments.values, &nulls,
                      &count);
    for (int i = 0; i < count; ++i)
        if (!nulls[i]) arguments.values[arguments.count++] = arguments.values[i];
    arguments.has_null = arguments.count < count;
    return arguments;
}

// The arguments of a key: those of its array, or its only one.
Arguments arguments_of(const ScanKeyData& key, Oid column_type) {
    if (key.sk_flags & SK_SEARCHARRAY) return elements_of(key.sk_argument);
    auto* argument = static_cast<Datum*>(palloc(sizeof(Datum)));
    *argument = key.sk_argument;
    return {argument, 1, OidIsValid(key.sk_subtype) ? key.sk_subtype : column_type, false};
}

// Equal to one of the values, or to none.
Condition among(uint8 attribute, AttributeStrategy strategy, uint64* values, Size count) {
    std::sort(values, values + count);
    count = static_cast<Size>(std::unique(values, values + count) - values);
    if (strategy == AttributeStrategy::not_equal) {
        if (count == 0) return {ConditionKind::is_not_null, attribute, 0, 0, {}};
        return {ConditionKind::not_among, attribute, 0, 0, {values, count}};
    }
    if (count == 0) return no_entry(attribute);
    if (count == 1) return {ConditionKind::range, attribute, values[0], values[0], {}};
    return {ConditionKind::among, attribute, 0, 0, {values, count}};
}

bool tells_equality(AttributeStrategy strategy) {
    return strategy == AttributeStrategy::equal || strategy == AttributeStrategy::not_equal;
}

uint64* new_values(int count) {
    return static_cast<uint64*>(palloc(static_cast<Size>(Max(count, 1)) * sizeof(uint64)));
}

// The numbers that compare with a value as the strategy says.
Condition range(const Attribute& attribute, uint8 number, AttributeStrategy strategy,
                const AttributePosition& at) {
    const uint64 most = ~uint64{0} >> (64 - 8 * attribute.bytes);
    Condition condition{ConditionKind::range, number, 0, most, {}};
    const auto below = [&](bool included) {
        if (!included && at.number == 0) return no_entry(number);
        condition.high = included ? at.number : at.number - 1;
        return condition;
    };
    const auto above = [&](bool included) {
        if (!included && at.number == most) return no_entry(number);
        condition.low = included ? at.number : at.number + 1;
        return condition;
    };
    switch (strategy) {
        case AttributeStrategy::less:
            return below(at.compared < 0);
        case AttributeStrategy::less_equal:
            return below(at.compared <= 0);
        case AttributeStrategy::equal:
            if (at.compared != 0) return no_entry(number);
            condition.low = condition.high = at.number;
            return condition;
        case AttributeStrategy::greater_equal:
            return above(at.compared >= 0);
        case AttributeStrategy::greater:
            return above(at.compared > 0);
        default:
            elog(ERROR, "ivfpq has no strategy %d for ordered attributes",
                 static_cast<int>(strategy));
    }
    pg_unreachable();
}

// x < ANY (...) holds if it holds for the largest value, and so on: the union of ranges that all
// begin, or all end, at the same place is the widest of them.
Condition ordered_condition(const Attribute& attribute, uint8 number, AttributeStrategy strategy,
                            const Arguments& arguments) {
    if (tells_equality(strategy)) {
        uint64* values = new_values(arguments.count);
        Size count = 0;
        for (int i = 0; i < arguments.count; ++i) {
            const AttributePosition at =
                attribute_position(attribute, arguments.values[i], arguments.type);
            if (at.compared == 0) values[count++] = at.number;
        }
        return among(number, strategy, values, count);
    }
    Condition widest = no_entry(number);
    for (int i = 0; i < arguments.count; ++i) {
        const Condition one =
            range(attribute, number, strategy,
                  attribute_position(attribute, arguments.values[i], arguments.type));
        if (one.kind == ConditionKind::never) continue;
        if (widest.kind == ConditionKind::never) widest = one;
        widest.low = Min(widest.low, one.low);
        widest.high = Max(widest.high, one.high);
    }
    return widest;
}

// The order of an enum's values is in the catalog: a range becomes the values within it.
Condition enum_condition(const Attribute& attribute, uint8 number, AttributeStrategy strategy,
                         const Arguments& arguments) {
    uint64* given = new_values(arguments.count);
    uint64* given_end = given + arguments.count;
    for (int i = 0; i < arguments.count; ++i) given[i] = DatumGetObjectId(arguments.values[i]);
    if (tells_equality(strategy))
        return among(number, strategy, given, static_cast<Size>(arguments.count));
    std::sort(given, given_end);
    CatCList* list = SearchSysCacheList1(ENUMTYPOIDNAME, ObjectIdGetDatum(attribute.type));
    const auto form = [list](int i) {
        return reinterpret_cast<Form_pg_enum>(GETSTRUCT(&list->members[i]->tuple));
    };
    // x < ANY (...) holds if it holds for the last of the values, x > ANY (...) for the first.
    const bool below =
        strategy == AttributeStrategy::less || strategy == AttributeStrategy::less_equal;
    const bool included =
        strategy == AttributeStrategy::less_equal || strategy == AttributeStrategy::greater_equal;
    const auto sort_order = [&](int i) {
        return below ? form(i)->enumsortorder : -form(i)->enumsortorder;
    };
    float4 end = -std::numeric_limits<float4>::infinity();
    for (int i = 0; i < list->n_members; ++i)
        if (std::binary_search(given, given_end, uint64{form(i)->oid}))
            end = Max(end, sort_order(i));
    uint64* values = new_values(list->n_members);
    Size count = 0;
    for (int i = 0; i < list->n_members; ++i)
        if (sort_order(i) < end || (included && sort_order(i) == end))
            values[count++] = form(i)->oid;
    ReleaseCatCacheList(list);
    return among(number, AttributeStrategy::equal, values, count);
}

Condition hash_condition(const Attribute& attribute, uint8 number, const Arguments& arguments) {
    uint64* values = new_values(arguments.count);
    for (int i = 0; i < arguments.count; ++i)
        values[i] = attribute_number(attribute, arguments.values[i]);
    return among(number, AttributeStrategy::equal, values, static_cast<Size>(arguments.count));
}

// An entry passes if it has all bits of one of these signatures.
struct Signatures {
    uint64* values;
    int count;
};

// A signature for each element of the arrays.
Signatures element_signatures(const Attribute& attribute, const Arguments& arrays) {
    auto* elements =
        static_cast<Arguments*>(palloc(static_cast<Size>(arrays.count) * sizeof(Arguments)));
    int room = 0;
    for (int i = 0; i < arrays.count; ++i) {
        elements[i] = elements_of(arrays.values[i]);
        room += elements[i].count;
    }
    Signatures signatures = {new_values(room), 0};
    for (int i = 0; i < arrays.count; ++i)
        for (int j = 0; j < elements[i].count; ++j)
            signatures.values[signatures.count++] = element_bits(attribute, elements[i].values[j]);
    return signatures;
}

// A signature for each array.
Signatures array_signatures(const Attribute& attribute, const Arguments& arrays) {
    Signatures signatures = {new_values(arrays.count), arrays.count};
    for (int i = 0; i < arrays.count; ++i)
        signatures.values[i] = attribute_number(attribute, arrays.values[i]);
    return signatures;
}

// More than one array: x && ANY (...) or x @> ANY (...), with an array of int2vector or of a domain
// over arrays.
Condition signature_condition(const Attribute& attribute, uint8 number, AttributeStrategy strategy,
                              const Arguments& arrays) {
    const Signatures wanted = strategy == AttributeStrategy::contains
                                  ? array_signatures(attribute, arrays)
                                  : element_signatures(attribute, arrays);
    if (wanted.count == 0) return no_entry(number);
    if (wanted.count == 1) return {ConditionKind::contains, number, wanted.values[0], 0, {}};
    std::sort(wanted.values, wanted.values + wanted.count);
    const uint64* end = std::unique(wanted.values, wanted.values + wanted.count);
    return {ConditionKind::overlaps, number, 0, 0, {wanted.values, end}};
}

// Without a value: all entries pass.
std::optional<Condition> condition_of(const IndexAttributes& attributes, const ScanKeyData& key,
                                      Conditions* conditions) {
    const auto number = static_cast<uint8>(key.sk_attno - 2);
    const Condition has_value = {ConditionKind::is_not_null, number, 0, 0, {}};
    if (key.sk_flags & SK_SEARCHNULL) return Condition{ConditionKind::is_null, number, 0, 0, {}};
    if (key.sk_flags & SK_SEARCHNOTNULL) return has_value;
    // All operators are strict.
    if (key.sk_flags & SK_ISNULL) return no_entry(number);
    const Attribute& attribute = attributes.items[number];
    const auto strategy = static_cast<AttributeStrategy>(key.sk_strategy);
    const bool undecided =
        OidIsValid(key.sk_subtype) && !decides(attribute, strategy, key.sk_subtype);
    conditions->recheck |= needs_recheck(attribute) || undecided;
    conditions->rough |= is_rough(attribute) || undecided;
    if (undecided) return has_value;
    const Arguments arguments = arguments_of(key, attribute.base_type);
    if (strategy == AttributeStrategy::not_equal) {
        // No value is known to differ from null. Every value, null too, differs from all of none.
        if (arguments.has_null) return no_entry(number);
        if (arguments.count == 0) return std::nullopt;
    }
    switch (attribute.kind) {
        case AttributeKind::ordered:
            return ordered_condition(attribute, number, strategy, arguments);
        case AttributeKind::enumeration:
            return enum_condition(attribute, number, strategy, arguments);
        case AttributeKind::hash:
            return hash_condition(attribute, number, arguments);
        case AttributeKind::signature:
            return signature_condition(attribute, number, strategy, arguments);
    }
    pg_unreachable();
}

}  // namespace

Conditions make_conditions(Relation index, const ScanKeyData* keys, int count) {
    Conditions conditions = {};
    if (count == 0) return conditions;
    conditions.attributes = copy_attributes(index);
    conditions.items =
        static_cast<Condition*>(palloc(static_cast<Size>(Max(count, 1)) * sizeof(Condition)));
    for (int i = 0; i < count; ++i) {
        if (keys[i].sk_attno == 1) {
            // Rows without a vector have no entries.
            if (keys[i].sk_flags & SK_SEARCHNOTNULL) continue;
            elog(ERROR, "ivfpq index \"%s\" cannot search by its vector",
                 RelationGetRelationName(index));
        }
        const std::optional<Condition> condition =
            condition_of(*conditions.attributes, keys[i], &conditions);
        if (!condition) continue;
        conditions.never |= condition->kind == ConditionKind::never;
        conditions.items[conditions.count++] = *condition;
    }
    return conditions;
}

}  // namespace pgwarp
