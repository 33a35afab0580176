#include <algorithm>

#include "extension/table/query_rows.h"

extern "C" {
#include "access/htup_details.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

namespace {

const char* make_query(const ReadColumns& columns) {
    StringInfoData query;
    initStringInfo(&query);
    appendStringInfo(&query, "SELECT %s", quote_identifier(columns.vector_name));
    if (columns.key_name) appendStringInfo(&query, ", %s", quote_identifier(columns.key_name));
    for (int i = 0; i < columns.value_count; ++i)
        appendStringInfo(&query, ", %s", quote_identifier(columns.values[i].name));
    appendStringInfo(&query, " FROM %s",
                     quote_qualified_identifier(
                         get_namespace_name(get_rel_namespace(columns.table)), columns.table_name));
    return query.data;
}

// Columns of the query before the values.
int first_columns(const ReadColumns& columns) {
    return columns.key_name ? 2 : 1;
}

void connect_spi() {
    if (SPI_connect() != SPI_OK_CONNECT) elog(ERROR, "SPI_connect failed");
}

}  // namespace

QueryRows::QueryRows(const ReadColumns& columns, Snapshot snapshot)
    : columns_(columns), snapshot_(snapshot), query_(make_query(columns)) {
    row_context_ = AllocSetContextCreate(context_, "table reader row", ALLOCSET_DEFAULT_SIZES);
    fetch_context_ = AllocSetContextCreate(context_, "table reader rows", ALLOCSET_DEFAULT_SIZES);
    const Size values = static_cast<Size>(Max(columns.value_count, 1));
    values_ = static_cast<Datum*>(palloc(values * sizeof(Datum)));
    value_is_null_ = static_cast<bool*>(palloc(values * sizeof(bool)));
}

// The portal outlives its SPI connection, so that no SPI stack level stays open between two blocks.
void QueryRows::open_portal() {
    connect_spi();
    PushActiveSnapshot(snapshot_);
    SPIPlanPtr plan = SPI_prepare_cursor(query_, 0, nullptr, CURSOR_OPT_NO_SCROLL);
    if (!plan) elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
    const Portal portal = SPI_cursor_open(nullptr, plan, nullptr, nullptr, true);
    portal_ = MemoryContextStrdup(context_, portal->name);
    PopActiveSnapshot();
    SPI_finish();
}

Portal QueryRows::find_portal() const {
    const Portal portal = portal_ ? GetPortalByName(portal_) : nullptr;
    if (!portal)
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_CURSOR_STATE),
                 errmsg("the query that reads \"%s\" has been closed", columns_.table_name)));
    return portal;
}

void QueryRows::fetch() {
    // A batch of rows at a time, in at most a few megabytes.
    const Size row_bytes = Size{Max(columns_.dims, 64u)} * columns_.type.value_bytes();
    const long wanted = static_cast<long>(std::clamp<Size>((Size{1} << 20) / row_bytes, 16, 1000));
    if (!portal_) open_portal();
    connect_spi();
    // No synchronized scan here either. The scan begins, and reads the setting, in the fetch below.
    const int level = NewGUCNestLevel();
    set_config_option("synchronize_seqscans", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
                      true, 0, false);
    SPI_cursor_fetch(find_portal(), true, wanted);
    AtEOXact_GUC(true, level);
    check_types(columns_, SPI_gettypeid(SPI_tuptable->tupdesc, 1),
                columns_.key_name ? SPI_gettypeid(SPI_tuptable->tupdesc, 2) : InvalidOid);
    for (int i = 0; i < columns_.value_count; ++i)
        check_value_type(columns_, i,
                         SPI_gettypeid(SPI_tuptable->tupdesc, first_columns(columns_) + i + 1));

    MemoryContextReset(fetch_context_);
    const MemoryContext before = MemoryContextSwitchTo(fetch_context_);
    fetched_count_ = SPI_processed;
    fetched_next_ = 0;
    fetched_columns_ = CreateTupleDescCopy(SPI_tuptable->tupdesc);
    fetched_ = static_cast<HeapTuple*>(palloc(Max(fetched_count_, uint64{1}) * sizeof(HeapTuple)));
    for (uint64 i = 0; i < fetched_count_; ++i) fetched_[i] = heap_copytuple(SPI_tuptable->vals[i]);
    MemoryContextSwitchTo(before);
    SPI_finish();
}

bool QueryRows::next(SourceRow* row) {
    if (finished_) return false;
    if (fetched_next_ == fetched_count_) {
        fetch();
        finished_ = fetched_count_ == 0;
        if (finished_) return false;
    }
    const HeapTuple tuple = fetched_[fetched_next_++];
    bool is_null;
    const Datum vector = heap_getattr(tuple, 1, fetched_columns_, &is_null);
    if (columns_.key_name) row->key = heap_getattr(tuple, 2, fetched_columns_, &row->key_is_null);
    for (int i = 0; i < columns_.value_count; ++i)
        values_[i] = heap_getattr(tuple, first_columns(columns_) + i + 1, fetched_columns_,
                                  &value_is_null_[i]);
    row->values = values_;
    row->value_is_null = value_is_null_;
    row->vector = is_null ? nullptr : plain_value(vector, row_context_, [](Datum datum) {
        return pg_detoast_datum(reinterpret_cast<varlena*>(DatumGetPointer(datum)));
    });
    return true;
}

void QueryRows::rewind() {
    if (portal_) {
        if (Portal portal = GetPortalByName(portal_)) PortalDrop(portal, false);
        pfree(portal_);
        portal_ = nullptr;
    }
    fetched_next_ = fetched_count_ = 0;
    finished_ = false;
}

}  // namespace pgwarp
