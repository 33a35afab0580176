// kmeans: clusters the vectors of a table.
//
// All rows of the table are clustered, in one of three ways. On a device: workers read the rows,
// the device keeps them, and this process keeps none. On the CPU, if the rows fit into
// maintenance_work_mem: they are read once and clustered in memory. Otherwise every iteration reads
// the table again, a block at a time. All ways have the same start and, up to rounding, the same
// arithmetic.

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/draw_rows.h"
#include "kernels/executor.h"
#include "kernels/kmeans.h"
#include "extension/device/executor.h"
#include "extension/guard.h"
#include "extension/table/parallel_reader.h"
#include "extension/util/stopwatch.h"
#include "extension/table/table_reader.h"
#include "extension/types/vector_type.h"
#include "extension/util/signature.h"

extern "C" {
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"
}

namespace pgwarp {

namespace {

struct Clustering {
    TableReader* reader;
    uint32 dims;
    uint32 clusters;
    int iterations;
    uint64 seed;
    int threads;

    Size room;     // rows that memory has room for
    float* rows;   // (room at most)(dims); grows as needed
    uint64 count;  // rows of the table with a vector
    float* centroids;
    int64* sizes;
    int64 nulls;
    bool device_failed;
};

float* alloc_floats(Size count) {
    return static_cast<float*>(MemoryContextAllocHuge(CurrentMemoryContext, count * sizeof(float)));
}

// Rows that maintenance_work_mem has room for beside the centroids. An error if these are fewer
// than make an efficient block.
Size rows_in_memory(uint32 dims, uint32 clusters) {
    constexpr Size min_rows = 256;
    const Size memory = static_cast<Size>(maintenance_work_mem) * 1024;
    const Size fixed = KmeansPass::bytes(dims, clusters) + 2 * sizeof(float) * dims * clusters;
    const Size row_bytes = dims * sizeof(float) + 24;  // 24: an iteration's state
    const Size needed = fixed + min_rows * row_bytes;
    if (needed > memory)
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                        errmsg("memory required is %zu MB, maintenance_work_mem is %d MB",
                               needed / (1024 * 1024) + 1, maintenance_work_mem / 1024)));
    return (memory - fixed) / row_bytes;
}

// Reads the table into memory, and counts the rows. False: they do not all fit.
bool read_table(Clustering* c) {
    Size room = std::min<Size>(c->room, 4096);
    c->rows = alloc_floats(room * c->dims);
    Size count = 0;
    while (true) {
        const Size read = read_block(c->reader, {c->rows + count * c->dims, nullptr, room - count});
        count += read;
        if (count < room) {
            c->count = count;
            return true;
        }
        if (room == c->room) break;
        room = std::min(c->room, 2 * room);
        c->rows = static_cast<float*>(repalloc_huge(c->rows, room * c->dims * sizeof(float)));
    }
    c->count = count;
    while (const Size read = read_block(c->reader, {c->rows, nullptr, c->room})) c->count += read;
    return c->count == count;
}

void check_rows(const Clustering* c) {
    if (c->count == 0)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("there are no vectors to cluster"),
                        c->nulls > 0 ? errdetail("All of them are null.") : 0));
    if (c->count < c->clusters)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("k cannot be greater than the number of vectors"),
                        errdetail("k is %u, the table has %llu vectors.", c->clusters,
                                  static_cast<unsigned long long>(c->count))));
}

// --- on a device

// Both must be deleted before the device is closed.
struct DeviceRows {
    Owned<DatasetBuilder>* builder;
    Owned<Dataset>* rows;
};

// Sends the table's rows to the device. False: the device failed.
bool send_rows(Clustering* c, DeviceWork* device, const DeviceRows& rows) {
    // A pool in shared memory or in this process; small compared with the device's memory.
    const ParallelRead wanted = {RowIds::none, RowForm::as_stored, max_parallel_maintenance_workers,
                                 usual_pool_bytes(), 2};
    ParallelReader* reader = open_parallel_reader(c->reader, wanted, device->executor);
    bool good = true;
    // The device has read a block once the next one is added.
    RowBlock block;
    RowBlock last = {};
    while (next_block(reader, &block)) {
        CHECK_FOR_INTERRUPTS();
        good = good && run_on_device(device, [&](Executor&) {
                   rows.builder->object->add(*block.position, block.rows, *block.count);
               });
        if (last.count) give_back(reader, last);
        last = block;
    }
    good = good && run_on_device(device, [&](Executor&) {
               rows.rows->object = rows.builder->object->finish().release();
           });
    if (last.count) give_back(reader, last);
    const ParallelCounts counts = close_parallel_reader(reader);
    c->count = static_cast<uint64>(counts.rows);
    c->nulls = counts.nulls;
    return good;
}

bool iterate_on_device(Clustering* c, DeviceWork* device, const DeviceRows& rows) {
    bool good = run_on_device(device, [&](Executor& executor) {
        executor.kmeans_start(*rows.rows->object, c->clusters, c->seed, c->centroids);
    });
    for (int i = 0; i < c->iterations && good; ++i) {
        CHECK_FOR_INTERRUPTS();
        good = run_on_device(device, [&](Executor& executor) {
            executor.kmeans_step(*rows.rows->object, c->clusters, c->centroids);
        });
    }
    return good && run_on_device(device, [&](Executor& executor) {
               std::vector<uint32_t> nearest(c->count);
               executor.assign(*rows.rows->object, c->clusters, c->centroids, nearest.data());
               std::fill(c->sizes, c->sizes + c->clusters, 0);
               for (const uint32_t cluster : nearest) ++c->sizes[cluster];
           });
}

// False: the device failed.
bool read_and_cluster(Clustering* c, DeviceWork* device, const DeviceRows& on_device,
                      double opening) {
    Stopwatch watch;
    bool done = false;
    const bool begun = run_on_device(device, [&](Executor& executor) {
        on_device.builder->object =
            executor.build_dataset(c->dims, SIZE_MAX, elements_of(c->reader, RowForm::as_stored))
                .release();
    });
    if (begun && send_rows(c, device, on_device)) {
        check_rows(c);
        const double reading = watch.lap();
        done = iterate_on_device(c, device, on_device);
        ereport(DEBUG1,
                (errmsg_internal("kmeans of %llu vectors on %s: %.3f s to open it, %.3f s to "
                                 "read the table, %.3f s to cluster",
                                 static_cast<unsigned long long>(c->count),
                                 device->executor->name(), opening, reading, watch.lap())));
    }
    guarded([&] {
        delete std::exchange(on_device.rows->object, nullptr);
        delete std::exchange(on_device.builder->object, nullptr);
    });
    return done;
}

// False: there is no device, it does not pay, or it failed.
bool cluster_on_device(Clustering* c) {
    const double rows = estimated_rows(c->reader);
    if (rows <= 0) return false;
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "kmeans", ALLOCSET_SMALL_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);
    bool done = false;
    Stopwatch watch;
    DeviceWork* device =
        open_device_work(rows * c->dims * c->clusters * (c->iterations + 1), c->threads);
    // A device that did not open, or does not pay, is not tried again.
    c->device_failed = !device;
    if (device) {
        const DeviceRows on_device = {owned_by<DatasetBuilder>(context),
                                      owned_by<Dataset>(context)};
        const double opening = watch.lap();
        // Where one of several devices fails, the others begin again.
        do done = read_and_cluster(c, device, on_device, opening);
        while (!done && can_go_on(device));
        c->device_failed = device->failed;
        close_device_work(device);
    }
    MemoryContextSwitchTo(before);
    MemoryContextDelete(context);
    rewind_table_reader(c->reader);
    return done;
}

// --- in memory

void cluster_in_memory(Clustering* c) {
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "kmeans", ALLOCSET_SMALL_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);
    const double work = static_cast<double>(c->count) * c->dims * c->clusters * (c->iterations + 1);
    BuildExecutor executor =
        open_build_executor(c->device_failed ? "the device has failed" : nullptr, work, c->threads);
    // Deleted before the executor that made it.
    Owned<Dataset>* rows = owned_by<Dataset>(context);
    guarded_interruptibly([&] {
        delete std::exchange(rows->object, nullptr);
        rows->object = executor.executor->take(c->rows, c->count, c->dims).release();
        executor.executor->kmeans_start(*rows->object, c->clusters, c->seed, c->centroids);
    });
    for (int i = 0; i < c->iterations; ++i) {
        CHECK_FOR_INTERRUPTS();
        guarded_interruptibly(
            [&] { executor.executor->kmeans_step(*rows->object, c->clusters, c->centroids); });
    }
    guarded_interruptibly([&] {
        std::vector<uint32_t> nearest(c->count);
        executor.executor->assign(*rows->object, c->clusters, c->centroids, nearest.data());
        for (const uint32_t cluster : nearest) ++c->sizes[cluster];
    });
    guarded([&] { delete std::exchange(rows->object, nullptr); });
    close_build_executor(&executor);
    MemoryContextSwitchTo(before);
    MemoryContextDelete(context);
}

// --- a block at a time

// The row that becomes the first centroid of a cluster. Sorted by row: the table is read in order.
struct Draw {
    uint64 row;
    uint32 cluster;
};

void start_by_blocks(Clustering* c) {
    Draw* draws = static_cast<Draw*>(
        MemoryContextAllocHuge(CurrentMemoryContext, c->clusters * sizeof(Draw)));
    guarded([&] {
        const std::vector<uint64_t> drawn = draw_few_rows(c->count, c->clusters, c->seed);
        for (uint32 i = 0; i < c->clusters; ++i) draws[i] = {drawn[i], i};
    });
    std::sort(draws, draws + c->clusters,
              [](const Draw& a, const Draw& b) { return a.row < b.row; });
    rewind_table_reader(c->reader);
    uint64 first = 0;
    uint32 next = 0;
    while (const Size read = read_block(c->reader, {c->rows, nullptr, c->room})) {
        for (; next < c->clusters && draws[next].row < first + read; ++next)
            memcpy(c->centroids + Size{draws[next].cluster} * c->dims,
                   c->rows + (draws[next].row - first) * c->dims, c->dims * sizeof(float));
        first += read;
        if (next == c->clusters) break;
    }
    if (next < c->clusters)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("there were fewer rows when they were read again"),
                        errhint("Set maintenance_work_mem high enough to read them once.")));
    pfree(draws);
}

void add_table(Clustering* c, Workers* workers, KmeansPass* pass) {
    rewind_table_reader(c->reader);
    while (const Size read = read_block(c->reader, {c->rows, nullptr, c->room}))
        guarded_interruptibly([&] { pass->add(*workers, c->rows, read); });
}

void cluster_by_blocks(Clustering* c) {
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "kmeans", ALLOCSET_SMALL_SIZES);
    Owned<Workers>* workers = owned_by<Workers>(context);
    Owned<KmeansPass>* pass = owned_by<KmeansPass>(context);
    guarded([&] { workers->object = new Workers(c->threads, query_interrupts()); });
    start_by_blocks(c);
    for (int i = 0; i <= c->iterations; ++i) {
        guarded([&] {
            delete pass->object;
            pass->object = nullptr;
            pass->object = new KmeansPass(c->dims, c->clusters, c->centroids);
        });
        add_table(c, workers->object, pass->object);
        // The last pass only counts the sizes of clusters.
        if (i < c->iterations) guarded([&] { pass->object->finish(c->centroids); });
    }
    for (uint32 i = 0; i < c->clusters; ++i)
        c->sizes[i] = static_cast<int64>(pass->object->sizes()[i]);
    MemoryContextDelete(context);
}

void put_clusters(const Clustering& c, const ReturnSetInfo* result) {
    for (uint32 i = 0; i < c.clusters; ++i) {
        const Datum centroid = vector_type.make(c.centroids + Size{i} * c.dims, c.dims);
        Datum values[3] = {Int32GetDatum(static_cast<int32>(i) + 1), Int64GetDatum(c.sizes[i]),
                           centroid};
        bool nulls[3] = {};
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
        pfree(DatumGetPointer(centroid));
    }
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_kmeans) {
    check_signature(fcinfo, 5, 3);
    constexpr const char* arguments[] = {"table", "vector_column", "k", "iterations", "seed"};
    for (int i = 0; i < static_cast<int>(lengthof(arguments)); ++i)
        if (PG_ARGISNULL(i))
            ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                            errmsg("%s must not be null", arguments[i])));
    const int32 k = PG_GETARG_INT32(2);
    const int32 iterations = PG_GETARG_INT32(3);
    if (k < 1)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("k must be at least 1")));
    if (iterations < 1)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("iterations must be at least 1")));
    compat_init_materialized(fcinfo);

    Clustering c = {};
    c.reader = open_table_reader({PG_GETARG_OID(0), NameStr(*PG_GETARG_NAME(1)), nullptr});
    c.dims = dims_of(c.reader);
    c.clusters = static_cast<uint32>(k);
    c.iterations = iterations;
    c.seed = static_cast<uint64>(static_cast<int64>(PG_GETARG_INT32(4)));
    // As in a build's training: one thread for each process of a maintenance command.
    c.threads = 1 + max_parallel_maintenance_workers;
    c.nulls = counts_of(c.reader).nulls;
    if (c.dims == 0) check_rows(&c);
    c.room = rows_in_memory(c.dims, c.clusters);
    c.centroids = alloc_floats(Size{c.clusters} * c.dims);
    c.sizes = static_cast<int64*>(MemoryContextAllocExtended(
        CurrentMemoryContext, c.clusters * sizeof(int64), MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
    if (!cluster_on_device(&c)) {
        const bool in_memory = read_table(&c);
        c.nulls = counts_of(c.reader).nulls;
        check_rows(&c);
        if (in_memory)
            cluster_in_memory(&c);
        else
            cluster_by_blocks(&c);
    }
    close_table_reader(c.reader);
    put_clusters(c, reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo));
    return static_cast<Datum>(0);
}
