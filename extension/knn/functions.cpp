// knn_search and knn_join: the nearest rows for an array of queries, or for the rows of a table.

#include <algorithm>
#include <cstring>

#include "extension/knn/batch.h"
#include "extension/knn/device.h"
#include "extension/settings.h"
#include "extension/table/table_reader.h"
#include "extension/types/vector_type.h"

extern "C" {
#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"
}

namespace pgwarp {

namespace {

void check_not_null(FunctionCallInfo fcinfo, int argument, const char* name) {
    if (PG_ARGISNULL(argument))
        ereport(ERROR,
                (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("%s must not be null", name)));
}

uint32 wanted_rows_of(int32 k) {
    if (k < 1)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("k must be at least 1")));
    return static_cast<uint32>(k);
}

// Sets ivfpq.probes until end_probes(), or until an error rolls it back.
int begin_probes(FunctionCallInfo fcinfo, int argument) {
    const int level = NewGUCNestLevel();
    if (PG_ARGISNULL(argument)) return level;
    const int32 probes = PG_GETARG_INT32(argument);
    if (probes < 1)
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("probes must be at least 1")));
    // The largest number of lists; more probes change nothing.
    constexpr int most = 32768;
    char text[16];
    pg_ltoa(Min(probes, most), text);
    set_config_option("ivfpq.probes", text, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0,
                      false);
    return level;
}

void end_probes(int level) {
    AtEOXact_GUC(true, level);
}

// Searches block after block of queries, on a device if that pays, otherwise through the lists.
struct Search {
    const KnnIndex* index;
    uint32 k;
    KnnBatch* batch;    // null until the device is missing or fails
    KnnDevice* device;  // or null
    Size room;          // queries in one block of the caller
    KnnRow* rows;       // (k)
};

// `queries` is an estimate.
Search open_search(const KnnIndex& index, uint32 k, double queries) {
    Search search = {};
    search.index = &index;
    search.k = k;
    search.device = open_knn_device(index, k, queries);
    if (!search.device) search.batch = open_knn_batch(index, k);
    search.room = search.device ? most_queries(search.device) : most_queries(search.batch);
    if (search.device) search.rows = static_cast<KnnRow*>(palloc(k * sizeof(KnnRow)));
    return search;
}

void close_search(Search* search) {
    if (search->batch) close_knn_batch(search->batch);
    if (search->device) close_knn_device(search->device);
}

// Searches for (count)(dims) queries and calls put(query, rows) for each.
template <typename Put>
void search_all(Search* search, const float* vectors, Size count, Put&& put) {
    if (search->device && search_on_device(search->device, vectors, static_cast<uint32>(count))) {
        for (Size i = 0; i < count; ++i) {
            const uint32 found = rows_of(search->device, static_cast<uint32>(i), search->rows);
            put(i, KnnRows{search->rows, found});
        }
        return;
    }
    if (!search->batch) search->batch = open_knn_batch(*search->index, search->k);
    for (Size first = 0; first < count;) {
        const Size here = std::min<Size>(count - first, most_queries(search->batch));
        search_batch(search->batch, vectors + first * search->index->dims,
                     static_cast<uint32>(here));
        for (Size i = 0; i < here; ++i)
            put(first + i, rows_of(search->batch, static_cast<uint32>(i)));
        first += here;
    }
}

float* alloc_vectors(const Search& search, Size count) {
    return static_cast<float*>(MemoryContextAllocHuge(
        CurrentMemoryContext,
        Max(std::min(count, search.room), Size{1}) * search.index->dims * sizeof(float)));
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_knn_search) {
    check_not_null(fcinfo, 0, "index");
    check_not_null(fcinfo, 1, "queries");
    check_not_null(fcinfo, 2, "k");
    const uint32 k = wanted_rows_of(PG_GETARG_INT32(2));
    ArrayType* array = PG_GETARG_ARRAYTYPE_P(1);
    if (ARR_NDIM(array) > 1)
        ereport(ERROR, (errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
                        errmsg("queries must be an array of one dimension")));
    compat_init_materialized(fcinfo);
    const auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    const int level = begin_probes(fcinfo, 3);
    const KnnIndex index = open_knn_index(PG_GETARG_OID(0), nullptr);

    const VectorType type = VectorType::of(ARR_ELEMTYPE(array));
    Datum* queries;
    bool* nulls;
    int count;
    deconstruct_array(array, ARR_ELEMTYPE(array), -1, false, TYPALIGN_INT, &queries, &nulls,
                      &count);
    for (int i = 0; i < count; ++i) {
        if (nulls[i])
            ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                            errmsg("queries must not contain nulls"),
                            errdetail("Query %d is null.", i + 1)));
        const VectorView vector = type.view(queries[i]);
        if (vector.dims != index.dims)
            ereport(ERROR,
                    (errcode(ERRCODE_DATA_EXCEPTION),
                     errmsg("different vector dimensions %u and %u", vector.dims, index.dims),
                     errdetail("Query %d has %u dimensions, the index has %u.", i + 1, vector.dims,
                               index.dims)));
        check_elements(vector.values, static_cast<int>(vector.dims));
    }

    Search search = open_search(index, k, count);
    float* vectors = alloc_vectors(search, static_cast<Size>(count));
    for (Size first = 0; first < static_cast<Size>(count);) {
        const Size here = std::min(static_cast<Size>(count) - first, search.room);
        for (Size i = 0; i < here; ++i)
            memcpy(vectors + i * index.dims, type.view(queries[first + i]).values,
                   index.dims * sizeof(float));
        search_all(&search, vectors, here, [&](Size query, const KnnRows& found) {
            for (uint32 r = 0; r < found.count; ++r) {
                ItemPointerData place = found.rows[r].place;
                Datum values[] = {Int32GetDatum(static_cast<int32>(first + query) + 1),
                                  Int32GetDatum(static_cast<int32>(r) + 1), PointerGetDatum(&place),
                                  Float4GetDatum(static_cast<float4>(found.rows[r].distance))};
                bool no_nulls[4] = {};
                tuplestore_putvalues(result->setResult, result->setDesc, values, no_nulls);
            }
        });
        first += here;
    }
    close_search(&search);
    close_knn_index(index);
    end_probes(level);
    return static_cast<Datum>(0);
}

PGWARP_FUNCTION(pgwarp_knn_join) {
    constexpr const char* arguments[] = {"query_table", "query_key_column", "query_vector_column",
                                         "index",       "key_column",       "k"};
    for (int i = 0; i < static_cast<int>(lengthof(arguments)); ++i)
        check_not_null(fcinfo, i, arguments[i]);
    const uint32 k = wanted_rows_of(PG_GETARG_INT32(5));
    compat_init_materialized(fcinfo);
    const auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    const int level = begin_probes(fcinfo, 6);
    const KnnIndex index = open_knn_index(PG_GETARG_OID(3), NameStr(*PG_GETARG_NAME(4)));
    TableReader* reader = open_table_reader(
        {PG_GETARG_OID(0), NameStr(*PG_GETARG_NAME(2)), NameStr(*PG_GETARG_NAME(1))});
    if (dims_of(reader) != 0 && dims_of(reader) != index.dims)
        ereport(ERROR,
                (errcode(ERRCODE_DATA_EXCEPTION),
                 errmsg("different vector dimensions %u and %u", dims_of(reader), index.dims),
                 errdetail("The queries have %u dimensions, the index has %u.", dims_of(reader),
                           index.dims)));

    Search search = open_search(index, k, estimated_rows(reader));
    float* vectors = alloc_vectors(search, search.room);
    int64* keys = static_cast<int64*>(
        MemoryContextAllocHuge(CurrentMemoryContext, search.room * sizeof(int64)));
    while (dims_of(reader) != 0) {
        const Size count = read_block(reader, {vectors, keys, search.room});
        if (count == 0) break;
        search_all(&search, vectors, count, [&](Size query, const KnnRows& found) {
            for (uint32 r = 0; r < found.count; ++r) {
                Datum values[] = {Int64GetDatum(keys[query]),
                                  Int32GetDatum(static_cast<int32>(r) + 1),
                                  Int64GetDatum(found.rows[r].key),
                                  Float4GetDatum(static_cast<float4>(found.rows[r].distance))};
                bool nulls[] = {false, false, found.rows[r].key_is_null, false};
                tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
            }
        });
    }
    close_table_reader(reader);
    close_search(&search);
    close_knn_index(index);
    end_probes(level);
    return static_cast<Datum>(0);
}
