// The tables of the list scan, one a query: factor * <q_j, codeword>.
#pragma once

#include "kernels/cuda/lists/search_state.h"

namespace pgwarp::gpu {

// For the scan by list, (query)(half_table_units): halves, each an entry over the query's
// table_scale().
void build_half_tables(const StoreView& store, const QueryView& queries, uint4* tables,
                       cudaStream_t stream);

// The start of a small batch: tables for the scan by query, (query)(float_table_size), and all
// coarse distances from the vectors, complete. Both at once, or one of them.
enum class Preparation { all, coarse, tables };
void prepare_small_batch(const StoreView& store, const QueryView& queries, Preparation what,
                         float* tables, cudaStream_t stream);

}  // namespace pgwarp::gpu
