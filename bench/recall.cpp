#include "bench/recall.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace pgwarp::bench {

size_t count_hits(Metric metric, const Vectors& base, std::span<const float> query,
                  std::span<const int32_t> truth, std::span<const int32_t> returned, size_t k) {
    k = std::min(k, truth.size());
    if (k == 0) return 0;
    std::vector<int32_t> rows(returned.begin(), returned.begin() + std::min(k, returned.size()));
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());

    // Equal rows have equal sums. Different rows at the same distance in exact arithmetic may
    // differ in the last bits of the float64 sum.
    const double kth = distance(metric, query, base.row(truth[k - 1]));
    const double bound = kth + 1e-12 * std::max(1.0, std::abs(kth));
    return static_cast<size_t>(std::count_if(rows.begin(), rows.end(), [&](int32_t row) {
        return distance(metric, query, base.row(row)) <= bound;
    }));
}

}  // namespace pgwarp::bench
