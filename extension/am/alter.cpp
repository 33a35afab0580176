// ALTER INDEX ... SET and RESET. Options take effect when an index is built. PostgreSQL checks them
// one by one, and knows neither the dimensions of the column nor the options that the index was
// built with. This hook runs when pg_class has the new options. It raises an error for options that
// no REINDEX could use, and a notice for options that differ from the built index until a REINDEX.
// For an index that cannot be read there is no notice; a REINDEX with the new options repairs it.

#include "extension/am/alter.h"
#include "extension/index/column.h"
#include "extension/index/format.h"
#include "extension/index/options.h"
#include "extension/index/page.h"

extern "C" {
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
}

namespace pgwarp {

namespace {

object_access_hook_type previous_hook = nullptr;

// Whether the current command changed an index's options. The command has not ended: the catalog
// cache has the old row of pg_class, SnapshotSelf sees the new one.
bool options_changed(Oid object, IndexOptions* options) {
    HeapTuple before = SearchSysCache1(RELOID, ObjectIdGetDatum(object));
    if (!HeapTupleIsValid(before)) return false;
    if (reinterpret_cast<Form_pg_class>(GETSTRUCT(before))->relkind != RELKIND_INDEX) {
        ReleaseSysCache(before);
        return false;
    }
    bool changed = false;
    const Relation catalog = table_open(RelationRelationId, AccessShareLock);
    ScanKeyData key;
    ScanKeyInit(&key, Anum_pg_class_oid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(object));
    SysScanDesc scan = systable_beginscan(catalog, ClassOidIndexId, true, SnapshotSelf, 1, &key);
    const HeapTuple after = systable_getnext(scan);
    if (HeapTupleIsValid(after)) {
        bool was_null;
        bool is_null;
        const Datum was = SysCacheGetAttr(RELOID, before, Anum_pg_class_reloptions, &was_null);
        const Datum is =
            heap_getattr(after, Anum_pg_class_reloptions, RelationGetDescr(catalog), &is_null);
        changed = was_null != is_null || (!is_null && !datumIsEqual(was, is, false, -1));
        if (changed) *options = parse_options(is, is_null);
    }
    systable_endscan(scan);
    table_close(catalog, AccessShareLock);
    ReleaseSysCache(before);
    return changed;
}

// Options that differ, for the message: as the index has them, and as a REINDEX would set them.
struct Differences {
    StringInfoData has;
    StringInfoData gets;
};

void add_text(Differences* differences, const char* option, const char* has, const char* gets) {
    const char* comma = differences->has.len > 0 ? ", " : "";
    appendStringInfo(&differences->has, "%s%s = %s", comma, option, has);
    appendStringInfo(&differences->gets, "%s%s = %s", comma, option, gets);
}

void add_number(Differences* differences, const char* option, uint32 has, uint32 gets) {
    if (has != gets) add_text(differences, option, psprintf("%u", has), psprintf("%u", gets));
}

// Compares the option given at build time (`asked`; 0: chosen by the build), or its value in the
// trained index (`built`; 0: untrained), with the option given now.
void add_choice(Differences* differences, const char* option, uint32 asked, uint32 built,
                uint32 asked_now) {
    if (asked == asked_now || (built != 0 && built == asked_now)) return;
    const uint32 has = built ? built : asked;
    add_text(differences, option, has ? psprintf("%u", has) : "default",
             asked_now ? psprintf("%u", asked_now) : "default");
}

void report_differences(Relation index, const MetaPage& meta, const MetaPage& wanted) {
    Differences differences;
    initStringInfo(&differences.has);
    initStringInfo(&differences.gets);
    const bool trained = meta.lists > 0;
    add_choice(&differences, "lists", meta.asked_lists, meta.lists, wanted.asked_lists);
    // An index without parents has none by the option or by its number of lists.
    add_choice(&differences, "parents", meta.asked_parents, meta.parents, wanted.asked_parents);
    add_choice(&differences, "m", meta.asked_m, trained ? meta.m : 0, wanted.asked_m);
    add_number(&differences, "bits", meta.bits, wanted.bits);
    if (meta.quantizer != wanted.quantizer)
        add_text(&differences, "quantizer", quantizer_name(meta.quantizer),
                 quantizer_name(wanted.quantizer));
    add_number(&differences, "dims", meta.code_dims, wanted.code_dims);
    // Only lsq has rounds: if the quantizer changes, the message need not mention them.
    if (meta.quantizer == wanted.quantizer)
        add_number(&differences, "rounds", meta.search_rounds, wanted.search_rounds);
    if (meta.refinement != wanted.refinement)
        add_text(&differences, "refine", refinement_name(meta.refinement),
                 refinement_name(wanted.refinement));
    if (differences.has.len == 0) return;
    ereport(NOTICE,
            (errmsg("index \"%s\" stays as it was built until a REINDEX",
                    RelationGetRelationName(index)),
             errdetail("It has %s; a REINDEX gives it %s.", differences.has.data,
                       differences.gets.data),
             errhint("Run REINDEX INDEX CONCURRENTLY %s.",
                     quote_qualified_identifier(get_namespace_name(RelationGetNamespace(index)),
                                                RelationGetRelationName(index)))));
}

// Whether reading a metapage that is damaged, or of a newer format, raises this SQLSTATE.
bool is_unreadable(int code) {
    return code == ERRCODE_INDEX_CORRUPTED || code == ERRCODE_DATA_CORRUPTED ||
           code == ERRCODE_FEATURE_NOT_SUPPORTED || code == ERRCODE_IO_ERROR ||
           code == ERRCODE_UNDEFINED_FILE;
}

// False: the index has no readable metapage. Rolling back the subtransaction releases the page's
// lock and pin after an error.
bool try_read_meta(Relation index, MetaPage* meta) {
    const MemoryContext context = CurrentMemoryContext;
    const ResourceOwner owner = CurrentResourceOwner;
    volatile bool readable = false;
    BeginInternalSubTransaction(nullptr);
    PG_TRY();
    {
        // A build that failed leaves an index without pages.
        if (RelationGetNumberOfBlocks(index) > 0) {
            *meta = read_meta(index);
            readable = true;
        }
        ReleaseCurrentSubTransaction();
        MemoryContextSwitchTo(context);
        CurrentResourceOwner = owner;
    }
    PG_CATCH();
    {
        MemoryContextSwitchTo(context);
        ErrorData* error = CopyErrorData();
        FlushErrorState();
        RollbackAndReleaseCurrentSubTransaction();
        MemoryContextSwitchTo(context);
        CurrentResourceOwner = owner;
        if (!is_unreadable(error->sqlerrcode)) ReThrowError(error);
        FreeErrorData(error);
    }
    PG_END_TRY();
    return readable;
}

void check_options(Relation index, const IndexOptions& options) {
    MetaPage meta;
    const bool readable = try_read_meta(index, &meta);
    // The column may have lost its dimensions; the metapage has them.
    MetaPage wanted = {};
    wanted.dims = readable ? meta.dims : declared_dims(index);
    wanted.element_bytes = static_cast<uint8>(type_of(index).value_bytes());
    if (wanted.dims == 0) return;
    apply_options(options, &wanted);
    if (readable) report_differences(index, meta, wanted);
}

void check_altered(ObjectAccessType access, Oid class_id, Oid object, int sub, void* argument) {
    if (previous_hook) previous_hook(access, class_id, object, sub, argument);
    if (access != OAT_POST_ALTER || class_id != RelationRelationId || sub != 0) return;
    IndexOptions options;
    if (!options_changed(object, &options)) return;
    const Relation index = index_open(object, AccessShareLock);
    if (is_ivfpq(index)) check_options(index, options);
    index_close(index, AccessShareLock);
}

}  // namespace

void install_alter_hook() {
    previous_hook = object_access_hook;
    object_access_hook = check_altered;
}

}  // namespace pgwarp
