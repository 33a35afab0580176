#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/executor.h"
#include "extension/graph/auto_search.h"
#include "extension/graph/job.h"
#include "extension/graph/metric.h"
#include "extension/graph/table.h"
#include "extension/knn/merged_batch.h"
#include "extension/table/parallel_reader.h"
#include "extension/types/vector_type.h"

extern "C" {
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

VectorType type_of_vectors(const KeptGraph& kept) {
    Oid type;
    int32 typmod;
    Oid collation;
    get_atttypetypmodcoll(kept.table, get_attnum(kept.table, kept.vector), &type, &typmod,
                          &collation);
    return VectorType::of(type, typmod);
}

bool has_distance(Metric metric, const float* row, uint32 dims) {
    const auto is_zero = [](float value) { return value == 0; };
    return !normalizes(metric) || !std::all_of(row, row + dims, is_zero);
}

// Copies what a query found: (key, vector).
KeptRows take_rows(const KeptGraph& kept) {
    const VectorType type = type_of_vectors(kept);
    const Oid key_type = kept.names ? TEXTOID : INT8OID;
    KeptRows found = {};
    found.keys = static_cast<int64*>(
        palloc_extended(std::max<Size>(SPI_processed, 1) * sizeof(int64), MCXT_ALLOC_HUGE));
    for (uint64 i = 0; i < SPI_processed; ++i) {
        bool is_null;
        const auto value = [&](int column) {
            return SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, column, &is_null);
        };
        const VectorView view = type.view(value(2));
        if (found.count == 0) {
            found.dims = view.dims;
            found.rows = static_cast<float*>(
                palloc_extended(SPI_processed * view.dims * sizeof(float), MCXT_ALLOC_HUGE));
        }
        if (view.dims != found.dims)
            ereport(ERROR,
                    (errcode(ERRCODE_DATA_EXCEPTION),
                     errmsg("different vector dimensions %u and %u", found.dims, view.dims)));
        if (!has_distance(kept.metric, view.values, view.dims)) continue;
        memcpy(found.rows + found.count * found.dims, view.values, found.dims * sizeof(float));
        found.keys[found.count++] = key_of(kept.names, value(1), key_type);
    }
    return found;
}

}  // namespace

KeptRows read_kept_rows(const KeptGraph& kept, const int64* keys, Size count) {
    const char* key = quote_identifier(kept.key);
    const char* vector = quote_identifier(kept.vector);
    const char* query = psprintf(
        "SELECT %s::pg_catalog.%s, %s FROM %s WHERE %s OPERATOR(pg_catalog.=) ANY "
        "($1::pg_catalog.%s[]) AND %s IS NOT NULL",
        key, kept.names ? "text" : "int8", vector, qualified_name(kept.table), key,
        key_type_name(kept.table, kept.key), vector);
    Oid types[] = {kept.names ? Oid{TEXTARRAYOID} : Oid{INT8ARRAYOID}};
    Datum values[] = {key_array(kept.names, keys, count)};
    if (SPI_execute_with_args(query, 1, types, values, nullptr, true, 0) != SPI_OK_SELECT)
        elog(ERROR, "could not read table \"%s\"", get_rel_name(kept.table));
    const KeptRows found = take_rows(kept);
    SPI_freetuptable(SPI_tuptable);
    return found;
}

namespace {

NearRows new_near_rows(Size count, uint32 most) {
    const Size places = std::max<Size>(count, 1) * most;
    return {static_cast<NearRow*>(palloc_extended(places * sizeof(NearRow), MCXT_ALLOC_HUGE)),
            static_cast<uint32*>(palloc_extended(std::max<Size>(count, 1) * sizeof(uint32),
                                                 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO)),
            most};
}

void search_index(const KeptGraph& kept, const KeptRows& rows, NearRows* near) {
    const KnnIndex index = open_knn_index(kept.index, kept.key, kept.names);
    if (index.dims != rows.dims)
        ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION),
                        errmsg("different vector dimensions %u and %u", index.dims, rows.dims)));
    MergedBatch* batch = open_merged_batch(index, near->most);
    const Size room = most_queries(batch);
    for (Size first = 0; first < rows.count; first += room) {
        const Size here = std::min(room, rows.count - first);
        search_batch(batch, rows.rows + first * rows.dims, static_cast<uint32>(here));
        for (Size i = 0; i < here; ++i) {
            const KnnRows found = rows_of(batch, static_cast<uint32>(i));
            NearRow* to = near->rows + (first + i) * near->most;
            uint32* count = &near->counts[first + i];
            for (uint32 j = 0; j < found.count && *count < near->most; ++j)
                if (!found.rows[j].key_is_null && !std::isnan(found.rows[j].distance))
                    to[(*count)++] = {found.rows[j].key,
                                      static_cast<float>(found.rows[j].distance)};
        }
    }
    close_merged_batch(batch);
    close_knn_index(index);
}

// An exact search that reads the table once.
struct TableSearch {
    Metric metric;
    const float* queries;  // (count)(dims), by prepare_row()
    Size count;
    uint32 dims;
    uint32 most;
    Neighbor* nearest;  // (count)(most)
    Executor* executor;
};

void keep_nearest(Neighbor* nearest, uint32 places, const Neighbor& found) {
    const auto nearer = [](const Neighbor& a, const Neighbor& b) {
        return a.distance < b.distance;
    };
    if (!nearer(found, nearest[places - 1])) return;
    Neighbor* at = std::upper_bound(nearest, nearest + places - 1, found, nearer);
    std::move_backward(at, nearest + places - 1, nearest + places);
    *at = found;
}

void search_rows(const TableSearch& search, const float* rows, const int64* keys, Size count) {
    if (has_products(search.metric)) {
        const Metric metric = has_norms(search.metric) ? Metric::l2 : Metric::inner_product;
        run_graph_kernel([&] {
            search.executor->exact_search({search.queries, search.count, rows, count,
                                           reinterpret_cast<const uint64_t*>(keys), search.dims,
                                           metric, search.most, search.nearest});
        });
        return;
    }
    for (Size i = 0; i < count; ++i) {
        CHECK_FOR_INTERRUPTS();
        for (Size q = 0; q < search.count; ++q)
            keep_nearest(search.nearest + q * search.most, search.most,
                         {graph_distance(search.metric, search.queries + q * search.dims,
                                         rows + i * search.dims, search.dims),
                          static_cast<uint64>(keys[i])});
    }
}

// Workers take longer to start than a table is read for few queries.
constexpr Size queries_for_workers = 64;

void read_all_rows(const KeptGraph& kept, const TableSearch& search) {
    TableColumns columns = {kept.table, kept.vector, kept.key};
    columns.names = kept.names;
    TableReader* table = open_table_reader(columns);
    if (dims_of(table) != 0 && dims_of(table) != search.dims)
        ereport(ERROR,
                (errcode(ERRCODE_DATA_EXCEPTION),
                 errmsg("different vector dimensions %u and %u", dims_of(table), search.dims)));
    const int workers = search.count < queries_for_workers ? 0 : max_parallel_maintenance_workers;
    ParallelReader* reader = open_parallel_reader(
        table, {RowIds::keys, RowForm::floats, workers, usual_pool_bytes(), 1}, nullptr);
    RowBlock block;
    while (next_block(reader, &block)) {
        CHECK_FOR_INTERRUPTS();
        int64* keys = reinterpret_cast<int64*>(block.tids);
        for (Size i = 0; i < *block.count; ++i) keys[i] = id_key(block.tids[i]);
        const Size count =
            prepare_rows(kept.metric, block.floats(), keys, *block.count, search.dims);
        search_rows(search, block.floats(), keys, count);
        give_back(reader, block);
    }
    close_parallel_reader(reader);
    close_table_reader(table);
}

void search_table(const KeptGraph& kept, const KeptRows& rows, NearRows* near) {
    const Size values = rows.count * rows.dims;
    float* queries = static_cast<float*>(palloc_extended(values * sizeof(float), MCXT_ALLOC_HUGE));
    std::copy_n(rows.rows, values, queries);
    for (Size i = 0; i < rows.count; ++i)
        prepare_row(kept.metric, queries + i * rows.dims, rows.dims);
    const Size places = rows.count * near->most;
    auto* nearest =
        static_cast<Neighbor*>(palloc_extended(places * sizeof(Neighbor), MCXT_ALLOC_HUGE));
    std::fill_n(nearest, places, Neighbor{std::numeric_limits<float>::infinity(), 0});
    Owned<Executor>* executor = owned_by<Executor>(CurrentMemoryContext);
    guarded([&] {
        executor->object = make_cpu_executor(graph_threads(), query_interrupts()).release();
    });
    read_all_rows(
        kept, {kept.metric, queries, rows.count, rows.dims, near->most, nearest, executor->object});
    for (Size i = 0; i < places; ++i) {
        if (nearest[i].distance == std::numeric_limits<float>::infinity()) continue;
        // The executor has normalised rows by squared L2.
        const float distance =
            kept.metric == Metric::cosine ? nearest[i].distance / 2 : nearest[i].distance;
        near->rows[i / near->most * near->most + near->counts[i / near->most]++] = {
            static_cast<int64>(nearest[i].id), edge_operator_distance(kept.metric, distance)};
    }
    pfree(nearest);
    pfree(queries);
}

}  // namespace

NearRows find_near_rows(const KeptGraph& kept, const KeptRows& rows, uint32 most) {
    NearRows near = new_near_rows(rows.count, most);
    if (rows.count == 0) return near;
    if (OidIsValid(kept.index))
        search_index(kept, rows, &near);
    else
        search_table(kept, rows, &near);
    return near;
}

}  // namespace pgwarp
