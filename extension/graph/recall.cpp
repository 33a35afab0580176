// knn_graph_recall: the share of true neighbors that a graph has, by a sample of its table's rows.
//
// A first pass over the table draws the sample. A second finds the true neighbors of its rows by
// exact search, and the distances of the neighbors that the graph names. A neighbor is a hit if it
// is as near as the k-th true one, so ties make no difference. Neighbors that a row lacks are
// misses, also if the row is not in the graph at all.

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/executor.h"
#include "kernels/random.h"
#include "extension/graph/functions.h"
#include "extension/graph/metric.h"
#include "extension/graph/table.h"
#include "extension/table/parallel_reader.h"
#include "extension/util/signature.h"

extern "C" {
#include "utils/lsyscache.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

struct Sample {
    uint32 room;
    uint32 count;
    uint32 dims;
    float* rows;  // (room)(dims)
    int64* keys;  // (room)
    uint64 table_rows;
};

// Calls use(rows, keys, count) for blocks of rows, after prepare_rows(), in any order.
template <typename Use>
void for_blocks(TableReader* table, Metric metric, const Use& use) {
    ParallelReader* reader = open_parallel_reader(
        table,
        {RowIds::keys, RowForm::floats, max_parallel_maintenance_workers, usual_pool_bytes(), 1},
        nullptr);
    RowBlock block;
    while (next_block(reader, &block)) {
        CHECK_FOR_INTERRUPTS();
        int64* keys = reinterpret_cast<int64*>(block.tids);
        for (Size i = 0; i < *block.count; ++i) keys[i] = id_key(block.tids[i]);
        use(block.floats(), keys,
            prepare_rows(metric, block.floats(), keys, *block.count, dims_of(table)));
        give_back(reader, block);
    }
    close_parallel_reader(reader);
}

// A row is drawn by a random number that its key seeds: the sample does not depend on the order.
struct Drawn {
    uint64 chance;
    uint32 place;

    bool operator<(const Drawn& other) const { return chance < other.chance; }
};

void draw_sample(TableReader* table, Metric metric, Sample* sample) {
    Drawn* drawn = static_cast<Drawn*>(palloc(sizeof(Drawn) * sample->room));
    for_blocks(table, metric, [&](const float* rows, const int64* keys, Size count) {
        for (Size i = 0; i < count; ++i) {
            ++sample->table_rows;
            Drawn here = {Random(static_cast<uint64>(keys[i])).next(), sample->count};
            if (sample->count == sample->room) {
                if (!(here < drawn[0])) continue;
                // Replace the row with the largest number.
                std::pop_heap(drawn, drawn + sample->count);
                here.place = drawn[--sample->count].place;
            }
            memcpy(sample->rows + Size{here.place} * sample->dims, rows + i * sample->dims,
                   sample->dims * sizeof(float));
            sample->keys[here.place] = keys[i];
            drawn[sample->count++] = here;
            std::push_heap(drawn, drawn + sample->count);
        }
    });
    pfree(drawn);
}

// An edge of the graph from a sampled row.
struct Named {
    int64 dst;
    uint32 query;
    float distance;  // by the vectors; infinite until the pass reads its row
};

struct Search {
    Metric metric;
    const Sample* sample;
    uint32 k;           // true neighbors to find
    Neighbor* nearest;  // (queries)(k + 1): a row finds itself, too
    Named* named;       // sorted by dst
    Size named_count;
};

void insert_neighbor(Neighbor* nearest, uint32 places, const Neighbor& found) {
    const auto nearer = [](const Neighbor& a, const Neighbor& b) {
        return a.distance < b.distance || (a.distance == b.distance && a.id < b.id);
    };
    if (!nearer(found, nearest[places - 1])) return;
    Neighbor* at = std::upper_bound(nearest, nearest + places - 1, found, nearer);
    std::move_backward(at, nearest + places - 1, nearest + places);
    *at = found;
}

// By matrix products, except for L1, which has none.
void search_block(const Search& search, Executor* executor, const float* rows, const int64* keys,
                  Size count) {
    const Sample& sample = *search.sample;
    if (!has_products(search.metric)) {
        for (Size i = 0; i < count; ++i) {
            CHECK_FOR_INTERRUPTS();
            for (uint32 q = 0; q < sample.count; ++q)
                insert_neighbor(search.nearest + Size{q} * (search.k + 1), search.k + 1,
                                {graph_distance(search.metric, sample.rows + Size{q} * sample.dims,
                                                rows + i * sample.dims, sample.dims),
                                 static_cast<uint64>(keys[i])});
        }
        return;
    }
    const Metric metric = has_norms(search.metric) ? Metric::l2 : Metric::inner_product;
    run_graph_kernel([&] {
        executor->exact_search({sample.rows, sample.count, rows, count,
                                reinterpret_cast<const uint64_t*>(keys), sample.dims, metric,
                                search.k + 1, search.nearest});
    });
}

void measure_named(const Search& search, const float* rows, const int64* keys, Size count) {
    const Sample& sample = *search.sample;
    for (Size i = 0; i < count; ++i) {
        Named* at = std::lower_bound(search.named, search.named + search.named_count, keys[i],
                                     [](const Named& n, int64 key) { return n.dst < key; });
        for (; at != search.named + search.named_count && at->dst == keys[i]; ++at)
            at->distance =
                graph_distance(search.metric, sample.rows + Size{at->query} * sample.dims,
                               rows + i * sample.dims, sample.dims);
    }
}

// The distance of the k-th true neighbor, not counting the row itself.
float farthest_of(const Search& search, uint32 query) {
    const Neighbor* nearest = search.nearest + Size{query} * (search.k + 1);
    uint32 place = search.k - 1;
    for (uint32 i = 0; i <= place; ++i)
        if (static_cast<int64>(nearest[i].id) == search.sample->keys[query]) {
            ++place;
            break;
        }
    const float distance = nearest[place].distance;
    return search.metric == Metric::cosine ? distance / 2 : distance;
}

// Collects the edges of sampled rows with ranks up to k, sorted by dst, without duplicates.
Size name_neighbors(const TableEdges& edges, const Sample& sample, uint32 k, Named* named) {
    struct Keyed {
        int64 key;
        uint32 query;
    };
    Keyed* queries = static_cast<Keyed*>(palloc(sizeof(Keyed) * sample.count));
    for (uint32 q = 0; q < sample.count; ++q) queries[q] = {sample.keys[q], q};
    const auto by_key = [](const Keyed& a, const Keyed& b) { return a.key < b.key; };
    std::sort(queries, queries + sample.count, by_key);
    Size count = 0;
    for (Size i = 0; i < edges.count; ++i) {
        if (edges.rank[i] < 1 || edges.rank[i] > static_cast<int32>(k)) continue;
        if (edges.dst[i] == edges.src[i]) continue;
        const Keyed* query =
            std::lower_bound(queries, queries + sample.count, Keyed{edges.src[i], 0}, by_key);
        if (query == queries + sample.count || query->key != edges.src[i]) continue;
        named[count++] = {edges.dst[i], query->query, std::numeric_limits<float>::infinity()};
    }
    const auto by_dst = [](const Named& a, const Named& b) {
        return a.dst < b.dst || (a.dst == b.dst && a.query < b.query);
    };
    std::sort(named, named + count, by_dst);
    return static_cast<Size>(std::unique(named, named + count,
                                         [](const Named& a, const Named& b) {
                                             return a.dst == b.dst && a.query == b.query;
                                         }) -
                             named);
}

uint32 largest_rank(const TableEdges& edges) {
    int32 most = 0;
    for (Size i = 0; i < edges.count; ++i) most = std::max(most, edges.rank[i]);
    return static_cast<uint32>(most);
}

void check_memory(Size bytes) {
    if (bytes > static_cast<Size>(maintenance_work_mem) * 1024)
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                        errmsg("memory required is %zu MB, maintenance_work_mem is %d MB",
                               bytes / (1024 * 1024) + 1, maintenance_work_mem / 1024),
                        errhint("Ask for fewer samples.")));
}

}  // namespace

}  // namespace pgwarp

using namespace pgwarp;

PGWARP_FUNCTION(pgwarp_knn_graph_recall) {
    check_signature(fcinfo, 6, 0);
    const Oid graph = PG_GETARG_OID(0), table = PG_GETARG_OID(1);
    const int32 samples = PG_GETARG_INT32(4);
    if (samples < 1 || samples > 100000)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                        errmsg("samples must be between 1 and 100000")));
    const Metric metric = graph_metric_called(text_argument(fcinfo, 5));
    TableColumns columns = {table, NameStr(*PG_GETARG_NAME(3)), NameStr(*PG_GETARG_NAME(2))};
    columns.names = names_in_graph(graph);
    TableReader* reader = open_table_reader(columns);
    Sample sample = {};
    sample.room = static_cast<uint32>(samples);
    sample.dims = dims_of(reader);
    if (sample.dims == 0) {
        close_table_reader(reader);
        PG_RETURN_NULL();
    }
    check_memory(Size{sample.room} * (sample.dims * sizeof(float) + 2 * 64 * sizeof(Neighbor)));
    sample.rows = static_cast<float*>(MemoryContextAllocHuge(
        CurrentMemoryContext, Size{sample.room} * sample.dims * sizeof(float)));
    sample.keys = static_cast<int64*>(palloc(sample.room * sizeof(int64)));
    draw_sample(reader, metric, &sample);
    const TableEdges edges = read_graph_edges_of(graph, columns.names, sample.keys, sample.count);
    const uint64 others = sample.table_rows > 0 ? sample.table_rows - 1 : 0;
    if (largest_rank(edges) > static_cast<uint32>(most_neighbors))
        ereport(ERROR,
                (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                 errmsg("graph \"%s\" has ranks above %d", get_rel_name(graph), most_neighbors)));
    const uint32 k = static_cast<uint32>(std::min<uint64>(largest_rank(edges), others));
    if (k == 0) {
        close_table_reader(reader);
        if (others == 0) PG_RETURN_NULL();
        PG_RETURN_FLOAT8(0);
    }

    Search search = {metric, &sample, k, nullptr, nullptr, 0};
    const Size places = Size{sample.count} * (k + 1);
    check_memory(places * sizeof(Neighbor));
    search.nearest = static_cast<Neighbor*>(
        MemoryContextAllocHuge(CurrentMemoryContext, places * sizeof(Neighbor)));
    std::fill_n(search.nearest, places, Neighbor{std::numeric_limits<float>::infinity(), 0});
    search.named = static_cast<Named*>(MemoryContextAllocHuge(
        CurrentMemoryContext, std::max<Size>(edges.count, 1) * sizeof(Named)));
    search.named_count = name_neighbors(edges, sample, k, search.named);

    Owned<Executor>* executor = owned_by<Executor>(CurrentMemoryContext);
    guarded([&] {
        executor->object = make_cpu_executor(graph_threads(), query_interrupts()).release();
    });
    for_blocks(reader, metric, [&](const float* rows, const int64* keys, Size count) {
        search_block(search, executor->object, rows, keys, count);
        measure_named(search, rows, keys, count);
    });
    close_table_reader(reader);
    const auto hits = std::count_if(
        search.named, search.named + search.named_count,
        [&](const Named& named) { return named.distance <= farthest_of(search, named.query); });
    PG_RETURN_FLOAT8(static_cast<double>(hits) / (static_cast<double>(sample.count) * k));
}
