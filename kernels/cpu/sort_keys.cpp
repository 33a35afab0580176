#include "kernels/sort_keys.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace pgwarp {

namespace {

// More parts than threads, so that no straggler delays the others for long.
constexpr size_t max_parts = 64;
constexpr size_t min_rows = 256;
// Where there are many groups, fewer parts: counters take 64 MB at most, or what some parts need.
constexpr size_t max_places = 1 << 23;
constexpr size_t min_parts = 4;

}  // namespace

void sort_by_group(Workers& workers, const ChunkedKeys& keys, int group_shift, uint32_t groups,
                   KeyedRow* sorted, uint64_t* starts) {
    const size_t parts = std::min({max_parts, (keys.count + min_rows - 1) / min_rows,
                                   std::max(min_parts, max_places / groups)});
    const auto visit = [&](size_t part, auto&& work) {
        const size_t end = keys.count * (part + 1) / parts;
        for (size_t row = keys.count * part / parts; row < end;) {
            const size_t chunk = row / keys.chunk_rows, first = row % keys.chunk_rows;
            const size_t here = std::min(keys.chunk_rows - first, end - row);
            for (size_t i = 0; i < here; ++i) work(keys.chunks[chunk][first + i], row + i);
            row += here;
        }
    };
    // (parts)(groups): the number of a part's rows in a group, then where they go.
    std::vector<uint64_t> places(parts * groups);
    workers.run(parts, [&](size_t part, int) {
        uint64_t* mine = places.data() + part * groups;
        visit(part, [&](uint64_t key, size_t) { ++mine[key >> group_shift]; });
    });
    uint64_t place = 0;
    for (uint32_t group = 0; group < groups; ++group) {
        starts[group] = place;
        for (size_t part = 0; part < parts; ++part) {
            uint64_t& here = places[part * groups + group];
            place += std::exchange(here, place);
        }
    }
    starts[groups] = place;
    workers.run(parts, [&](size_t part, int) {
        uint64_t* mine = places.data() + part * groups;
        visit(part, [&](uint64_t key, size_t row) {
            sorted[mine[key >> group_shift]++] = {key, row};
        });
    });
    constexpr uint32_t task_groups = 32;
    workers.run((groups + task_groups - 1) / task_groups, [&](size_t task, int) {
        const auto first = static_cast<uint32_t>(task) * task_groups;
        for (uint32_t group = first; group < std::min(groups, first + task_groups); ++group)
            std::sort(sorted + starts[group], sorted + starts[group + 1],
                      [](const KeyedRow& a, const KeyedRow& b) { return a.key < b.key; });
    });
}

}  // namespace pgwarp
