// knn_search and knn_join: the nearest rows for an array of queries, or for the rows of a table.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "extension/index/column.h"
#include "extension/knn/condition.h"
#include "extension/knn/device.h"
#include "extension/knn/merged_batch.h"
#include "extension/limits.h"
#include "extension/settings.h"
#include "extension/table/table_reader.h"
#include "extension/types/vector_type.h"
#include "extension/util/signature.h"

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
    constexpr int most = max_lists;
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
    MergedBatch* batch;  // null until the device is missing or fails
    KnnDevice* device;   // or null
    Size room;           // queries in one block of the caller
    KnnRow* rows;        // (k)
};

// `queries` is an estimate.
Search open_search(const KnnIndex& index, uint32 k, double queries) {
    Search search = {};
    search.index = &index;
    search.k = k;
    search.device = open_knn_device(index, k, queries);
    if (!search.device) search.batch = open_merged_batch(index, k);
    search.room = search.device ? most_queries(search.device) : most_queries(search.batch);
    if (search.device) search.rows = static_cast<KnnRow*>(palloc(k * sizeof(KnnRow)));
    return search;
}

void close_search(Search* search) {
    if (search->batch) close_merged_batch(search->batch);
    if (search->device) close_knn_device(search->device);
}

// Searches for (count)(dims) queries and calls put(query, rows) for each. `equal`: see batch.h.
template <typename Put>
void search_all(Search* search, const float* vectors, Size count, const KnnValues& equal,
                Put&& put) {
    if (search->device && search_on_device(search->device, vectors, static_cast<uint32>(count))) {
        for (Size i = 0; i < count; ++i) {
            const uint32 found = rows_of(search->device, static_cast<uint32>(i), search->rows);
            put(i, KnnRows{search->rows, found});
        }
        return;
    }
    if (!search->batch) search->batch = open_merged_batch(*search->index, search->k);
    for (Size first = 0; first < count;) {
        const Size here = std::min<Size>(count - first, most_queries(search->batch));
        const Size value = first * static_cast<Size>(search->index->equal_count);
        search_batch(search->batch, vectors + first * search->index->dims,
                     static_cast<uint32>(here), {equal.values + value, equal.nulls + value});
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

ArrayType* array_of_one(Datum vector, Oid type) {
    return construct_array(&vector, 1, type, -1, false, TYPALIGN_INT);
}

// knn_search's queries as an array of the index's type, from a text: an array, or one vector, whose
// text has no braces.
ArrayType* array_of_text(const KnnIndex& index, char* text) {
    const Oid element = index.index->rd_opcintype[0];
    const bool one = !strchr(text, '{');
    const Oid type = one ? element : get_array_type(element);
    if (!OidIsValid(type)) elog(ERROR, "type %u has no array type", element);
    Oid input;
    Oid parameter;
    getTypeInputInfo(type, &input, &parameter);
    const Datum value = OidInputFunctionCall(input, text, parameter, -1);
    return one ? array_of_one(value, element) : DatumGetArrayTypeP(value);
}

// The array of knn_search's only query, of the type that SQL declares.
ArrayType* array_of_argument(FunctionCallInfo fcinfo) {
    Oid* types;
    int count;
    get_func_signature(fcinfo->flinfo->fn_oid, &types, &count);
    return array_of_one(PG_GETARG_DATUM(1), types[1]);
}

// How the caller gives the queries.
enum class Given { array, text, vector };

// The elements of an array of vectors.
struct GivenQueries {
    VectorType type;
    Datum* values;
    Size count;
};

GivenQueries check_queries(ArrayType* array, const KnnIndex& index) {
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
            ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION),
                            errmsg("different %s dimensions %u and %u", type.name(), vector.dims,
                                   index.dims),
                            errdetail("Query %d has %u dimensions, the index has %u.", i + 1,
                                      vector.dims, index.dims)));
        check_elements(vector.values, static_cast<int>(vector.dims), type.name());
    }
    return {type, queries, static_cast<Size>(count)};
}

void search_queries(FunctionCallInfo fcinfo, Given given) {
    check_not_null(fcinfo, 0, "index");
    check_not_null(fcinfo, 1, given == Given::vector ? "query_vector" : "queries");
    check_not_null(fcinfo, 2, "k");
    const uint32 k = wanted_rows_of(PG_GETARG_INT32(2));
    ArrayType* array = given == Given::array    ? PG_GETARG_ARRAYTYPE_P(1)
                       : given == Given::vector ? array_of_argument(fcinfo)
                                                : nullptr;
    const auto check_array = [&] {
        if (ARR_NDIM(array) > 1)
            ereport(ERROR, (errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
                            errmsg("queries must be an array of one dimension")));
    };
    if (array) check_array();
    compat_init_materialized(fcinfo);
    const auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    const int level = begin_probes(fcinfo, 3);
    KnnIndex index = open_knn_index(PG_GETARG_OID(0), nullptr);
    if (!PG_ARGISNULL(4)) set_condition(&index, text_to_cstring(PG_GETARG_TEXT_PP(4)));

    if (!array) {
        array = array_of_text(index, text_to_cstring(PG_GETARG_TEXT_PP(1)));
        check_array();
    }
    const GivenQueries queries = check_queries(array, index);
    const VectorType index_type = type_of(index.index);

    Search search = open_search(index, k, static_cast<double>(queries.count));
    float* vectors = alloc_vectors(search, queries.count);
    for (Size first = 0; first < queries.count;) {
        const Size here = std::min(queries.count - first, search.room);
        for (Size i = 0; i < here; ++i) {
            float* to = vectors + i * index.dims;
            queries.type.read(
                reinterpret_cast<varlena*>(DatumGetPointer(queries.values[first + i])), index.dims,
                to);
            index_type.round(to, index.dims);
        }
        search_all(&search, vectors, here, {}, [&](Size query, const KnnRows& found) {
            for (uint32 r = 0; r < found.count; ++r) {
                ItemPointerData place = found.rows[r].place;
                Datum values[] = {Int32GetDatum(static_cast<int32>(first + query) + 1),
                                  Int32GetDatum(static_cast<int32>(r) + 1), PointerGetDatum(&place),
                                  Float4GetDatum(static_cast<float4>(found.rows[r].distance)),
                                  ObjectIdGetDatum(found.rows[r].table)};
                bool no_nulls[lengthof(values)] = {};
                tuplestore_putvalues(result->setResult, result->setDesc, values, no_nulls);
            }
        });
        first += here;
    }
    close_search(&search);
    close_knn_index(index);
    end_probes(level);
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_knn_search) {
    check_signature(fcinfo, 5, 5);
    search_queries(fcinfo, Given::array);
    return static_cast<Datum>(0);
}

PGWARP_FUNCTION(pgwarp_knn_search_vector) {
    check_signature(fcinfo, 5, 5);
    search_queries(fcinfo, Given::vector);
    return static_cast<Datum>(0);
}

PGWARP_FUNCTION(pgwarp_knn_search_text) {
    check_signature(fcinfo, 5, 5);
    search_queries(fcinfo, Given::text);
    return static_cast<Datum>(0);
}

namespace {

// The largest distance that a join returns; without one, infinity.
double limit_of_join(FunctionCallInfo fcinfo, int argument, Metric metric) {
    if (PG_ARGISNULL(argument)) return std::numeric_limits<double>::infinity();
    const double most = PG_GETARG_FLOAT8(argument);
    if (!std::isfinite(most))
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("max_distance must be a finite number")));
    if (metric != Metric::inner_product && most <= 0)
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                 errmsg("max_distance must be greater than 0 for metric %s", sql_name(metric)),
                 errhint("For vectors that are equal, take a small one.")));
    return most;
}

// The queries of a join, a block at a time.
struct JoinQueries {
    TableReader* reader;
    MemoryContext context;  // of the values, reset by each block
    VectorBlock block;
};

// Also completes the index's conditions, by the queries' columns.
TableReader* open_queries(FunctionCallInfo fcinfo, KnnIndex* index) {
    TableColumns columns = {PG_GETARG_OID(0), NameStr(*PG_GETARG_NAME(2)),
                            NameStr(*PG_GETARG_NAME(1))};
    columns.names = index->names;
    EqualColumns equal = {};
    if (!PG_ARGISNULL(8)) equal = read_equal_columns(PG_GETARG_ARRAYTYPE_P(8));
    columns.values = equal.query_columns;
    columns.value_count = equal.count;
    TableReader* reader = open_table_reader(columns);
    if (dims_of(reader) != 0 && dims_of(reader) != index->dims)
        ereport(ERROR,
                (errcode(ERRCODE_DATA_EXCEPTION),
                 errmsg("different vector dimensions %u and %u", dims_of(reader), index->dims),
                 errdetail("The queries have %u dimensions, the index has %u.", dims_of(reader),
                           index->dims)));
    Oid* types = static_cast<Oid*>(palloc(static_cast<Size>(Max(equal.count, 1)) * sizeof(Oid)));
    for (int i = 0; i < equal.count; ++i) types[i] = value_type(reader, i);
    set_equal_columns(index, equal, types);
    return reader;
}

JoinQueries begin_queries(TableReader* reader, const Search& search) {
    const Size values = search.room * static_cast<Size>(search.index->equal_count);
    const auto alloc = [](Size bytes) {
        return MemoryContextAllocHuge(CurrentMemoryContext, Max(bytes, Size{1}));
    };
    JoinQueries queries = {reader, nullptr, {}};
    queries.context =
        AllocSetContextCreate(CurrentMemoryContext, "knn values", ALLOCSET_DEFAULT_SIZES);
    queries.block = {alloc_vectors(search, search.room),
                     static_cast<int64*>(alloc(search.room * sizeof(int64))), search.room};
    if (values > 0) {
        queries.block.values = static_cast<Datum*>(alloc(values * sizeof(Datum)));
        queries.block.value_is_null = static_cast<bool*>(alloc(values * sizeof(bool)));
    }
    return queries;
}

// Returns how many; 0: there are no more. A query is what a cast to the index's type makes of it.
Size next_queries(const JoinQueries& queries, const VectorType& index_type) {
    if (dims_of(queries.reader) == 0) return 0;
    MemoryContextReset(queries.context);
    const MemoryContext before = MemoryContextSwitchTo(queries.context);
    const Size count = read_block(queries.reader, queries.block);
    for (Size i = 0; i < count; ++i)
        index_type.round(queries.block.vectors + i * dims_of(queries.reader),
                         dims_of(queries.reader));
    MemoryContextSwitchTo(before);
    return count;
}

}  // namespace

PGWARP_FUNCTION(pgwarp_knn_join) {
    check_signature(fcinfo, 10, 4);
    constexpr const char* arguments[] = {"query_table", "query_key_column", "query_vector_column",
                                         "index",       "key_column",       "k"};
    for (int i = 0; i < static_cast<int>(lengthof(arguments)); ++i)
        check_not_null(fcinfo, i, arguments[i]);
    const uint32 k = wanted_rows_of(PG_GETARG_INT32(5));
    compat_init_materialized(fcinfo);
    const auto* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    const int level = begin_probes(fcinfo, 6);
    // The values of a block are freed with it.
    KeyNames* names = names_in_result(result, 0, MaxAllocHugeSize);
    KnnIndex index = open_knn_index(PG_GETARG_OID(3), NameStr(*PG_GETARG_NAME(4)), names);
    if (!PG_ARGISNULL(7)) set_condition(&index, text_to_cstring(PG_GETARG_TEXT_PP(7)));
    const double most = limit_of_join(fcinfo, 9, metric_of(index.index));
    TableReader* reader = open_queries(fcinfo, &index);

    Search search = open_search(index, k, estimated_rows(reader));
    const JoinQueries queries = begin_queries(reader, search);
    const VectorBlock& block = queries.block;
    const VectorType index_type = type_of(index.index);
    while (const Size count = next_queries(queries, index_type)) {
        search_all(&search, block.vectors, count, {block.values, block.value_is_null},
                   [&](Size query, const KnnRows& found) {
                       for (uint32 r = 0; r < found.count; ++r) {
                           const KnnRow& row = found.rows[r];
                           // A zero vector has no cosine distance (NaN).
                           if (std::isfinite(most) && !(row.distance <= most)) continue;
                           Datum values[] = {key_datum(names, block.keys[query]),
                                             Int32GetDatum(static_cast<int32>(r) + 1),
                                             row.key_is_null ? Datum{0} : key_datum(names, row.key),
                                             Float4GetDatum(static_cast<float4>(row.distance))};
                           bool nulls[] = {false, false, row.key_is_null, false};
                           tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
                       }
                   });
        if (names) forget_key_names(names);
    }
    close_table_reader(reader);
    close_search(&search);
    close_knn_index(index);
    end_probes(level);
    return static_cast<Datum>(0);
}
