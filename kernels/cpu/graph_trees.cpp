#include "kernels/cpu/graph_trees.h"

#include "kernels/distance.h"
#include "kernels/random.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace pgwarp {

namespace {

constexpr size_t task_rows = 512;

struct Placed {
    float position;
    uint32_t row;

    friend bool operator<(const Placed& a, const Placed& b) {
        return a.position < b.position || (a.position == b.position && a.row < b.row);
    }
};

void shuffle(std::vector<uint32_t>& order, size_t count, uint64_t seed) {
    order.resize(count);
    std::iota(order.begin(), order.end(), 0u);
    Random random(seed);
    for (size_t i = 0; i < count; ++i) std::swap(order[i], order[i + random.below(count - i)]);
}

// Halves every group: groups of one level differ by at most one row.
std::vector<uint32_t> halved(const std::vector<uint32_t>& begins) {
    std::vector<uint32_t> halves;
    halves.reserve(2 * begins.size());
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
        halves.push_back(begins[i]);
        halves.push_back(begins[i] + (begins[i + 1] - begins[i]) / 2);
    }
    halves.push_back(begins.back());
    return halves;
}

size_t largest(const std::vector<uint32_t>& begins) {
    size_t most = 0;
    for (size_t i = 0; i + 1 < begins.size(); ++i)
        most = std::max<size_t>(most, begins[i + 1] - begins[i]);
    return most;
}

// (groups)(dims): the difference of two rows of each group.
void draw_planes(Workers& workers, const GraphRows& rows, const std::vector<uint32_t>& begins,
                 const std::vector<Placed>& placed, uint64_t seed, std::vector<float>& planes) {
    const size_t groups = begins.size() - 1;
    planes.resize(groups * rows.dims);
    workers.run(groups, [&](size_t group, int) {
        Random random(seed + group * 0x9e3779b97f4a7c15ULL);
        const uint32_t size = begins[group + 1] - begins[group];
        const auto draw = [&] { return rows.row(placed[begins[group] + random.below(size)].row); };
        const float* a = draw();
        const float* b = draw();
        float* plane = planes.data() + group * rows.dims;
        for (uint32_t d = 0; d < rows.dims; ++d) plane[d] = a[d] - b[d];
    });
}

// NaN, from an overflow, cannot be ordered.
float ordered(float position) {
    return position == position ? position : 0;
}

// Calls use(i, group) for all positions, in tasks of task_rows.
template <typename Use>
void for_places(Workers& workers, const std::vector<uint32_t>& begins, const Use& use) {
    const size_t count = begins.back();
    workers.run((count + task_rows - 1) / task_rows, [&](size_t task, int) {
        const size_t end = std::min(count, (task + 1) * task_rows);
        size_t i = task * task_rows;
        auto group = static_cast<size_t>(
            std::upper_bound(begins.begin(), begins.end(), static_cast<uint32_t>(i)) -
            begins.begin() - 1);
        for (; i < end; ++i) {
            while (begins[group + 1] <= i) ++group;
            use(i, group);
        }
    });
}

}  // namespace

Projections project_rows(Workers& workers, const GraphRows& rows, size_t count, uint64_t seed) {
    Projections projections{count, std::vector<float>(rows.count * count)};
    std::vector<float> planes(count * rows.dims);
    Random random(seed);
    for (size_t plane = 0; plane < count; ++plane) {
        const float* a = rows.row(random.below(rows.count));
        const float* b = rows.row(random.below(rows.count));
        for (uint32_t d = 0; d < rows.dims; ++d) planes[plane * rows.dims + d] = a[d] - b[d];
    }
    workers.run((rows.count + task_rows - 1) / task_rows, [&](size_t task, int) {
        const size_t end = std::min(rows.count, (task + 1) * task_rows);
        for (size_t row = task * task_rows; row < end; ++row)
            dot_products(rows.row(row), {planes.data(), rows.dims, count}, rows.dims,
                         projections.positions.data() + row * count);
    });
    return projections;
}

void grow_tree(Workers& workers, const GraphRows& rows, size_t leaf_rows, const TopLevels& top,
               uint64_t seed, Leaves& leaves) {
    shuffle(leaves.order, rows.count, seed);
    leaves.begins = {0, static_cast<uint32_t>(rows.count)};
    std::vector<Placed> placed(rows.count);
    for (size_t i = 0; i < rows.count; ++i) placed[i] = {0, leaves.order[i]};
    std::vector<float> planes;
    for (size_t level = 0; largest(leaves.begins) > leaf_rows; ++level) {
        const std::vector<uint32_t>& begins = leaves.begins;
        if (level < top.levels) {
            const Projections& known = *top.projections;
            const float* positions = known.positions.data() + top.first + level;
            for_places(workers, begins, [&](size_t i, size_t) {
                placed[i].position = ordered(positions[placed[i].row * known.count]);
            });
        } else {
            draw_planes(workers, rows, begins, placed, seed + (level + 1) * 0xd1342543de82ef95ULL,
                        planes);
            for_places(workers, begins, [&](size_t i, size_t group) {
                placed[i].position = ordered(dot_product(
                    rows.row(placed[i].row), planes.data() + group * rows.dims, rows.dims));
            });
        }
        std::vector<uint32_t> halves = halved(begins);
        workers.run(begins.size() - 1, [&](size_t group, int) {
            const auto at = [&](size_t i) { return placed.begin() + static_cast<long>(i); };
            std::nth_element(at(halves[2 * group]), at(halves[2 * group + 1]),
                             at(halves[2 * group + 2]));
        });
        leaves.begins = std::move(halves);
    }
    for (size_t i = 0; i < rows.count; ++i) leaves.order[i] = placed[i].row;
}

void deal_leaves(const GraphRows& rows, size_t leaf_rows, uint64_t seed, Leaves& leaves) {
    shuffle(leaves.order, rows.count, seed);
    leaves.begins = {0, static_cast<uint32_t>(rows.count)};
    while (largest(leaves.begins) > leaf_rows) leaves.begins = halved(leaves.begins);
}

}  // namespace pgwarp
