#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/row_pass.h"
#include "extension/device/executor.h"
#include "extension/guard.h"
#include "extension/index/column.h"
#include "extension/index/lists.h"
#include "extension/index/page.h"
#include "extension/knn/device.h"
#include "extension/scan/exact.h"
#include "extension/table/parallel_reader.h"
#include "extension/settings.h"
#include "extension/util/stopwatch.h"

extern "C" {
#include "optimizer/cost.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
}

namespace pgwarp {

struct KnnDevice {
    MemoryContext context;
    MemoryContext search_context;
    const KnnIndex* index;
    uint32 k;
    Size memory;
    uint32 room;
    TableReader** tables;  // (table_count): the index's table, or all leaves
    uint32 table_count;
    DeviceWork* device;
    Owned<RowPass>* pass;

    bool useless;       // no device, it failed, or the table has rows it cannot order
    Neighbor* nearest;  // (count)(k), of the last search; ids of places tell their leaf
};

namespace {

// Compares estimates in seconds, from measurements. An exact search without a device: products of
// queries and rows, by one thread.
bool is_worth_it(const KnnIndex& index, double rows, double queries) {
    const double in_lists = seconds_in_lists(queries);
    const double exactly = rows * 2e-7 + queries * rows * index.dims * 2e-10;
    const double on_device = seconds_of_start + seconds_on_device(rows, index.dims, queries);
    // All leaves of a partitioned table are searched alike: no setting bounds the lists here.
    Relation pages = index.partitioned ? index.leaves[0].index : index.index;
    const double leaves = index.partitioned ? index.leaf_count : 1;
    return on_device < (searches_exactly(read_meta(pages)) ? exactly : leaves * in_lists);
}

struct Searching {
    KnnDevice* knn;
    ParallelReader* reader;
    RowBlock* in_flight;  // (most_taken_blocks), the oldest first
    uint32 count;
    bool good;
};

// Waits until the device has read the oldest block, and returns the block to the pool.
void finish_oldest(Searching* s) {
    if (s->good)
        s->good = run_on_device(s->knn->device, [&](Executor&) { s->knn->pass->object->finish(); });
    give_back(s->reader, s->in_flight[0]);
    for (uint32 i = 1; i < s->count; ++i) s->in_flight[i - 1] = s->in_flight[i];
    --s->count;
}

// Sends all rows to the device. False: the device failed, and the rest of the table was not read.
bool send_table(Searching* s, ParallelCounts* counts) {
    RowBlock block;
    // The loop takes a block before it gives the oldest back.
    const uint32 most = most_taken_blocks(s->reader) - 1;
    while (s->good && next_block(s->reader, &block)) {
        CHECK_FOR_INTERRUPTS();
        s->good = run_on_device(s->knn->device, [&](Executor&) {
            s->knn->pass->object->start(block.rows, block.tids, *block.count);
        });
        if (!s->good) break;
        s->in_flight[s->count++] = block;
        while (s->good && s->count > most) finish_oldest(s);
    }
    while (s->good && s->count > 0) finish_oldest(s);
    if (!s->good) {
        // The pass ends first: the device may still be reading from the pool.
        guarded([&] { delete std::exchange(s->knn->pass->object, nullptr); });
        abandon_parallel_reader(s->reader);
        return false;
    }
    *counts = close_parallel_reader(s->reader);
    return true;
}

// Converts queries to index form. False: a device cannot order rows by one of them.
bool make_forms(const KnnDevice* knn, const float* queries, uint32 count, float* forms) {
    const uint32 dims = knn->index->dims;
    for (uint32 i = 0; i < count; ++i) {
        const float* query = queries + Size{i} * dims;
        if (kind_of(knn->index->metric, query, dims) != RowKind::in_lists) return false;
        index_form(knn->index->metric, query, dims, forms + Size{i} * dims);
    }
    return true;
}

// A device cannot order infinite distances. True if all of the k nearest (or of all rows, if these
// are fewer) have finite ones; first and last tell, since they are sorted.
bool found_all(const KnnDevice* knn, const Neighbor* found, uint32 count, int64 rows) {
    const uint32 expected = static_cast<uint32>(std::min<int64>(knn->k, rows));
    if (expected == 0) return true;
    for (uint32 i = 0; i < count; ++i) {
        const Neighbor* nearest = found + Size{i} * knn->k;
        if (!std::isfinite(nearest[0].distance) || !std::isfinite(nearest[expected - 1].distance))
            return false;
    }
    return true;
}

// Whether rows are told by their places in the leaves.
bool reads_leaves(const KnnIndex& index) {
    return index.partitioned && index.key_attribute <= 0;
}

TableReader* open_reader(const KnnIndex& index, bool with_leaves) {
    const Oid table = RelationGetRelid(index.heap);
    TableColumns columns = {};
    columns.table = table;
    columns.vector = get_attname(table, index.vector_attribute, false);
    columns.key =
        index.key_attribute > 0 ? get_attname(table, index.key_attribute, false) : nullptr;
    columns.only = !with_leaves;
    columns.null_keys = true;
    columns.rights_checked = index.rights_checked;
    return open_table_reader(columns);
}

void open_readers(KnnDevice* knn) {
    const KnnIndex& index = *knn->index;
    const bool leaves = reads_leaves(index);
    knn->table_count = leaves ? static_cast<uint32>(index.leaf_count) : 1;
    knn->tables = static_cast<TableReader**>(palloc(knn->table_count * sizeof(TableReader*)));
    for (uint32 i = 0; i < knn->table_count; ++i) {
        KnnIndex read = leaves ? index.leaves[i] : index;
        // Rights on the partitioned table are enough, as for a query.
        read.rights_checked |= leaves;
        knn->tables[i] = open_reader(read, index.partitioned && !leaves);
    }
}

void close_readers(const KnnDevice* knn) {
    for (uint32 i = 0; i < knn->table_count; ++i) close_table_reader(knn->tables[i]);
}

// As nearer(): ties by TID, then by leaf.
bool is_nearer(const Neighbor& a, const Neighbor& b) {
    if (a.distance != b.distance) return a.distance < b.distance;
    if (tid_of_place(a.id) != tid_of_place(b.id)) return tid_of_place(a.id) < tid_of_place(b.id);
    return a.id < b.id;
}

// Merges what a leaf has, (count)(k), into knn->nearest.
void merge_leaf(KnnDevice* knn, uint32 leaf, Neighbor* found, uint32 count) {
    const uint32 k = knn->k;
    auto* merged = static_cast<Neighbor*>(palloc(2 * Size{k} * sizeof(Neighbor)));
    for (uint32 i = 0; i < count; ++i) {
        Neighbor* of_leaf = found + Size{i} * k;
        for (uint32 r = 0; r < k && std::isfinite(of_leaf[r].distance); ++r)
            of_leaf[r].id = place_of_leaf(leaf, of_leaf[r].id);
        if (of_leaf == knn->nearest + Size{i} * k) continue;
        Neighbor* all = knn->nearest + Size{i} * k;
        std::merge(all, all + k, of_leaf, of_leaf + k, merged, is_nearer);
        std::copy_n(merged, k, all);
    }
    pfree(merged);
}

}  // namespace

// Reading the rows, then the products of queries and rows.
double seconds_on_device(double rows, double dims, double queries) {
    return rows * dims * 1e-9 + queries * rows * dims * 2e-14;
}

// A quarter of a millisecond a query.
double seconds_in_lists(double queries) {
    return queries * 2.5e-4 / (1 + max_parallel_workers_per_gather);
}

KnnDevice* open_knn_device(const KnnIndex& index, uint32 k, double queries) {
    // With a fixed number of probes the caller wants the result of the index, not the exact one.
    if (index.by_query || index.names || k > most_device_rows || settings.probes > 0 ||
        settings.max_probes > 0)
        return nullptr;
    if (index.partitioned && index.leaf_count == 0) return nullptr;
    constexpr int most_leaves = 1 << (64 - place_bits);
    if (reads_leaves(index) && index.leaf_count > most_leaves) return nullptr;
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "knn on a device", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);
    auto* knn = static_cast<KnnDevice*>(palloc0(sizeof(KnnDevice)));
    knn->context = context;
    knn->index = &index;
    knn->k = k;
    knn->memory = static_cast<Size>(maintenance_work_mem) * 1024;
    open_readers(knn);
    double rows = 0;
    for (uint32 i = 0; i < knn->table_count; ++i) rows += estimated_rows(knn->tables[i]);
    // is_worth_it() has decided for devices; the number of products decides how many.
    const double products = std::max(queries * rows * index.dims, min_work_for_a_device);
    if (rows > 0)
        knn->device = begin_device_work(is_worth_it(index, rows, queries) ? products : 0,
                                        1 + max_parallel_workers_per_gather);
    if (!knn->device) {
        close_readers(knn);
        MemoryContextSwitchTo(before);
        MemoryContextDelete(context);
        return nullptr;
    }
    knn->pass = owned_by<RowPass>(context);
    knn->search_context = AllocSetContextCreate(context, "knn search", ALLOCSET_DEFAULT_SIZES);
    // The caller's vector, its index form, and its neighbors: of each device, and of a leaf.
    const auto lists =
        static_cast<Size>(knn->device->session->most) + (knn->table_count > 1 ? 1 : 0);
    const Size query_bytes = 2 * index.dims * sizeof(float) + lists * k * sizeof(Neighbor) + 64;
    knn->room =
        static_cast<uint32>(std::clamp<Size>(knn->memory / 2 / query_bytes, 16, size_t{1} << 22));
    MemoryContextSwitchTo(before);
    return knn;
}

uint32 most_queries(const KnnDevice* device) {
    return device->room;
}

namespace {

// Compares the queries, in index form, with all rows of a table, into `nearest`, (count)(k). False:
// a device failed, or there are rows that it cannot compare.
bool compare_with_table(KnnDevice* knn, TableReader* table, const float* forms, uint32 count,
                        Neighbor* nearest) {
    const RowForm form = normalizes(knn->index->metric) ? RowForm::normalised : RowForm::as_stored;
    const ParallelRead wanted = {knn->index->key_attribute > 0 ? RowIds::keys : RowIds::places,
                                 form, max_parallel_workers_per_gather, usual_pool_bytes(),
                                 static_cast<uint32>(knn->device->executor->most_in_flight())};
    Stopwatch watch;
    Searching s = {};
    s.knn = knn;
    s.reader = open_parallel_reader(table, wanted, knn->device->executor);
    s.in_flight = static_cast<RowBlock*>(palloc(wanted.held * sizeof(RowBlock)));
    s.good = run_on_device(knn->device, [&](Executor& executor) {
        RowPassInput input;
        input.dims = knn->index->dims;
        input.metric = knn->index->metric;
        input.elements = elements_of(table, form);
        input.block_rows = most_block_rows(s.reader);
        input.expected_rows = static_cast<size_t>(std::max(estimated_rows(table), 1.0));
        input.queries = forms;
        input.query_count = count;
        input.k = knn->k;
        knn->pass->object = executor.begin_pass(input).release();
    });
    const double beginning = watch.lap();
    ParallelCounts counts = {};
    bool good = send_table(&s, &counts);
    const double reading = watch.lap();
    good = good && !counts.odd &&
           run_on_device(knn->device, [&](Executor&) { knn->pass->object->nearest(nearest); });
    guarded([&] { delete std::exchange(knn->pass->object, nullptr); });
    knn->useless = counts.odd;
    good = good && found_all(knn, nearest, count, counts.rows);
    ereport(
        DEBUG1,
        (errmsg_internal("%u queries were compared with " INT64_FORMAT " rows on %s%s", count,
                         counts.rows, knn->device->executor->name(), good ? "" : ", to no avail"),
         errdetail_internal("%.3f s to begin, %.3f s to read the table, %.3f s for the rest",
                            beginning, reading, watch.lap())));
    return good;
}

// The same for all tables, into knn->nearest. `found`: (count)(k), where there are several.
bool compare_with_all(KnnDevice* knn, const float* forms, uint32 count, Neighbor* found) {
    for (uint32 i = 0; i < knn->table_count; ++i) {
        Neighbor* nearest = i == 0 ? knn->nearest : found;
        if (!compare_with_table(knn, knn->tables[i], forms, count, nearest)) return false;
        if (knn->table_count > 1) merge_leaf(knn, i, nearest, count);
    }
    return true;
}

}  // namespace

bool search_on_device(KnnDevice* knn, const float* queries, uint32 count) {
    MemoryContextReset(knn->search_context);
    knn->useless = knn->useless || !is_open(knn->device);
    if (knn->useless) return false;
    const MemoryContext before = MemoryContextSwitchTo(knn->search_context);
    const uint32 dims = knn->index->dims;
    const auto alloc = [](Size bytes) {
        return MemoryContextAllocHuge(CurrentMemoryContext, Max(bytes, Size{1}));
    };
    float* forms = static_cast<float*>(alloc(Size{count} * dims * sizeof(float)));
    knn->nearest = static_cast<Neighbor*>(alloc(Size{count} * knn->k * sizeof(Neighbor)));
    Neighbor* found = knn->table_count > 1
                          ? static_cast<Neighbor*>(alloc(Size{count} * knn->k * sizeof(Neighbor)))
                          : nullptr;
    bool good = make_forms(knn, queries, count, forms);
    // Where one of several devices fails, the others begin again.
    if (good) do
            good = compare_with_all(knn, forms, count, found);
        while (!good && can_go_on(knn->device));
    knn->useless = knn->useless || knn->device->failed;
    MemoryContextSwitchTo(before);
    // The caller then searches the lists, which need this memory.
    if (!good) MemoryContextReset(knn->search_context);
    if (knn->device->failed && must_use_device()) close_device_work(knn->device);
    return good;
}

uint32 places_of(const KnnDevice* knn, uint32 query, uint64* places) {
    const Neighbor* nearest = knn->nearest + Size{query} * knn->k;
    uint32 count = 0;
    for (; count < knn->k && std::isfinite(nearest[count].distance); ++count)
        places[count] = nearest[count].id;
    return count;
}

uint32 rows_of(const KnnDevice* knn, uint32 query, KnnRow* rows) {
    const Neighbor* nearest = knn->nearest + Size{query} * knn->k;
    uint32 count = 0;
    for (; count < knn->k && std::isfinite(nearest[count].distance); ++count) {
        KnnRow row = {};
        const bool leaves = reads_leaves(*knn->index);
        row.table = RelationGetRelid(
            leaves ? knn->index->leaves[leaf_of_place(nearest[count].id)].heap : knn->index->heap);
        const double distance = nearest[count].distance;
        row.distance = operator_distance(knn->index->metric,
                                         normalizes(knn->index->metric) ? distance / 2 : distance);
        if (knn->index->key_attribute > 0) {
            row.key_is_null = nearest[count].id == null_key_id;
            if (!row.key_is_null) row.key = id_key(nearest[count].id);
        } else {
            row.place = number_tid(tid_of_place(nearest[count].id));
        }
        rows[count] = row;
    }
    return count;
}

void close_knn_device(KnnDevice* knn) {
    close_readers(knn);
    // With build_executor = gpu a missing device is an error, even if there were no queries.
    if (must_use_device()) is_open(knn->device);
    close_device_work(knn->device);
    MemoryContextDelete(knn->context);
}

}  // namespace pgwarp
