#include "kernels/common/rotation_spread.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace pgwarp {

void spread_directions(const QuantizerShape& shape, uint32_t from, const float* directions,
                       const float* values, float* matrix) {
    const uint32_t parts = shape.parts();
    std::vector<double> log_product(parts);
    std::vector<uint32_t> taken(parts);
    const double least = std::max(double{values[from - 1]}, 1e-30) * 1e-12;
    for (uint32_t rank = 0; rank < shape.dims; ++rank) {
        const uint32_t direction = from - 1 - rank;
        uint32_t best = parts;
        for (uint32_t p = 0; p < parts; ++p)
            if (taken[p] < shape.part_begin(p + 1) - shape.part_begin(p) &&
                (best == parts || log_product[p] < log_product[best]))
                best = p;
        std::copy_n(directions + size_t{direction} * from, from,
                    matrix + size_t{shape.part_begin(best) + taken[best]} * from);
        ++taken[best];
        // Relative to `least`, so that no term is negative.
        log_product[best] += std::log(std::max(double{values[direction]}, least) / least);
    }
}

}  // namespace pgwarp
