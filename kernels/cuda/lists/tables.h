// The look-up tables of the list scan, one per query: factor * <q_j, codeword>.
#pragma once

#include "kernels/cuda/base/stream.h"
#include "kernels/cuda/lists/search_state.h"

namespace pgwarp::gpu {

// For the scan by list, (query)(half_table_units): entries divided by the query's table_scale(), in
// half precision.
void build_half_tables(const StoreView& store, const QueryView& queries, uint4* tables,
                       cudaStream_t stream);

// Prepares a small batch: tables for the scan by query, (query)(float_table_size), and complete
// coarse distances, computed from the vectors. Both in one launch, or only one.
enum class Preparation { all, coarse, tables };
void prepare_small_batch(const StoreView& store, const QueryView& queries, Preparation what,
                         float* tables, Turn turn);

}  // namespace pgwarp::gpu
