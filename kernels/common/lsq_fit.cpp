// The parts of training beside the search, the same for every executor.

#include "kernels/lsq.h"
#include "kernels/random.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace pgwarp {

void words_of_codebook(const LsqShape& shape, const float* codebook, float* words) {
    for (uint32_t k = 0; k < shape.books; ++k)
        for (uint32_t d = 0; d < shape.dims; ++d)
            for (uint32_t c = 0; c < codewords; ++c)
                words[(size_t{k} * codewords + c) * shape.dims + d] =
                    codebook[(size_t{k} * shape.dims + d) * codewords + c];
}

void codebook_of_words(const LsqShape& shape, const float* words, float* codebook) {
    for (uint32_t k = 0; k < shape.books; ++k)
        for (uint32_t d = 0; d < shape.dims; ++d)
            for (uint32_t c = 0; c < codewords; ++c)
                codebook[(size_t{k} * shape.dims + d) * codewords + c] =
                    words[(size_t{k} * codewords + c) * shape.dims + d];
}

size_t lsq_fit_bytes(const LsqShape& shape) {
    return shape.words() * (shape.words() + 2 * size_t{shape.dims}) * sizeof(double);
}

std::vector<float> spread_by_dimension(const float* rows, size_t count, uint32_t dims) {
    std::vector<double> sums(dims), squares(dims);
    count = std::min(count, spread_rows);
    for (size_t i = 0; i < count; ++i)
        for (uint32_t d = 0; d < dims; ++d) {
            const double x = rows[i * dims + d];
            sums[d] += x;
            squares[d] += x * x;
        }
    std::vector<float> spread(dims);
    const auto n = static_cast<double>(std::max<size_t>(count, 1));
    for (uint32_t d = 0; d < dims; ++d)
        spread[d] = static_cast<float>(
            std::sqrt(std::max(0.0, squares[d] / n - sums[d] / n * (sums[d] / n))));
    return spread;
}

void lsq_relax(const LsqShape& shape, const float* spread, double error, uint32_t step,
               uint32_t steps, uint64_t seed, float* words) {
    // No noise in the last fifth of the steps.
    const double share = 1.25 * (step + 1) / steps;
    double total = 0;
    for (uint32_t d = 0; d < shape.dims; ++d) total += double{spread[d]} * spread[d];
    if (share >= 1 || !(total > 0) || !std::isfinite(error)) return;
    const double heat = 1.5 * (1 - share) / shape.books * std::sqrt(std::min(1.0, error / total));
    std::vector<float> size(shape.dims);
    for (uint32_t d = 0; d < shape.dims; ++d) size[d] = static_cast<float>(heat * spread[d]);
    Random random(seed + 0x9e3779b97f4a7c15ULL * (step + 1));
    // Two normal deviates at a time (Box and Muller).
    const size_t count = shape.words() * shape.dims;
    for (size_t i = 0; i < count; i += 2) {
        const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
        const double angle = 2 * std::numbers::pi * random.uniform();
        words[i] += size[i % shape.dims] * static_cast<float>(radius * std::cos(angle));
        if (i + 1 < count)
            words[i + 1] +=
                size[(i + 1) % shape.dims] * static_cast<float>(radius * std::sin(angle));
    }
}

uint8_t nearest_level(const float* levels, float value) {
    const float* above = std::lower_bound(levels, levels + codewords, value);
    if (above == levels + codewords) return codewords - 1;
    if (above == levels) return 0;
    return static_cast<uint8_t>(above - levels - (value - above[-1] <= *above - value));
}

void fit_levels(std::vector<float> values, float* levels) {
    std::sort(values.begin(), values.end());
    const size_t count = values.size();
    if (count == 0) {
        std::fill_n(levels, codewords, 0.0f);
        return;
    }
    // Start with the asymptotically optimal density of levels: proportional to the cube root of the
    // density of values. With stretches of equally many values, a stretch gets levels in proportion
    // to its width to the power of 2/3.
    const size_t stretches = std::min<size_t>(count, 4 * codewords);
    const auto value_at = [&](size_t stretch) {
        return double{values[std::min(count - 1, stretch * count / stretches)]};
    };
    std::vector<double> up_to(stretches + 1);
    for (size_t i = 0; i < stretches; ++i)
        up_to[i + 1] = up_to[i] + std::cbrt(std::pow(value_at(i + 1) - value_at(i), 2));
    for (size_t c = 0, i = 0; c < codewords; ++c) {
        const double wanted = (c + 0.5) / codewords * up_to[stretches];
        while (i + 1 < stretches && up_to[i + 1] < wanted) ++i;
        levels[c] = static_cast<float>((value_at(i) + value_at(i + 1)) / 2);
    }
    // Lloyd iterations: in one dimension, clusters are runs of the sorted values.
    for (int iteration = 0; iteration < 20; ++iteration) {
        std::vector<double> sums(codewords);
        std::vector<size_t> used(codewords);
        for (const float value : values) {
            const uint8_t c = nearest_level(levels, value);
            sums[c] += value;
            ++used[c];
        }
        for (size_t c = 0; c < codewords; ++c)
            if (used[c]) levels[c] = static_cast<float>(sums[c] / static_cast<double>(used[c]));
        std::sort(levels, levels + codewords);
    }
}

}  // namespace pgwarp
