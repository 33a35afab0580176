// Which types of vectors the extension uses in a database: pgvector's where they are, or its own.
// The extension's script decides when the extension is created, by this file's function. From then
// on the catalog tells: classes, operators and functions are declared with the one or the other.

#include "extension/settings.h"
#include "extension/types/vector_type.h"

extern "C" {
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
}

namespace pgwarp {

namespace {

constexpr const char* pgvector = "vector";  // the name of the extension

struct Extension {
    Oid number;  // InvalidOid: it is not there
    Oid schema;
    const char* version;
};

Extension find_pgvector() {
    Extension found = {get_extension_oid(pgvector, true), InvalidOid, nullptr};
    if (!OidIsValid(found.number)) return found;
    // Another session must not drop it before this one has recorded that it depends on it.
    LockDatabaseObject(ExtensionRelationId, found.number, 0, AccessShareLock);
    Relation relation = table_open(ExtensionRelationId, AccessShareLock);
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_extension_oid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(found.number));
    SysScanDesc scan = systable_beginscan(relation, ExtensionOidIndexId, true, nullptr, 1, &key);
    HeapTuple tuple = systable_getnext(scan);
    if (HeapTupleIsValid(tuple)) {
        bool is_null;
        const Datum version =
            heap_getattr(tuple, Anum_pg_extension_extversion, RelationGetDescr(relation), &is_null);
        found.version = is_null ? "" : TextDatumGetCString(version);
        found.schema = reinterpret_cast<Form_pg_extension>(GETSTRUCT(tuple))->extnamespace;
    } else {
        found.number = InvalidOid;
    }
    systable_endscan(scan);
    table_close(relation, AccessShareLock);
    return found;
}

// A base type. Another type of this name is not pgvector's: any user may have created it in that
// schema.
Oid type_in(Oid schema, const char* name) {
    const Oid type = GetSysCacheOid2(TYPENAMENSP, Anum_pg_type_oid, CStringGetDatum(name),
                                     ObjectIdGetDatum(schema));
    return OidIsValid(type) && get_typtype(type) == TYPTYPE_BASE ? type : InvalidOid;
}

void check_types(const Extension& extension) {
    // halfvec came with 0.7.0.
    if (!OidIsValid(type_in(extension.schema, "halfvec")))
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("pgvector %s is too old for pgwarp", extension.version),
                        errdetail("pgwarp uses the types of pgvector 0.7.0 or later."),
                        errhint("Install a newer pgvector, and run ALTER EXTENSION %s UPDATE.",
                                pgvector)));
    constexpr VectorType types[] = {vector_type, halfvec_type};
    for (const VectorType& wanted : types) {
        const char* name = wanted.name();
        const Oid type = type_in(extension.schema, name);
        if (!OidIsValid(type) || !VectorType::of(type).stores_like(wanted))
            ereport(ERROR,
                    (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                     errmsg("extension \"%s\" has no type of vectors that pgwarp knows", pgvector),
                     errdetail("pgwarp expects pgvector's type \"%s\" in schema \"%s\".", name,
                               get_namespace_name(extension.schema))));
    }
}

bool depends(const ObjectAddress& on) {
    Relation relation = table_open(DependRelationId, AccessShareLock);
    ScanKeyData keys[2];
    ScanKeyInit(&keys[0], Anum_pg_depend_classid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(ExtensionRelationId));
    ScanKeyInit(&keys[1], Anum_pg_depend_objid, BTEqualStrategyNumber, F_OIDEQ,
                ObjectIdGetDatum(CurrentExtensionObject));
    SysScanDesc scan = systable_beginscan(relation, DependDependerIndexId, true, nullptr, 2, keys);
    bool found = false;
    HeapTuple tuple;
    while (!found && HeapTupleIsValid(tuple = systable_getnext(scan))) {
        const auto* form = reinterpret_cast<Form_pg_depend>(GETSTRUCT(tuple));
        found = form->refclassid == on.classId && form->refobjid == on.objectId;
    }
    systable_endscan(scan);
    table_close(relation, AccessShareLock);
    return found;
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

// pgwarp_bind_types() of a script: the schema of pgvector's types if the extension is to use these,
// else null. The extension then depends on extension "vector". A dump therefore restores pgvector
// first, and DROP EXTENSION vector names what it would take along. May be called several times.
//
// ALTER EXTENSION ... UPDATE deletes that dependency before it runs a script, as for all that the
// control file does not require. The script of an update from 0.2.0 or later must record it again
// if the extension's classes are on pgvector's types, whatever pgwarp.own_types says by then.
PGWARP_FUNCTION(pgwarp_bind_types) {
    if (!creating_extension)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("pgwarp_bind_types can only be called by the script of an "
                               "extension")));
    if (settings.own_types) PG_RETURN_NULL();
    const Extension extension = find_pgvector();
    if (!OidIsValid(extension.number)) PG_RETURN_NULL();
    check_types(extension);
    const ObjectAddress ours = {ExtensionRelationId, CurrentExtensionObject, 0};
    const ObjectAddress theirs = {ExtensionRelationId, extension.number, 0};
    if (!depends(theirs)) {
        recordDependencyOn(&ours, &theirs, DEPENDENCY_NORMAL);
        CommandCounterIncrement();
    }
    auto* name = static_cast<Name>(palloc0(NAMEDATALEN));
    namestrcpy(name, get_namespace_name(extension.schema));
    PG_RETURN_NAME(name);
}
