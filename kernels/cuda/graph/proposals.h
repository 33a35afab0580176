// Edges that were found and wait to be merged into lists, and what tells whether one is worth
// waiting.
//
// A row has places for proposals, and a proposal the place that chance gives it; of several the
// nearest stays. So neither locks are needed nor an order, and a descent repeats exactly. The hash
// differs from one round to the next, so that two who share a place do not share the next.
#pragma once

#include "kernels/cuda/graph/hash.h"
#include "kernels/cuda/graph/rows.h"

namespace pgwarp::gpu {

struct ProposalView {
    unsigned long long* places;  // (count)(2^place_bits) keys, no_key where there is none
    const float* bounds;         // (count): the distance of each list's last
    // (count)(2^member_bits / 32): some bits for each edge of the list, by its hashes (a Bloom
    // filter). Who is in the list is not proposed again, so that nearer ones do not keep others
    // out of their places; of those who are not, one in some thousands is taken for it.
    const uint32_t* members;
    uint32_t place_bits;
    uint32_t member_bits;
    uint32_t salt;
};

inline constexpr uint32_t member_hashes = 3;
PGWARP_BOTH uint32_t member_bit(uint32_t row, uint32_t other, uint32_t which, uint32_t bits) {
    return short_hash(other, row * 0x2c1b3c6du + which * 0x68e31da5u, bits);
}

class GraphLists {
  public:
    // Places for lists, all of them empty where `edges` is null, else the caller's,
    // (count)(edges_degree).
    GraphLists(const Context& context, Uploader& uploader, cudaStream_t stream, size_t count,
               uint32_t degree, const Edge* edges, uint32_t edges_degree);

    static size_t row_bytes(uint32_t degree);

    ProposalView view(uint32_t salt) const;
    uint64_t* keys() const { return keys_.data(); }

    // Merges what was proposed. Returns how many edges are new, once it has waited for the stream.
    uint64_t merge_proposals(cudaStream_t stream);

    // All distances from the rows, lists in their order, and no edge fresh.
    void finish(const GraphView& view, cudaStream_t stream);

    // The lists with fewer places, up to those for proposals, which are gone then.
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
