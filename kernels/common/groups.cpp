#include "kernels/common/groups.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

namespace pgwarp {

namespace {

// Writes to `centroid` a point beside `mean`, in the direction of a row. False where the row equals
// the mean.
bool put_beside(const float* mean, const float* row, uint32_t dims, float* centroid) {
    // Takes the row itself where the small step is lost in rounding.
    for (const float part : {1.0f / 128, 1.0f}) {
        bool moved = false;
        for (uint32_t d = 0; d < dims; ++d) {
            centroid[d] = part == 1 ? row[d] : mean[d] + part * (row[d] - mean[d]);
            moved |= centroid[d] != mean[d];
        }
        if (moved) return true;
    }
    return false;
}

}  // namespace

Groups::Groups(const std::vector<uint32_t>& cluster_of, uint32_t clusters)
    : begin(size_t{clusters} + 1), members(cluster_of.size()) {
    for (const uint32_t c : cluster_of) ++begin[size_t{c} + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<size_t> at(begin.begin(), begin.end() - 1);
    for (size_t i = 0; i < cluster_of.size(); ++i)
        members[at[cluster_of[i]]++] = static_cast<uint32_t>(i);
}

void fill_empty(const Groups& groups, const RowOfMember& row_of, uint32_t dims, float* centroids) {
    const auto clusters = static_cast<uint32_t>(groups.begin.size() - 1);
    std::vector<size_t> sizes(clusters);
    for (uint32_t c = 0; c < clusters; ++c) sizes[c] = groups.size(c);
    std::vector<size_t> next(groups.begin.begin(), groups.begin.end() - 1);  // members not yet used
    fill_empty(
        sizes,
        [&](uint32_t c) { return next[c] < groups.begin[c + 1] ? row_of(next[c]++) : nullptr; },
        dims, centroids);
}

void fill_empty_fetching(const Groups& groups, const FetchRows& fetch, uint32_t dims,
                         float* centroids) {
    // fill_empty() usually takes the first row it asks for. Each time it goes on to the next row,
    // twice as many are fetched.
    constexpr size_t most = 4096;
    std::vector<float> fetched;
    size_t first = 0, count = 0;
    const auto row_of = [&](size_t member) {
        if (member < first || member >= first + count) {
            count = member == first + count ? std::clamp<size_t>(2 * count, 1, most) : 1;
            count = std::min(count, groups.members.size() - member);
            first = member;
            fetched.resize(count * dims);
            fetch({groups.members.data() + member, count}, fetched.data());
        }
        return static_cast<const float*>(fetched.data()) + (member - first) * dims;
    };
    fill_empty(groups, row_of, dims, centroids);
}

void fill_empty(const std::vector<size_t>& sizes, const NextRow& next_row, uint32_t dims,
                float* centroids) {
    const auto clusters = static_cast<uint32_t>(sizes.size());
    std::vector<uint32_t> empty;
    for (uint32_t c = 0; c < clusters; ++c)
        if (sizes[c] == 0) empty.push_back(c);
    if (empty.empty()) return;

    // The largest part first; ties go to the lowest cluster.
    using Part = std::pair<size_t, uint32_t>;  // rows in each part of the cluster, ~cluster
    std::priority_queue<Part> largest;
    std::vector<uint32_t> parts(clusters, 1);
    for (uint32_t c = 0; c < clusters; ++c)
        if (sizes[c] > 1) largest.emplace(sizes[c], ~c);

    for (const uint32_t to : empty) {
        bool filled = false;
        while (!filled && !largest.empty()) {
            const uint32_t from = ~largest.top().second;
            largest.pop();
            while (!filled) {
                const float* row = next_row(from);
                if (!row) break;
                filled = put_beside(centroids + size_t{from} * dims, row, dims,
                                    centroids + size_t{to} * dims);
            }
            const size_t part = sizes[from] / ++parts[from];
            if (filled && part > 1) largest.emplace(part, ~from);
        }
        if (!filled) return;
    }
}

}  // namespace pgwarp
