#include <algorithm>
#include <cmath>
#include <limits>

#include "extension/graph/auto_lists.h"
#include "extension/graph/changes.h"
#include "extension/graph/table.h"

extern "C" {
#include "catalog/pg_type.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
}

namespace pgwarp {

KeptLists new_kept_lists(const int64* sources, Size count, uint32 k) {
    const Size lists = std::max<Size>(count, 1);
    const auto alloc = [](Size bytes) {
        return palloc_extended(bytes, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
    };
    const KeptLists made = {sources,
                            count,
                            k,
                            static_cast<NearRow*>(alloc(lists * k * sizeof(NearRow))),
                            static_cast<uint32*>(alloc(lists * sizeof(uint32))),
                            static_cast<bool*>(alloc(lists * sizeof(bool))),
                            static_cast<NearRow*>(alloc(lists * k * sizeof(NearRow))),
                            static_cast<uint32*>(alloc(lists * sizeof(uint32)))};
    std::fill_n(made.written, lists * k, NearRow{0, std::numeric_limits<float>::quiet_NaN()});
    return made;
}

Size find_list(const KeptLists& lists, int64 source) {
    const int64* end = lists.sources + lists.count;
    const int64* at = std::lower_bound(lists.sources, end, source);
    return at != end && *at == source ? static_cast<Size>(at - lists.sources) : lists.count;
}

void enter_list(KeptLists* lists, Size list, const NearRow& row) {
    NearRow* rows = lists->rows + list * lists->k;
    uint32* length = &lists->lengths[list];
    const bool full = *length == lists->k;
    if (row.key == lists->sources[list]) return;
    if (full && !(row.distance < rows[*length - 1].distance)) return;
    const auto is_same = [&](const NearRow& other) { return other.key == row.key; };
    if (std::any_of(rows, rows + *length, is_same)) return;
    if (!full) ++*length;
    uint32 place = *length - 1;
    for (; place > 0 && row.distance < rows[place - 1].distance; --place)
        rows[place] = rows[place - 1];
    rows[place] = row;
    lists->changed[list] = true;
}

bool has_key(const int64* sorted, Size count, int64 key) {
    return std::binary_search(sorted, sorted + count, key);
}

Size sort_keys(int64* keys, Size count) {
    std::sort(keys, keys + count);
    return static_cast<Size>(std::unique(keys, keys + count) - keys);
}

namespace {

// Of which edges are read at a time. Lists may be longer than k.
Size sources_at_once(uint32 k) {
    return std::clamp<Size>(most_graph_edges(0) / (Size{4} * k), 1, Changes::at_once);
}

}  // namespace

float* read_radii(const KeptGraph& kept, const int64* sources, Size count) {
    float* radii = static_cast<float*>(
        palloc_extended(std::max<Size>(count, 1) * sizeof(float), MCXT_ALLOC_HUGE));
    std::fill_n(radii, count, std::numeric_limits<float>::infinity());
    const Size at_once = sources_at_once(1);
    for (Size first = 0; first < count; first += at_once) {
        CHECK_FOR_INTERRUPTS();
        const int64* end = sources + std::min(first + at_once, count);
        TableEdges edges = read_graph_edges_of(kept.graph, kept.names, sources + first,
                                               static_cast<Size>(end - sources) - first, kept.k);
        for (Size i = 0; i < edges.count; ++i) {
            const int64* at = std::lower_bound(sources + first, end, edges.src[i]);
            if (at != end && *at == edges.src[i]) radii[at - sources] = edges.distance[i];
        }
        free_edges(&edges);
    }
    return radii;
}

void read_kept_lists(const KeptGraph& kept, KeptLists* lists, const int64* without,
                     Size without_count) {
    const Size at_once = sources_at_once(lists->k);
    for (Size first = 0; first < lists->count; first += at_once) {
        CHECK_FOR_INTERRUPTS();
        TableEdges edges = read_graph_edges_of(kept.graph, kept.names, lists->sources + first,
                                               std::min(at_once, lists->count - first));
        for (Size i = 0; i < edges.count; ++i) {
            const Size list = find_list(*lists, edges.src[i]);
            if (list == lists->count) continue;
            const NearRow row = {edges.dst[i], edges.distance[i]};
            const int32 rank = edges.rank[i];
            ++lists->written_count[list];
            if (rank >= 1 && static_cast<uint32>(rank) <= lists->k)
                lists->written[list * lists->k + static_cast<uint32>(rank) - 1] = row;
            if (!has_key(without, without_count, edges.src[i]) &&
                !has_key(without, without_count, row.key))
                enter_list(lists, list, row);
        }
        free_edges(&edges);
    }
    std::fill_n(lists->changed, lists->count, false);
}

int64* find_sources(const KeptGraph& kept, const int64* rows, Size count, Size* found) {
    const bool compact = is_compact_graph(kept.graph);
    const char* query = psprintf(
        compact ? "SELECT src::pg_catalog.%s FROM %s WHERE neighbors OPERATOR(pg_catalog.&&) "
                  "$1::pg_catalog.%s[]"
                : "SELECT src::pg_catalog.%s FROM %s WHERE dst OPERATOR(pg_catalog.=) ANY "
                  "($1::pg_catalog.%s[])",
        kept.names ? "text" : "int8", qualified_name(kept.graph),
        key_type_name(kept.graph, compact ? "src" : "dst"));
    Oid types[] = {kept.names ? Oid{TEXTARRAYOID} : Oid{INT8ARRAYOID}};
    Datum values[] = {key_array(kept.names, rows, count)};
    if (SPI_execute_with_args(query, 1, types, values, nullptr, true, 0) != SPI_OK_SELECT)
        elog(ERROR, "could not read graph \"%s\"", get_rel_name(kept.graph));
    int64* sources = static_cast<int64*>(
        palloc_extended(std::max<Size>(SPI_processed, 1) * sizeof(int64), MCXT_ALLOC_HUGE));
    for (uint64 i = 0; i < SPI_processed; ++i) {
        bool is_null;
        const Datum source =
            SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &is_null);
        if (is_null) report_null_edge(kept.graph);
        sources[i] = key_of(kept.names, source, kept.names ? TEXTOID : INT8OID);
    }
    *found = sort_keys(sources, SPI_processed);
    SPI_freetuptable(SPI_tuptable);
    return sources;
}

struct KeptWriter {
    Changes changes;
    GraphSet set;  // has the names only
};

KeptWriter* open_kept_writer(const KeptGraph& kept) {
    auto* writer = static_cast<KeptWriter*>(palloc0(sizeof(KeptWriter)));
    writer->set.names = kept.names;
    writer->changes.graph = kept.graph;
    writer->changes.set = &writer->set;
    writer->changes.k = kept.k;
    writer->changes.in_place = true;
    writer->changes.snapshot = GetActiveSnapshot();
    prepare_changes(&writer->changes);
    return writer;
}

namespace {

// Whether a list can take the place of the table's edge by edge: these have ranks from 1 on, and
// are no more.
bool takes_place(const Changes& changes, const KeptLists& lists, Size list) {
    const uint32 count = lists.written_count[list];
    const NearRow* written = lists.written + list * lists.k;
    return changes.change && count <= lists.lengths[list] &&
           std::none_of(written, written + count,
                        [](const NearRow& row) { return std::isnan(row.distance); });
}

}  // namespace

void write_kept_lists(KeptWriter* writer, const KeptLists& lists) {
    Changes* changes = &writer->changes;
    for (Size list = 0; list < lists.count; ++list) {
        if (!lists.changed[list]) continue;
        const int64 src = lists.sources[list];
        const bool in_place = takes_place(*changes, lists, list);
        const uint32 there = in_place ? lists.written_count[list] : 0;
        if (there < lists.written_count[list])
            replace_edges(changes, src);
        else
            begin_list(changes);
        for (uint32 i = 0; i < lists.lengths[list]; ++i) {
            const NearRow& row = lists.rows[list * lists.k + i];
            const NearRow& before = lists.written[list * lists.k + i];
            const auto rank = static_cast<int32>(i) + 1;
            if (i >= there)
                add_edge(changes, src, rank, row.key, row.distance);
            else if (row.key != before.key || row.distance != before.distance)
                update_edge(changes, src, rank, row.key, row.distance);
        }
    }
}

void close_kept_writer(KeptWriter* writer) {
    flush_changes(&writer->changes);
    SPI_freeplan(writer->changes.remove);
    SPI_freeplan(writer->changes.add);
    if (writer->changes.change) SPI_freeplan(writer->changes.change);
}

}  // namespace pgwarp
