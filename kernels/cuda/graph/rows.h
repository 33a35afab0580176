// Rows and lists of a k-NN graph on the device.
//
// A list is (degree) keys as in keys.h, of distance and row: sorting keys sorts edges. The highest
// bit of the row says that the neighbor has not been sampled yet (NEW in the paper). Empty places
// hold no_edge.
#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/cuda/select/keys.h"
#include "kernels/cuda/base/upload.h"
#include "kernels/knn_graph.h"

namespace pgwarp::gpu {

inline constexpr uint32_t fresh_edge = 0x80000000u;

PGWARP_HOST_DEVICE uint64_t no_edge() {
    return make_key(bits_float(infinity_bits), no_row);
}
PGWARP_HOST_DEVICE uint32_t edge_row(uint64_t key) {
    return key_index(key) & ~fresh_edge;
}

// The rows as kernels see them. All metrics but L1 are computed from products; for L2 and cosine,
// kernels subtract a common origin from the rows first (centred()).
struct GraphView {
    const float* rows;  // (count)(stride), the end of each row padded with zeros
    uint32_t count;
    uint32_t dims;
    uint32_t stride;  // a multiple of four
    Metric metric;

    PGWARP_HOST_DEVICE const float* row(uint32_t i) const { return rows + size_t{i} * stride; }
    PGWARP_HOST_DEVICE bool centred() const { return has_norms(metric); }
};

class DeviceGraphRows {
  public:
    // Throws DeviceFailure if sums of squares would overflow a float: the CPU takes such rows.
    DeviceGraphRows(const Context& context, Uploader& uploader, cudaStream_t stream,
                    const GraphRows& rows);

    const GraphView& view() const { return view_; }
    static size_t row_bytes(uint32_t dims) { return (size_t{dims} + 3) / 4 * 4 * sizeof(float); }

  private:
    Buffer<float> rows_;
    GraphView view_;
};

// Converts `count` edges of the caller's format to keys in place, and back.
void edges_to_keys(uint64_t* edges, size_t count, cudaStream_t stream);
void keys_to_edges(uint64_t* keys, size_t count, cudaStream_t stream);
// Copies lists to another degree: drops neighbors beyond it, or fills up with no_edge.
void copy_lists(const uint64_t* from, uint32_t from_degree, size_t count, uint64_t* to,
                uint32_t to_degree, cudaStream_t stream);
// distances, (count): the distance at position `place` of each list.
void place_distances(const uint64_t* lists, uint32_t degree, uint32_t place, size_t count,
                     float* distances, cudaStream_t stream);
void fill_keys(uint64_t* keys, size_t count, uint64_t key, cudaStream_t stream);

}  // namespace pgwarp::gpu
