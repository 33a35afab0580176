#include <algorithm>
#include <cstring>

#include "extension/table/table_reader.h"
#include "extension/table/toast_reader.h"
#include "extension/types/vector_type.h"

extern "C" {
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xlog.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "storage/predicate.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
}

namespace pgwarp {

namespace {

// A row of the scan or query; its values are valid until the next one is read.
struct Row {
    Datum vector;
    Datum key;
    bool vector_is_null;
    bool key_is_null;
};

}  // namespace

struct TableReader {
    MemoryContext context;
    MemoryContext row_context;  // detoasted values, a row at a time
    Oid table;
    const char* table_name;
    const char* vector_name;
    const char* key_name;  // null: none
    Oid key_type;          // base type, below any domains
    Snapshot snapshot;
    VectorType type;  // of the member or query being read
    uint32 dims;      // 0: not known yet
    TableCounts counts;

    // The first row, read for its dimensions and not yet handed over.
    float* first_vector;
    int64 first_key;

    // By scans: the table, or its children and partitions, one after another.
    Oid* members;
    int member_count;
    int member_next;
    Relation relation;  // the member being scanned, or null
    TableScanDesc scan;
    TupleTableSlot* slot;
    ToastReader* toast;
    AttrNumber vector_attribute;
    AttrNumber key_attribute;
    bool only;
    bool null_keys;

    // In a parallel worker, which reads ranges of blocks.
    bool shared;
    Oid range_table;  // OID of `relation`

    // By a query.
    bool by_query;
    char* query;
    char* portal;                 // name of the open portal, or null
    MemoryContext fetch_context;  // holds the fields below
    TupleDesc fetched_columns;
    HeapTuple* fetched;
    uint64 fetched_count;
    uint64 fetched_next;
    bool finished;
};

// --- columns and rights

bool is_key_type(Oid type, Oid* base) {
    *base = getBaseType(type);
    return *base == INT8OID || *base == INT4OID || *base == INT2OID;
}

int64 key_of(Datum value, Oid base) {
    if (base == INT8OID) return DatumGetInt64(value);
    return base == INT4OID ? DatumGetInt32(value) : DatumGetInt16(value);
}

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

void check_vector_column(TableReader* reader, AttrNumber attribute) {
    Oid type;
    int32 typmod;
    Oid collation;
    get_atttypetypmodcoll(reader->table, attribute, &type, &typmod, &collation);
    reader->type = VectorType::of(type, typmod);
    if (!reader->type)
        ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH),
                        errmsg("column \"%s\" of table \"%s\" is of type %s, not vector",
                               reader->vector_name, reader->table_name, format_type_be(type))));
    reader->dims = reader->type.dims();
}

void check_key_column(TableReader* reader, AttrNumber attribute) {
    const Oid type = get_atttype(reader->table, attribute);
    if (!is_key_type(type, &reader->key_type))
        ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH),
                        errmsg("column \"%s\" of table \"%s\" is of type %s, not an integer",
                               reader->key_name, reader->table_name, format_type_be(type)),
                        errhint("Keys are of type bigint, integer or smallint.")));
}

// All checks that need no lock: a caller without privileges must not block others by waiting for
// one.
void check_columns(TableReader* reader) {
    const char kind = get_rel_relkind(reader->table);
    if (kind == '\0')
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("relation with OID %u does not exist", reader->table)));
    reader->table_name = get_rel_name(reader->table);
    if (!is_readable_kind(kind))
        ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
                        errmsg("\"%s\" is not a table", reader->table_name)));
    AttrNumber columns[2] = {find_column(reader->table, reader->vector_name), 0};
    if (reader->key_name) columns[1] = find_column(reader->table, reader->key_name);
    check_select_rights(reader->table, columns, reader->key_name ? 2 : 1);
    check_vector_column(reader, columns[0]);
    if (reader->key_name) check_key_column(reader, columns[1]);
}

// --- by scans

bool can_scan(Relation relation) {
    const char kind = relation->rd_rel->relkind;
    return kind == RELKIND_RELATION || kind == RELKIND_MATVIEW || kind == RELKIND_PARTITIONED_TABLE;
}

bool is_computed(Relation relation, const char* name) {
    const AttrNumber attribute = get_attnum(RelationGetRelid(relation), name);
    return attribute > 0 && compat_is_virtual(TupleDescAttr(relation->rd_att, attribute - 1));
}

void check_accessible(Relation relation) {
    if (relation->rd_rel->relkind == RELKIND_MATVIEW && !RelationIsPopulated(relation))
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("materialized view \"%s\" has not been populated",
                               RelationGetRelationName(relation)),
                        errhint("Use the REFRESH MATERIALIZED VIEW command.")));
    if (RELATION_IS_OTHER_TEMP(relation))
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("cannot access temporary tables of other sessions")));
    if (RecoveryInProgress() && !RelationIsPermanent(relation))
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("cannot access temporary or unlogged relations during recovery")));
}

// Collects the tables whose rows belong to this one. False where one of them can only be read by a
// query.
bool find_members(TableReader* reader) {
    List* relations = reader->only ? list_make1_oid(reader->table)
                                   : find_all_inheritors(reader->table, AccessShareLock, nullptr);
    reader->members = static_cast<Oid*>(palloc(sizeof(Oid) * list_length(relations)));
    bool scannable = true;
    ListCell* cell;
    foreach (cell, relations) {
        Relation relation = table_open(lfirst_oid(cell), NoLock);
        scannable &= can_scan(relation) && !is_computed(relation, reader->vector_name) &&
                     !(reader->key_name && is_computed(relation, reader->key_name));
        // Skips children that are temporary tables of other sessions, as queries do.
        const bool of_others =
            RELATION_IS_OTHER_TEMP(relation) && RelationGetRelid(relation) != reader->table;
        if (scannable && !of_others) check_accessible(relation);
        if (relation->rd_rel->relkind != RELKIND_PARTITIONED_TABLE && !of_others)
            reader->members[reader->member_count++] = RelationGetRelid(relation);
        table_close(relation, NoLock);
    }
    list_free(relations);
    return scannable;
}

void end_scan(TableReader* reader) {
    if (!reader->relation) return;
    ExecDropSingleTupleTableSlot(reader->slot);
    table_endscan(reader->scan);
    close_toast_reader(reader->toast);
    table_close(reader->relation, NoLock);
    reader->relation = nullptr;
}

// Checks the types again before each scan or fetch: between two of them the caller may run any
// code, which may have altered the table since the reader was opened.
void take_types(TableReader* reader, Oid vector, Oid key) {
    Oid base = InvalidOid;
    reader->type = VectorType::of(vector);
    if (reader->type &&
        (!reader->key_name || (is_key_type(key, &base) && base == reader->key_type)))
        return;
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("table \"%s\" was changed while it was read", reader->table_name)));
}

// Opens a member without starting its scan.
void open_member(TableReader* reader, Oid member) {
    Relation relation = table_open(member, reader->shared ? AccessShareLock : NoLock);
    // Columns of a child match its parent's by name, not by number.
    reader->vector_attribute = find_column(member, reader->vector_name);
    if (reader->key_name) reader->key_attribute = find_column(member, reader->key_name);
    const auto type_of = [relation](AttrNumber attribute) {
        return TupleDescAttr(RelationGetDescr(relation), attribute - 1)->atttypid;
    };
    take_types(reader, type_of(reader->vector_attribute),
               reader->key_name ? type_of(reader->key_attribute) : InvalidOid);
    reader->slot = table_slot_create(relation, nullptr);
    reader->toast = open_toast_reader(relation);
    reader->relation = relation;
}

void begin_scan(TableReader* reader) {
    const MemoryContext before = MemoryContextSwitchTo(reader->context);
    open_member(reader, reader->members[reader->member_next++]);
    // No synchronized scan: rows come in the order of blocks, which the header promises.
    reader->scan =
        table_beginscan_strat(reader->relation, reader->snapshot, 0, nullptr, true, false);
    MemoryContextSwitchTo(before);
}

bool next_slot(TableReader* reader) {
    if (reader->shared)
        return table_scan_getnextslot_tidrange(reader->scan, ForwardScanDirection, reader->slot);
    while (true) {
        if (!reader->relation) {
            if (reader->member_next == reader->member_count) return false;
            begin_scan(reader);
        }
        if (table_scan_getnextslot(reader->scan, ForwardScanDirection, reader->slot)) return true;
        end_scan(reader);
    }
}

bool next_scanned(TableReader* reader, Row* row) {
    if (!next_slot(reader)) return false;
    row->vector = slot_getattr(reader->slot, reader->vector_attribute, &row->vector_is_null);
    if (reader->key_name)
        row->key = slot_getattr(reader->slot, reader->key_attribute, &row->key_is_null);
    return true;
}

// --- by a query

char* make_query(const TableReader* reader) {
    StringInfoData query;
    initStringInfo(&query);
    appendStringInfo(&query, "SELECT %s", quote_identifier(reader->vector_name));
    if (reader->key_name) appendStringInfo(&query, ", %s", quote_identifier(reader->key_name));
    appendStringInfo(&query, " FROM %s",
                     quote_qualified_identifier(
                         get_namespace_name(get_rel_namespace(reader->table)), reader->table_name));
    return query.data;
}

void connect_spi() {
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
}

// The portal outlives its SPI connection, so that no SPI stack level stays open between two blocks.
void open_portal(TableReader* reader) {
    connect_spi();
    PushActiveSnapshot(reader->snapshot);
    SPIPlanPtr plan = SPI_prepare_cursor(reader->query, 0, nullptr, CURSOR_OPT_NO_SCROLL);
    if (!plan) elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
    const Portal portal = SPI_cursor_open(nullptr, plan, nullptr, nullptr, true);
    reader->portal = MemoryContextStrdup(reader->context, portal->name);
    PopActiveSnapshot();
    SPI_finish();
}

Portal find_portal(const TableReader* reader) {
    const Portal portal = reader->portal ? GetPortalByName(reader->portal) : nullptr;
    if (!portal)
        ereport(ERROR, (errcode(ERRCODE_INVALID_CURSOR_STATE),
                        errmsg("the query that reads \"%s\" has been closed", reader->table_name)));
    return portal;
}

void fetch_rows(TableReader* reader) {
    // A batch of rows at a time, in at most a few megabytes.
    const Size row_bytes = Size{Max(reader->dims, 64u)} * reader->type.value_bytes();
    const long wanted = static_cast<long>(std::clamp<Size>((Size{1} << 20) / row_bytes, 16, 1000));
    if (!reader->portal) open_portal(reader);
    connect_spi();
    // No synchronized scan here either. The scan begins, and reads the setting, in the fetch below.
    const int level = NewGUCNestLevel();
    set_config_option("synchronize_seqscans", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
                      true, 0, false);
    SPI_cursor_fetch(find_portal(reader), true, wanted);
    AtEOXact_GUC(true, level);
    take_types(reader, SPI_gettypeid(SPI_tuptable->tupdesc, 1),
               reader->key_name ? SPI_gettypeid(SPI_tuptable->tupdesc, 2) : InvalidOid);

    MemoryContextReset(reader->fetch_context);
    const MemoryContext before = MemoryContextSwitchTo(reader->fetch_context);
    reader->fetched_count = SPI_processed;
    reader->fetched_next = 0;
    reader->fetched_columns = CreateTupleDescCopy(SPI_tuptable->tupdesc);
    reader->fetched =
        static_cast<HeapTuple*>(palloc(Max(reader->fetched_count, uint64{1}) * sizeof(HeapTuple)));
    for (uint64 i = 0; i < reader->fetched_count; ++i)
        reader->fetched[i] = heap_copytuple(SPI_tuptable->vals[i]);
    MemoryContextSwitchTo(before);
    SPI_finish();
}

bool next_fetched(TableReader* reader, Row* row) {
    if (reader->finished) return false;
    if (reader->fetched_next == reader->fetched_count) {
        fetch_rows(reader);
        reader->finished = reader->fetched_count == 0;
        if (reader->finished) return false;
    }
    const HeapTuple tuple = reader->fetched[reader->fetched_next++];
    row->vector = heap_getattr(tuple, 1, reader->fetched_columns, &row->vector_is_null);
    if (reader->key_name)
        row->key = heap_getattr(tuple, 2, reader->fetched_columns, &row->key_is_null);
    return true;
}

// --- rows

bool next_row(TableReader* reader, Row* row) {
    *row = {};
    while (reader->by_query ? next_fetched(reader, row) : next_scanned(reader, row)) {
        CHECK_FOR_INTERRUPTS();
        if (row->vector_is_null) {
            ++reader->counts.nulls;
            continue;
        }
        if (row->key_is_null && !reader->null_keys)
            ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                            errmsg("column \"%s\" of table \"%s\" has a null key", reader->key_name,
                                   reader->table_name)));
        return true;
    }
    return false;
}

// A plain value is read where it lies; others go to row_context first.
const varlena* plain_value(TableReader* reader, Datum value) {
    varlena* given = reinterpret_cast<varlena*>(DatumGetPointer(value));
    if (VectorType::is_plain(value)) return given;
    MemoryContextReset(reader->row_context);
    const MemoryContext before = MemoryContextSwitchTo(reader->row_context);
    given = reader->by_query ? pg_detoast_datum(given) : read_value(reader->toast, value);
    MemoryContextSwitchTo(before);
    return given;
}

void check_row_dims(const TableReader* reader, uint32 dims) {
    if (dims == reader->dims) return;
    // A worker reads only ranges, so it knows no row number.
    if (reader->shared)
        ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION),
                        errmsg("different vector dimensions %u and %u", reader->dims, dims),
                        errdetail("A row of table \"%s\" has %u dimensions in column \"%s\", "
                                  "others have %u.",
                                  reader->table_name, dims, reader->vector_name, reader->dims)));
    ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION),
                    errmsg("different vector dimensions %u and %u", reader->dims, dims),
                    errdetail("Row %lld of table \"%s\" has %u dimensions in column \"%s\", those "
                              "before it have %u.",
                              static_cast<long long>(reader->counts.rows + 1), reader->table_name,
                              dims, reader->vector_name, reader->dims)));
}

// A column declared without dimensions takes those of its first vector.
void look_ahead(TableReader* reader) {
    Row row;
    if (reader->dims > 0 || !next_row(reader, &row)) return;
    const varlena* value = plain_value(reader, row.vector);
    reader->dims = reader->type.dims_of(value);
    reader->first_vector =
        static_cast<float*>(MemoryContextAlloc(reader->context, reader->dims * sizeof(float)));
    reader->type.read(value, reader->first_vector);
    if (reader->key_name) reader->first_key = key_of(row.key, reader->key_type);
}

}  // namespace

TableReader* open_table_reader(const TableColumns& columns) {
    TableReader* reader = static_cast<TableReader*>(palloc0(sizeof(TableReader)));
    reader->context =
        AllocSetContextCreate(CurrentMemoryContext, "table reader", ALLOCSET_SMALL_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(reader->context);
    reader->table = columns.table;
    reader->vector_name = pstrdup(columns.vector);
    if (columns.key) reader->key_name = pstrdup(columns.key);
    reader->only = columns.only;
    reader->null_keys = columns.null_keys;
    check_columns(reader);

    // The table may have changed before we got the lock: check again, now that it cannot.
    Relation relation = try_relation_open(reader->table, AccessShareLock);
    if (!relation)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("relation with OID %u does not exist", reader->table)));
    check_columns(reader);
    reader->by_query = check_enable_rls(reader->table, InvalidOid, true) == RLS_ENABLED ||
                       !can_scan(relation) || !find_members(reader);
    relation_close(relation, NoLock);

    reader->snapshot = RegisterSnapshot(GetActiveSnapshot());
    reader->row_context =
        AllocSetContextCreate(reader->context, "table reader row", ALLOCSET_DEFAULT_SIZES);
    reader->fetch_context =
        AllocSetContextCreate(reader->context, "table reader rows", ALLOCSET_DEFAULT_SIZES);
    if (reader->by_query) reader->query = make_query(reader);
    MemoryContextSwitchTo(before);
    look_ahead(reader);
    return reader;
}

uint32 dims_of(const TableReader* reader) {
    return reader->dims;
}

TableCounts counts_of(const TableReader* reader) {
    return reader->counts;
}

Size read_block(TableReader* reader, const VectorBlock& block) {
    Size count = 0;
    if (reader->first_vector) {
        memcpy(block.vectors, reader->first_vector, reader->dims * sizeof(float));
        if (block.keys) block.keys[0] = reader->first_key;
        pfree(reader->first_vector);
        reader->first_vector = nullptr;
        ++reader->counts.rows;
        ++count;
    }
    Row row;
    while (count < block.room && next_row(reader, &row)) {
        const varlena* value = plain_value(reader, row.vector);
        check_row_dims(reader, reader->type.dims_of(value));
        reader->type.read(value, block.vectors + count * reader->dims);
        if (block.keys) {
            block.keys[count] = row.key_is_null ? 0 : key_of(row.key, reader->key_type);
            if (block.key_is_null) block.key_is_null[count] = row.key_is_null;
        }
        if (block.places) {
            const ItemPointerData& tid = reader->slot->tts_tid;
            block.places[count] = static_cast<uint64>(ItemPointerGetBlockNumberNoCheck(&tid))
                                      << 16 |
                                  ItemPointerGetOffsetNumberNoCheck(&tid);
        }
        ++reader->counts.rows;
        ++count;
    }
    return count;
}

// --- for several processes

Snapshot snapshot_of(const TableReader* reader) {
    return reader->snapshot;
}

double estimated_rows(const TableReader* reader) {
    if (reader->by_query) return 0;
    double rows = 0;
    for (int i = 0; i < reader->member_count; ++i) {
        Relation relation = table_open(reader->members[i], NoLock);
        BlockNumber pages;
        double tuples;
        double visible;
        table_relation_estimate_size(relation, nullptr, &pages, &tuples, &visible);
        rows += tuples;
        table_close(relation, NoLock);
    }
    return rows;
}

int members_of(const TableReader* reader, TableMember** members) {
    if (reader->by_query || reader->dims == 0) return 0;
    *members = static_cast<TableMember*>(palloc(reader->member_count * sizeof(TableMember)));
    bool scannable = true;
    for (int i = 0; i < reader->member_count; ++i) {
        Relation relation = table_open(reader->members[i], NoLock);
        // Temporary tables lie in local buffers, which workers cannot read.
        scannable &= !RelationUsesLocalBuffers(relation) &&
                     relation->rd_tableam->scan_set_tidrange != nullptr;
        (*members)[i] = {reader->members[i], RelationGetNumberOfBlocks(relation)};
        // TID range scans take no predicate locks: lock the whole relation.
        PredicateLockRelation(relation, reader->snapshot);
        table_close(relation, NoLock);
    }
    return scannable ? reader->member_count : 0;
}

SharedTable share_table(const TableReader* reader) {
    SharedTable table = {};
    namestrcpy(&table.vector, reader->vector_name);
    if (reader->key_name) namestrcpy(&table.key, reader->key_name);
    table.has_key = reader->key_name != nullptr;
    table.null_keys = reader->null_keys;
    table.table = reader->table;
    table.key_type = reader->key_type;
    table.dims = reader->dims;
    return table;
}

TableReader* open_shared_reader(const SharedTable& table, Snapshot snapshot) {
    TableReader* reader = static_cast<TableReader*>(palloc0(sizeof(TableReader)));
    reader->context =
        AllocSetContextCreate(CurrentMemoryContext, "table reader", ALLOCSET_SMALL_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(reader->context);
    reader->shared = true;
    reader->table = table.table;
    reader->table_name = get_rel_name(table.table);
    reader->vector_name = pstrdup(NameStr(table.vector));
    if (table.has_key) reader->key_name = pstrdup(NameStr(table.key));
    reader->null_keys = table.null_keys;
    reader->key_type = table.key_type;
    reader->dims = table.dims;
    reader->snapshot = RegisterSnapshot(snapshot);
    reader->row_context =
        AllocSetContextCreate(reader->context, "table reader row", ALLOCSET_DEFAULT_SIZES);
    MemoryContextSwitchTo(before);
    return reader;
}

void read_blocks(TableReader* reader, Oid member, BlockNumber first, BlockNumber end) {
    const MemoryContext before = MemoryContextSwitchTo(reader->context);
    ItemPointerData from;
    ItemPointerData to;
    ItemPointerSet(&from, first, FirstOffsetNumber);
    ItemPointerSet(&to, end - 1, MaxOffsetNumber);
    if (reader->relation && reader->range_table != member) end_scan(reader);
    if (!reader->relation) {
        open_member(reader, member);
        reader->range_table = member;
        reader->scan = table_beginscan_tidrange(reader->relation, reader->snapshot, &from, &to);
        // As sequential scans do: a large table must not evict everything else from shared buffers.
        reader->scan->rs_flags |= SO_ALLOW_STRAT;
        table_rescan_tidrange(reader->scan, &from, &to);
    } else {
        table_rescan_tidrange(reader->scan, &from, &to);
    }
    MemoryContextSwitchTo(before);
}

void rewind_table_reader(TableReader* reader) {
    end_scan(reader);
    if (reader->portal) {
        if (Portal portal = GetPortalByName(reader->portal)) PortalDrop(portal, false);
        pfree(reader->portal);
        reader->portal = nullptr;
    }
    if (reader->first_vector) pfree(reader->first_vector);
    reader->first_vector = nullptr;
    reader->member_next = 0;
    reader->fetched_next = reader->fetched_count = 0;
    reader->finished = false;
    reader->counts = {};
}

void close_table_reader(TableReader* reader) {
    rewind_table_reader(reader);
    UnregisterSnapshot(reader->snapshot);
    MemoryContextDelete(reader->context);
    pfree(reader);
}

}  // namespace pgwarp
