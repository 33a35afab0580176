// Exact distances of a scan: candidates come from codes, their order from the table's vectors.

#include <algorithm>
#include <cmath>

#include "kernels/distance.h"
#include "extension/index/column.h"
#include "extension/table/heap_hints.h"
#include "extension/scan/rows.h"
#include "extension/table/toast_reader.h"

extern "C" {
#include "access/tableam.h"
#include "catalog/index.h"
#include "executor/executor.h"
#include "nodes/execnodes.h"
#include "utils/memutils.h"
#include "utils/spccache.h"
}

namespace pgwarp {

struct RowReader {
    Relation heap;
    Relation index;
    BlockNumber heap_blocks;  // lower bound of the table's size
    Snapshot snapshot;
    IndexFetchTableData* fetch;
    bool hints;          // can_hint(): the table may use heap_hints.h
    Size rows_ahead;     // rows_to_read_ahead()
    ToastReader* toast;  // open while a round reads rows
    TupleTableSlot* slot;
    IndexInfo* info;
    VectorType type;
    AttrNumber attribute;  // 0: the index is on an expression
    EState* estate;        // for expressions
    bool has_values;       // `values` are those of the row read last
    Datum values[INDEX_MAX_KEYS];
    bool nulls[INDEX_MAX_KEYS];
    MemoryContext row_context;
    RowFilter filter;
    Datum datum;               // indexed value of the row read last
    const varlena* detoasted;  // `datum`; null where that is null
};

RowReader* open_row_reader(Relation heap, Relation index, Snapshot snapshot) {
    RowReader* reader = static_cast<RowReader*>(palloc0(sizeof(RowReader)));
    reader->heap = heap;
    reader->index = index;
    reader->snapshot = snapshot;
    reader->info = BuildIndexInfo(index);
    reader->attribute = reader->info->ii_IndexAttrNumbers[0];
    reader->type = type_of(index);
    reader->slot = table_slot_create(heap, nullptr);
    reader->fetch = compat_index_fetch_begin(heap);
    reader->hints = can_hint(heap);
    // Reading further ahead would evict pages before their turn.
    constexpr int most_ahead = 64;
    if (reader->hints)
        reader->rows_ahead = static_cast<Size>(
            std::min(get_tablespace_io_concurrency(heap->rd_rel->reltablespace), most_ahead));
    if (reader->info->ii_Expressions != NIL) reader->estate = CreateExecutorState();
    reader->row_context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq row", ALLOCSET_DEFAULT_SIZES);
    return reader;
}

namespace {

// An entry of a damaged index may name any row. The reader must not request a block past the end
// of the table, because InvalidBlockNumber (P_NEW) would extend the table, nor a line that no page
// has, because the table's access method need not expect it.
void check_tid(RowReader* reader, const ItemPointerData& tid) {
    const BlockNumber block = ItemPointerGetBlockNumberNoCheck(&tid);
    if (!OffsetNumberIsValid(ItemPointerGetOffsetNumberNoCheck(&tid)))
        ereport(ERROR, (errcode(ERRCODE_INDEX_CORRUPTED),
                        errmsg("index \"%s\" is damaged", RelationGetRelationName(reader->index)),
                        errdetail("It has an entry for row (%u,%u).", block,
                                  ItemPointerGetOffsetNumberNoCheck(&tid)),
                        errhint("Please REINDEX it.")));
    if (block < reader->heap_blocks) return;
    reader->heap_blocks = RelationGetNumberOfBlocks(reader->heap);
    if (block >= reader->heap_blocks)
        ereport(ERROR,
                (errcode(ERRCODE_INDEX_CORRUPTED),
                 errmsg("index \"%s\" is damaged", RelationGetRelationName(reader->index)),
                 errdetail("It has an entry for row (%u,%u), the table has %u blocks.", block,
                           ItemPointerGetOffsetNumberNoCheck(&tid), reader->heap_blocks),
                 errhint("Please REINDEX it.")));
}

}  // namespace

bool sees_row(RowReader* reader, ItemPointerData tid, bool* is_dead) {
    check_tid(reader, tid);
    bool call_again = false;
    bool all_dead = false;
    if (reader->hints) pin_hinted(reader->heap, reader->fetch, tid);
    const bool seen = table_index_fetch_tuple(reader->fetch, &tid, reader->snapshot, reader->slot,
                                              &call_again, &all_dead);
    if (is_dead) *is_dead = all_dead;
    if (!seen) return false;
    if (reader->hints) note_hint(reader->heap, reader->slot, tid);
    return true;
}

IndexValues index_values(RowReader* reader) {
    if (!reader->has_values) {
        if (reader->estate) {
            ResetPerTupleExprContext(reader->estate);
            GetPerTupleExprContext(reader->estate)->ecxt_scantuple = reader->slot;
        }
        FormIndexDatum(reader->info, reader->slot, reader->estate, reader->values, reader->nulls);
        reader->has_values = true;
    }
    return {reader->values, reader->nulls};
}

bool find_row(RowReader* reader, ItemPointerData tid, bool* is_dead) {
    MemoryContextReset(reader->row_context);
    reader->has_values = false;
    return sees_row(reader, tid, is_dead);
}

StoredVector read_row(RowReader* reader, ItemPointerData tid) {
    return find_row(reader, tid) ? read_found_row(reader) : StoredVector{};
}

StoredVector read_found_row(RowReader* reader) {
    if (reader->filter.passes) {
        ++reader->filter.seen;
        if (!reader->filter.passes(reader->filter.state, reader->slot)) return {};
        ++reader->filter.passed;
    }

    const MemoryContext before = MemoryContextSwitchTo(reader->row_context);
    Datum value;
    bool is_null;
    if (reader->attribute != 0) {
        value = slot_getattr(reader->slot, reader->attribute, &is_null);
    } else {
        const IndexValues all = index_values(reader);
        value = all.values[0];
        is_null = all.nulls[0];
    }
    MemoryContextSwitchTo(GetMemoryChunkContext(reader));
    if (!reader->toast) reader->toast = open_toast_reader(reader->heap);
    MemoryContextSwitchTo(reader->row_context);
    reader->datum = value;
    reader->detoasted = is_null ? nullptr : read_value(reader->toast, value);
    MemoryContextSwitchTo(before);
    return is_null ? StoredVector{} : reader->type.stored(reader->detoasted);
}

VectorView floats_of_row(RowReader* reader) {
    const MemoryContext before = MemoryContextSwitchTo(reader->row_context);
    const VectorView vector = reader->type.view(reader->detoasted);
    MemoryContextSwitchTo(before);
    return vector;
}

void set_row_filter(RowReader* reader, const RowFilter& filter) {
    reader->filter = filter;
}

const RowFilter& row_filter(const RowReader* reader) {
    static const RowFilter none = {};
    return reader ? reader->filter : none;
}

MemoryContext row_context(const RowReader* reader) {
    return reader->row_context;
}

ItemPointerData place_of_row(const RowReader* reader) {
    return reader->slot->tts_tid;
}

TupleTableSlot* slot_of_row(const RowReader* reader) {
    return reader->slot;
}

Datum value_of_row(RowReader* reader, AttrNumber attribute, bool* is_null) {
    return slot_getattr(reader->slot, attribute, is_null);
}

Size rows_to_read_ahead(const RowReader* reader) {
    return reader->rows_ahead;
}

void prefetch_row(RowReader* reader, ItemPointerData tid, PrefetchStage stage) {
    if (!reader->hints) return;
    switch (stage) {
        case PrefetchStage::read:
            if (reader->rows_ahead == 0) return;
            if (reader->heap_blocks == 0)
                reader->heap_blocks = RelationGetNumberOfBlocks(reader->heap);
            // A damaged index may name any block.
            if (ItemPointerGetBlockNumberNoCheck(&tid) < reader->heap_blocks)
                read_ahead(reader->heap, tid);
            return;
        case PrefetchStage::hint:
            return prefetch_hint(reader->heap, tid);
        case PrefetchStage::page:
            return prefetch_page(reader->heap, tid);
        case PrefetchStage::tuple:
            return prefetch_tuple(reader->heap, tid);
    }
}

void pin_for_fetch(const RowReader* reader, IndexFetchTableData* fetch,
                   const ItemPointerData& tid) {
    if (reader->hints && fetch) pin_hinted(reader->heap, fetch, tid);
}

void keep_row(RowReader* reader, VectorCache* cache) {
    keep_value(cache, reader->datum, reader->detoasted);
}

void rest_row_reader(RowReader* reader) {
    ExecClearTuple(reader->slot);
    table_index_fetch_reset(reader->fetch);
    if (reader->toast) close_toast_reader(reader->toast);
    reader->toast = nullptr;
}

void close_row_reader(RowReader* reader) {
    rest_row_reader(reader);
    table_index_fetch_end(reader->fetch);
    ExecDropSingleTupleTableSlot(reader->slot);
    if (reader->estate) FreeExecutorState(reader->estate);
    MemoryContextDelete(reader->row_context);
    pfree(reader);
}

namespace {

template <typename Element>
double distance_between(Metric metric, const float* query, const Element* row, size_t dims) {
    switch (metric) {
        case Metric::l2:
            return squared_l2_distance(query, row, dims);
        case Metric::inner_product:
            return -static_cast<double>(dot_product(query, row, dims));
        case Metric::cosine: {
            const CosineParts parts = cosine_parts(query, row, dims);
            const double cosine =
                parts.product /
                std::sqrt(static_cast<double>(parts.squared_norm_a) * parts.squared_norm_b);
            // Squares that underflow make it infinite. NaN stays NaN.
            return 1.0 - (cosine > 1 ? 1 : cosine < -1 ? -1 : cosine);
        }
        case Metric::l1:
            break;  // no index supports it
    }
    pg_unreachable();
}

}  // namespace

double exact_distance(Metric metric, const float* query, const StoredVector& row) {
    return row.visit(
        [&](const auto* elements) { return distance_between(metric, query, elements, row.dims); });
}

double exact_distance(Metric metric, const VectorView& query, const StoredVector& row) {
    check_same_dims(query.dims, row.dims, VectorType(row.format, 0).name());
    return exact_distance(metric, query.values, row);
}

}  // namespace pgwarp
