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

// Halves until all are small enough: groups of one level differ by one row at most.
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

}  // namespace

void grow_tree(Workers& workers, const GraphRows& rows, size_t leaf_rows, uint64_t seed,
               Leaves& leaves) {
    shuffle(leaves.order, rows.count, seed);
    leaves.begins = {0, static_cast<uint32_t>(rows.count)};
    std::vector<Placed> placed(rows.count);
    for (size_t i = 0; i < rows.count; ++i) placed[i] = {0, leaves.order[i]};
    std::vector<float> planes;
    for (uint64_t level = 1; largest(leaves.begins) > leaf_rows; ++level) {
        const std::vector<uint32_t>& begins = leaves.begins;
        draw_planes(workers, rows, begins, placed, seed + level * 0xd1342543de82ef95ULL, planes);
        workers.run((rows.count + task_rows - 1) / task_rows, [&](size_t task, int) {
            const size_t end = std::min(rows.count, (task + 1) * task_rows);
            size_t i = task * task_rows;
            size_t group = static_cast<size_t>(
                std::upper_bound(begins.begin(), begins.end(), static_cast<uint32_t>(i)) -
                begins.begin() - 1);
            for (; i < end; ++i) {
                while (begins[group + 1] <= i) ++group;
                placed[i].position = dot_product(rows.row(placed[i].row),
                                                 planes.data() + group * rows.dims, rows.dims);
                // What overflowed has no place in an order.
                if (placed[i].position != placed[i].position) placed[i].position = 0;
            }
        });
        std::vector<uint32_t> halves = halved(begins);
        workers.run(begins.size() - 1, [&](size_t group, int) {
            const auto at = [&](size_t i) { return placed.begin() + i; };
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
