// Proposals: edges that were found and will be merged into lists; and the bounds and Bloom filters
// that tell whether an edge is worth proposing.
//
// A row has a hash table of proposals without chaining: of several that hash to one place, the
// nearest stays. This needs no locks and does not depend on the order of threads, so that a descent
// is reproducible. The hash differs from round to round: two proposals that collide in one round
// rarely collide in the next.
#pragma once

#include "kernels/cuda/graph/hash.h"
#include "kernels/cuda/graph/rows.h"

namespace pgwarp::gpu {

struct ProposalView {
    unsigned long long* places;  // (count)(2^place_bits) keys, no_key for empty places
    const float* bounds;         // (count): distance of the last neighbor in each list
    // (count)(2^member_bits / 32): a Bloom filter of each list's neighbors. A row in the list is
    // not proposed again: being nearer, it would keep other proposals out of its place. One in some
    // thousands of the rows not in the list is a false positive.
    const uint32_t* members;
    uint32_t place_bits;
    uint32_t member_bits;
    uint32_t salt;
};

inline constexpr uint32_t member_hashes = 3;
PGWARP_HOST_DEVICE uint32_t member_bit(uint32_t row, uint32_t other, uint32_t which,
                                       uint32_t bits) {
    return short_hash(other, row * 0x2c1b3c6du + which * 0x68e31da5u, bits);
}

class GraphLists {
  public:
    // Lists with the caller's edges, (count)(edges_degree), or empty ones if `edges` is null.
    GraphLists(const Context& context, Uploader& uploader, cudaStream_t stream, size_t count,
               uint32_t degree, const Edge* edges, uint32_t edges_degree);

    static size_t row_bytes(uint32_t degree);

    ProposalView view(uint32_t salt) const;
    uint64_t* keys() const { return keys_.data(); }

    // Merges the proposals into the lists. Returns the number of new edges. Waits for the stream.
    uint64_t merge_proposals(cudaStream_t stream);

    // Computes all distances exactly from the rows, sorts the lists, and clears the fresh bits.
    void finish(const GraphView& view, cudaStream_t stream);

    // The lists cut to `degree`, at most the number of places for proposals. Overwrites proposals.
    uint64_t* cut(uint32_t degree, cudaStream_t stream);

  private:
    void update(bool only_look, cudaStream_t stream);

    size_t count_;
    uint32_t degree_;
    Buffer<uint64_t> keys_;
    Buffer<unsigned long long> places_;
    Buffer<float> bounds_;
    Buffer<uint32_t> members_;
    Buffer<unsigned long long> changes_;
};

// The largest degree that there are kernels for.
inline constexpr uint32_t max_graph_degree = 1536;

}  // namespace pgwarp::gpu
