#include <cstring>

#include "extension/index/attributes.h"
#include "extension/index/format.h"

extern "C" {
#include "catalog/pg_proc.h"
#include "utils/lsyscache.h"
}

namespace pgwarp {

IndexAttributes attributes_of(Relation index) {
    IndexAttributes attributes = {};
    const int columns = IndexRelationGetNumberOfKeyAttributes(index);
    attributes.layout.count = static_cast<uint32>(columns - 1);
    for (uint32 i = 0; i < attributes.layout.count; ++i) {
        attributes.items[i] = attribute_of(index, static_cast<int>(i) + 2);
        attributes.layout.bytes[i] = attributes.items[i].bytes;
    }
    return attributes;
}

bool describes_attributes(const MetaPage& meta, Relation index) {
    const int columns = IndexRelationGetNumberOfKeyAttributes(index);
    if (meta.attributes.count + 1 != static_cast<uint32>(columns)) return false;
    for (uint32 i = 0; i < meta.attributes.count; ++i) {
        const Attribute attribute = attribute_of(index, static_cast<int>(i) + 2);
        if (attribute.bytes != meta.attributes.bytes[i] ||
            attribute.kind != meta.attribute_kinds[i])
            return false;
    }
    return true;
}

Oid unsafe_hash(Relation index) {
    const IndexAttributes attributes = attributes_of(index);
    for (uint32 i = 0; i < attributes.layout.count; ++i) {
        const FmgrInfo* hash = attributes.items[i].hash;
        if (hash && func_parallel(hash->fn_oid) != PROPARALLEL_SAFE) return hash->fn_oid;
    }
    return InvalidOid;
}

const IndexAttributes* copy_attributes(Relation index) {
    auto* copy = static_cast<IndexAttributes*>(palloc(sizeof(IndexAttributes)));
    *copy = attributes_of(index);
    return copy;
}

void set_attributes(const IndexAttributes& attributes, MetaPage* meta) {
    meta->attributes = attributes.layout;
    for (uint32 i = 0; i < attributes.layout.count; ++i)
        meta->attribute_kinds[i] = attributes.items[i].kind;
}

void pack_attributes(const IndexAttributes& attributes, const Datum* values, const bool* nulls,
                     uint8* to) {
    const AttributeLayout& layout = attributes.layout;
    uint8* null_bytes = to + layout.bytes_before(layout.count);
    memset(null_bytes, 0, layout.null_bytes());
    for (uint32 i = 0; i < layout.count; ++i) {
        uint64 number = 0;
        if (nulls[i + 1])
            null_bytes[i / 8] |= static_cast<uint8>(1 << i % 8);
        else
            number = attribute_number(attributes.items[i], values[i + 1]);
        // The machine is little-endian: the low bytes come first.
        memcpy(to, &number, layout.bytes[i]);
        to += layout.bytes[i];
    }
}

}  // namespace pgwarp
