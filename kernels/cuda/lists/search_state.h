// Data that the kernels of a list search pass to each other. All pointers are to device memory.
#pragma once

#include "kernels/cuda/lists/model.h"
#include "kernels/cuda/lists/search_layout.h"

namespace pgwarp::gpu {

// A list, as it was at the start of a batch.
struct DeviceList {
    const uint8_t* tiles;  // see code_tiles.h
    const float* offsets;  // (count rounded up to 32), NaN past the last entry
    const uint16_t* tids;  // (count)(3)
    uint32_t count;
    uint32_t first;  // entries in the lists before; first + position is an entry's number
};
static_assert(sizeof(DeviceList) == 32);

// The store at the start of a batch.
struct StoreView {
    DeviceModel model;
    CodeLayout layout;
    const float* codewords;       // (m)(256)(piece dims): from transpose_codebook()
    const float* centroid_norms;  // (lists)
    float largest_word;           // the largest norm of a codeword
    const DeviceList* lists;      // (lists)
    // For refined searches. As given, not moved (far_lists.h): a refinement is of x - c for these
    // very floats, and the bound of its error holds for sums of their differences.
    const float* given_centroids;  // (lists)(dims)
    // (lists): (entries of the list)(refinement_stride(dims)); null: it has none.
    const uint8_t* const* refinements;
    const float* origin;  // (dims): what the lists were moved by; null: they were not
};

// The queries of a batch, or of a part of it.
struct QueryView {
    uint32_t count;
    uint32_t probes;          // largest of any query
    uint32_t k;               // largest of any query
    const float* vectors;     // (count)(dims)
    const ListQuery* wanted;  // (count)
    const float* norms;       // (count): |q|^2; null where the coarse distances are complete
    float* coarse;  // (count)(coarse_stride): distances to centroids; less |q|^2 with norms
    size_t coarse_stride;
    bool coarse_lacks_norms;  // coarse distances are also without |c|^2
    uint32_t* probed;         // (count)(probes)
    float* terms;             // (count)(probes): the list's term of the distance (quantizer.h)
    uint32_t* tile_starts;    // (count)(probes + 1): prefix sums of tiles; or null
    uint32_t* entry_starts;   // likewise of entries; or null
    // (count): the queries are mixed, each has its own store; null: that of the batch. All stores
    // have the shape of the batch's but for the number of lists, of which the batch's has the most.
    const StoreView* stores;
};

// Candidates of the queries: keys of (distance, entry number).
struct CandidateView {
    uint64_t* keys;    // (count)(room)
    uint32_t* counts;  // (count): more than room if candidates were lost
    uint32_t room;
};

}  // namespace pgwarp::gpu
