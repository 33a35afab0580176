// What the kernels of a list search hand to each other. Everything lies on the device.
#pragma once

#include "kernels/cuda/lists/model.h"
#include "kernels/cuda/lists/search_layout.h"

namespace pgwarp::gpu {

// A list as a batch sees it.
struct DeviceList {
    const uint8_t* tiles;  // see code_tiles.h
    const float* offsets;  // (count rounded up to 32), NaN behind the last
    const uint16_t* tids;  // (count)(3)
    uint32_t count;
    uint32_t first;  // entries in the lists before: first + position numbers an entry in the store
};
static_assert(sizeof(DeviceList) == 32);

// The store at the start of a batch.
struct StoreView {
    DeviceModel model;
    CodeLayout layout;
    const float* codewords;       // (m)(256)(piece dims): the codebook, codeword by codeword
    const float* centroid_norms;  // (lists)
    float largest_word;           // the largest norm of a codeword
    const DeviceList* lists;      // (lists)
};

// The queries of a batch, or of a part of it.
struct QueryView {
    uint32_t count;
    uint32_t probes;          // the most of any query
    uint32_t k;               // likewise
    const float* vectors;     // (count)(dims)
    const ListQuery* wanted;  // (count)
    const float* norms;       // (count): |q|^2; null where the coarse distances are complete
    float* coarse;            // (count)(coarse_stride): distances to centroids, up to |q|^2
    size_t coarse_stride;
    bool coarse_lacks_norms;  // ... and up to |c|^2
    uint32_t* probed;         // (count)(probes)
    float* terms;             // (count)(probes): the lists' terms
    uint32_t* tile_starts;    // (count)(probes + 1): tiles in the lists before; or null
};

// Candidates of the queries: keys of (distance, entry number).
struct CandidateView {
    uint64_t* keys;    // (count)(room)
    uint32_t* counts;  // (count): more than room where some were lost
    uint32_t room;
};

}  // namespace pgwarp::gpu
