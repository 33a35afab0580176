#include "extension/table/columns.h"

extern "C" {
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
}

namespace pgwarp {

AttrNumber find_column(Oid table, const char* name) {
    const AttrNumber attribute = get_attnum(table, name);
    if (attribute == InvalidAttrNumber)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_COLUMN),
                        errmsg("column \"%s\" of relation \"%s\" does not exist", name,
                               get_rel_name(table))));
    return attribute;
}

void check_select_rights(Oid table, const AttrNumber* columns, int count) {
    const Oid user = GetUserId();
    if (pg_class_aclcheck(table, user, ACL_SELECT) == ACLCHECK_OK) return;
    for (int i = 0; i < count; ++i)
        if (pg_attribute_aclcheck(table, columns[i], user, ACL_SELECT) != ACLCHECK_OK)
            aclcheck_error(ACLCHECK_NO_PRIV, get_relkind_objtype(get_rel_relkind(table)),
                           get_rel_name(table));
}

namespace {

bool is_readable_kind(char kind) {
    return kind == RELKIND_RELATION || kind == RELKIND_MATVIEW || kind == RELKIND_VIEW ||
           kind == RELKIND_FOREIGN_TABLE || kind == RELKIND_PARTITIONED_TABLE;
}

void check_vector_column(ReadColumns* columns, AttrNumber attribute) {
    Oid type;
    int32 typmod;
    Oid collation;
    get_atttypetypmodcoll(columns->table, attribute, &type, &typmod, &collation);
    columns->type = VectorType::of(type, typmod);
    if (!columns->type)
        ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH),
                        errmsg("column \"%s\" of table \"%s\" is of type %s, not vector",
                               columns->vector_name, columns->table_name, format_type_be(type))));
    columns->dims = columns->type.dims();
}

void check_key_column(ReadColumns* columns, AttrNumber attribute) {
    const Oid type = get_atttype(columns->table, attribute);
    if (!is_key_type(columns->names, type, &columns->key_type))
        report_key_type(columns->names, columns->key_name, columns->table_name, type);
}

}  // namespace

void check_columns(ReadColumns* columns) {
    const char kind = get_rel_relkind(columns->table);
    if (kind == '\0')
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("relation with OID %u does not exist", columns->table)));
    columns->table_name = get_rel_name(columns->table);
    if (!is_readable_kind(kind))
        ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
                        errmsg("\"%s\" is not a table", columns->table_name)));
    const int values = columns->value_count;
    auto* attributes =
        static_cast<AttrNumber*>(palloc(static_cast<Size>(values + 2) * sizeof(AttrNumber)));
    for (int i = 0; i < values; ++i)
        attributes[i] = find_column(columns->table, columns->values[i].name);
    int count = values;
    attributes[count++] = find_column(columns->table, columns->vector_name);
    if (columns->key_name) attributes[count++] = find_column(columns->table, columns->key_name);
    if (!columns->rights_checked) check_select_rights(columns->table, attributes, count);
    for (int i = 0; i < values; ++i) {
        ReadValue& value = columns->values[i];
        value.type = get_atttype(columns->table, attributes[i]);
        get_typlenbyval(value.type, &value.length, &value.by_value);
    }
    check_vector_column(columns, attributes[values]);
    if (columns->key_name) check_key_column(columns, attributes[values + 1]);
    pfree(attributes);
}

namespace {

[[noreturn]] void report_change(const ReadColumns& columns) {
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("table \"%s\" was changed while it was read", columns.table_name)));
}

}  // namespace

void check_types(const ReadColumns& columns, Oid vector, Oid key) {
    Oid base = InvalidOid;
    if (VectorType::of(vector).stores_like(columns.type) &&
        (!columns.key_name || (is_key_type(columns.names, key, &base) && base == columns.key_type)))
        return;
    report_change(columns);
}

void check_value_type(const ReadColumns& columns, int value, Oid type) {
    if (type != columns.values[value].type) report_change(columns);
}

}  // namespace pgwarp
