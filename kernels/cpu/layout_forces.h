// The pulls and pushes of sixteen nodes at a time, side by side in vectors: one node after the
// other, each step would wait for the position that the one before it left.
#pragma once

#include "kernels/common.h"
#include "kernels/graph_layout.h"

#include <vector>

namespace pgwarp {

// One node a lane, on every processor, whatever its vectors are: so all lay out alike.
inline constexpr size_t layout_lanes = 16;

struct LanePoints {
    float x[layout_lanes];
    float y[layout_lanes];
};

// Points to push away from, at random: drawn for many nodes at once, as each draw waits for memory.
class PushPool {
  public:
    static constexpr size_t pushes = 5;  // for each pull
    static constexpr size_t size = 2048;

    template <typename Draw>
    void fill(const Draw& draw) {
        next_ = 0;
        for (size_t i = 0; i < size; ++i) {
            const LayoutPoint point = draw();
            x_[i] = point.x;
            y_[i] = point.y;
        }
    }
    // Where the points of the next step begin. A lane meets others in each pass over the pool.
    size_t next() {
        constexpr size_t taken = pushes * layout_lanes;
        const size_t first = next_;
        next_ += taken + 1;
        if (next_ + taken > size) next_ -= size - taken;
        return first;
    }
    const float* x() const { return x_.data(); }
    const float* y() const { return y_.data(); }

  private:
    std::vector<float> x_ = std::vector<float>(size), y_ = std::vector<float>(size);
    size_t next_ = 0;
};

// Sixteen nodes and what pulls them.
struct LayoutGroup {
    LanePoints points;
    int32_t steps[layout_lanes];  // of each node
    const LanePoints* pulls;      // (most steps + 1): behind the last of a node is its first again
};

// Moves the points of a group.
void move_group(const LayoutCurve& curve, float rate, PushPool& pool, LayoutGroup& group);

}  // namespace pgwarp
