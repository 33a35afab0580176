// The lists of an existing graph by row numbers, for a set in memory: what knn_graph_append knows
// of the graph. One pass over the table reads them; its edges are not kept.
#pragma once

#include "kernels/graph_stream.h"
#include "extension/graph/job.h"

namespace pgwarp {

struct GivenLists {
    uint32 k;  // places of a list; edges behind them are counted only
    // (rows)(k), by rank: neighbors that still exist, with the table's distances as lists have
    // them. A place without one has no_row, and may lie between others where a list is not whole.
    Edge* lists;
    // (rows): edges that the table has. Of a list whose distances are not exact, more than k: it is
    // written anew in any case.
    uint32* lengths;
    // (rows): as many edges as there can be, in order, all to rows that still exist, with distances
    // that are still right.
    bool* whole;
    uint32 neighbors;          // the largest rank
    Owned<NodeNumbers>* gone;  // sources that are no rows any more
};

// Reports an error if most distances in the table are not those of the metric.
GivenLists read_given_lists(const GraphJob& job, Oid graph, const GraphSet& set,
                            const KeyedRow* sorted);
void free_given_lists(GivenLists* given);

// Moves the rows whose lists are whole before the others, in the set, its lists and `sorted`.
// Returns where the others begin.
Size order_by_whole(GivenLists* given, GraphSet* set, KeyedRow* sorted);

// The distance by the rows' vectors, as lists have it.
float vector_distance(const GraphSet& set, uint32 a, uint32 b);
// How far two distances of the same rows may differ: another machine, or a device, adds up the
// terms in another order. `norms`: the product of the rows' norms, of inner products.
float rounding_of(const GraphSet& set, float distance, float norms);

// Sources whose rows are gone, up to as many as maintenance_work_mem has room for.
Owned<NodeNumbers>* new_gone();
void finish_gone(Owned<NodeNumbers>* gone, bool fits, Oid graph);

}  // namespace pgwarp
