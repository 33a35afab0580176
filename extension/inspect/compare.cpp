// ivfpq_compare: compares the quantizers on a sample of a column.
//
// The sample is read through SQL, with the caller's privileges and row security. Some of its rows
// are set aside as queries; the others train the quantizers, are encoded, and are searched by their
// codes.

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "kernels/compare_codes.h"
#include "kernels/executor.h"
#include "kernels/lsq.h"
#include "kernels/random.h"
#include "extension/guard.h"
#include "extension/index/lapack_check.h"
#include "extension/index/options.h"
#include "extension/create/bulk.h"
#include "extension/index/format.h"
#include "extension/index/argument.h"
#include "extension/create/train.h"
#include "extension/types/vector_type.h"
#include "extension/util/signature.h"

extern "C" {
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

constexpr int min_sample = 1000;
constexpr uint32 max_queries = 1000;
constexpr uint32 rows_a_query = 10;
constexpr long fetched_rows = 1000;

char* sample_query(Oid table, const char* column) {
    const AttrNumber number = get_attnum(table, column);
    if (number == InvalidAttrNumber)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_COLUMN),
                        errmsg("column \"%s\" of relation \"%s\" does not exist", column,
                               get_rel_name(table))));
    const Oid type = get_atttype(table, number);
    if (!VectorType::of(type))
        ereport(ERROR, (errcode(ERRCODE_DATATYPE_MISMATCH),
                        errmsg("column \"%s\" is not of type vector", column)));
    const char* name = quote_identifier(column);
    return psprintf("SELECT %s FROM %s WHERE %s IS NOT NULL", name,
                    quote_qualified_identifier(get_namespace_name(get_rel_namespace(table)),
                                               get_rel_name(table)),
                    name);
}

// Counts the sample, a copy of the training rows, what is computed from these, and the matrices of
// a rotation.
void check_memory(uint32 rows, uint32 dims) {
    const Size bytes = sizeof(float) * (5 * Size{rows} * dims + 12 * Size{dims} * dims);
    if (bytes / 1024 > static_cast<Size>(maintenance_work_mem))
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                        errmsg("memory required is %zu MB, maintenance_work_mem is %d MB",
                               bytes / (1024 * 1024) + 1, maintenance_work_mem / 1024),
                        errhint("Ask for a smaller sample, or raise maintenance_work_mem.")));
}

// Whether lsq can take part in the comparison: it is for short codes only, and takes more memory
// than the others.
bool can_compare_sums(uint32 bytes, const Sample& sample) {
    if (bytes > static_cast<uint32>(max_lsq_m)) return false;
    const LsqShape shape{sample.dims, bytes};
    const Size needed = 5 * sizeof(float) * Size{sample.count} * sample.dims +
                        4 * sizeof(float) * shape.words() * shape.dims +
                        std::max(2 * LsqEncoder::bytes(shape), lsq_fit_bytes(shape));
    if (needed / 1024 <= static_cast<Size>(maintenance_work_mem)) return true;
    ereport(NOTICE, (errmsg("quantizer lsq is left out: memory required is %zu MB, "
                            "maintenance_work_mem is %d MB",
                            needed / (1024 * 1024) + 1, maintenance_work_mem / 1024)));
    return false;
}

// A sample in which every row of the column has the same chance, in the current memory context.
Sample draw_sample(const char* query, uint32 wanted) {
    const MemoryContext caller = CurrentMemoryContext;
    Sample sample = {};
    Random random(0);
    SPI_connect();
    SPIPlanPtr plan = SPI_prepare(query, 0, nullptr);
    if (!plan) elog(ERROR, "could not prepare \"%s\"", query);
    Portal portal = SPI_cursor_open(nullptr, plan, nullptr, nullptr, true);
    const MemoryContext row_context =
        AllocSetContextCreate(caller, "ivfpq compare row", ALLOCSET_DEFAULT_SIZES);
    while (true) {
        SPI_cursor_fetch(portal, true, fetched_rows);
        const uint64 fetched = SPI_processed;
        const VectorType type = VectorType::of(SPI_gettypeid(SPI_tuptable->tupdesc, 1));
        for (uint64 i = 0; i < fetched; ++i) {
            CHECK_FOR_INTERRUPTS();
            bool null;
            const Datum value =
                SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &null);
            // Frees the detoasted copies of long vectors.
            MemoryContextReset(row_context);
            const MemoryContext of_spi = MemoryContextSwitchTo(row_context);
            const VectorView vector = type.view(value);
            MemoryContextSwitchTo(of_spi);
            if (!sample.rows) {
                check_memory(wanted, vector.dims);
                const MemoryContext before = MemoryContextSwitchTo(caller);
                sample = new_sample(vector.dims, wanted);
                MemoryContextSwitchTo(before);
            }
            check_same_dims(sample.dims, vector.dims, type.name());
            const uint32 slot = draw_slot(&sample, &random);
            if (slot == sample.room) continue;
            std::copy_n(vector.values, sample.dims, sample.rows + Size{slot} * sample.dims);
            sample.tids[slot] = sample.seen;
        }
        SPI_freetuptable(SPI_tuptable);
        if (fetched == 0) break;
    }
    SPI_cursor_close(portal);
    SPI_finish();
    MemoryContextDelete(row_context);
    shuffle_sample(&sample, &random);
    return sample;
}

// The true nearest row of each query.
uint32* find_nearest(Executor* executor, const float* queries, uint32 query_count,
                     const float* rows, uint32 count, uint32 dims) {
    uint64* ids = static_cast<uint64*>(palloc(count * sizeof(uint64)));
    for (uint32 i = 0; i < count; ++i) ids[i] = i;
    Neighbor* found = static_cast<Neighbor*>(palloc(query_count * sizeof(Neighbor)));
    guarded_interruptibly([&] {
        for (uint32 i = 0; i < query_count; ++i)
            found[i] = {std::numeric_limits<float>::infinity(), 0};
        executor->exact_search(
            {queries, query_count, rows, count, ids, dims, Metric::l2, 1, found});
    });
    uint32* nearest = static_cast<uint32*>(palloc(query_count * sizeof(uint32)));
    for (uint32 i = 0; i < query_count; ++i) nearest[i] = static_cast<uint32>(found[i].id);
    pfree(ids);
    pfree(found);
    return nearest;
}

void add_result(ReturnSetInfo* result, const CodeTrial& trial, const CodeQuality& quality) {
    Datum values[8];
    bool nulls[8] = {};
    const QuantizerKind kind = trial.kind == CodeKind::pq    ? QuantizerKind::pq
                               : trial.kind == CodeKind::opq ? QuantizerKind::opq
                                                             : QuantizerKind::lsq;
    values[0] = CStringGetTextDatum(quantizer_name(kind));
    values[1] = Int32GetDatum(static_cast<int32>(trial.bits));
    values[2] = Float8GetDatum(quality.training_seconds);
    values[3] = Float8GetDatum(quality.rows_per_second);
    values[4] = Float8GetDatum(quality.error);
    for (int i = 0; i < 3; ++i) values[5 + i] = Float8GetDatum(quality.recall[i]);
    tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

void check_sample(const Sample& sample, int bytes) {
    if (sample.count < static_cast<uint32>(min_sample))
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("too few rows to compare quantizers with"),
                        errdetail("There are %u, and %d are needed.", sample.count, min_sample)));
    if (static_cast<uint32>(bytes) > sample.dims)
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                 errmsg("bytes cannot be greater than the number of dimensions"),
                 errdetail("bytes is %d, the column has %u dimensions.", bytes, sample.dims)));
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(ivfpq_compare) {
    check_signature(fcinfo, 4, 8);
    const Oid table = PG_GETARG_OID(0);
    const char* column = NameStr(*PG_GETARG_NAME(1));
    const int bytes = PG_GETARG_INT32(2);
    const int wanted = PG_GETARG_INT32(3);
    if (wanted < min_sample)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("sample must be at least %d", min_sample)));
    if (bytes < 1)
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("bytes must be at least 1")));
    compat_init_materialized(fcinfo);
    ReturnSetInfo* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);

    const Sample sample = draw_sample(sample_query(table, column), static_cast<uint32>(wanted));
    check_sample(sample, bytes);

    const bool rotations = sample.dims <= static_cast<uint32>(max_rotated_dims);
    if (rotations) check_lapack(quantizer_name(QuantizerKind::opq), ERROR);
    const uint32 query_count = std::min(max_queries, sample.count / rows_a_query);
    const uint32 count = sample.count - query_count;
    const float* queries = sample.rows + Size{count} * sample.dims;
    struct Tools {
        Workers workers;
        std::unique_ptr<Executor> executor;
    };
    const int threads = 1 + max_parallel_maintenance_workers;
    Owned<Tools>* tools = owned_by<Tools>(CurrentMemoryContext);
    guarded([&] {
        tools->object = new Tools{Workers(threads, query_interrupts()),
                                  make_cpu_executor(threads, query_interrupts())};
    });
    const uint32* nearest = find_nearest(tools->object->executor.get(), queries, query_count,
                                         sample.rows, count, sample.dims);
    const CodeSample data{sample.dims, Metric::l2, sample.rows, count,  sample.rows,
                          count,       queries,    query_count, nearest};
    const bool sums = rotations && can_compare_sums(static_cast<uint32>(bytes), sample);
    for (const CodeKind kind : {CodeKind::pq, CodeKind::opq, CodeKind::lsq})
        for (const uint32 bits : {8u, 4u}) {
            if ((kind == CodeKind::opq && !rotations) ||
                (kind == CodeKind::lsq && (!sums || bits == 4)) ||
                (bits == 4 && static_cast<uint32>(bytes) > sample.dims / 2))
                continue;
            const CodeTrial trial{kind, bits, static_cast<uint32>(bytes)};
            CodeQuality quality;
            CHECK_FOR_INTERRUPTS();
            guarded_interruptibly([&] {
                quality =
                    measure_codes(tools->object->workers, *tools->object->executor, trial, data, 0);
            });
            add_result(result, trial, quality);
        }
    guarded([&] { delete std::exchange(tools->object, nullptr); });
    return Datum{0};
}
