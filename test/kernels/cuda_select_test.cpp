// k-selection on the device, by each method, against a sort on the host.

#include "kernels/cuda/select/select.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "test/kernels/cuda_fixture.h"

namespace pgwarp::gpu {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

enum class Values { random, ascending, descending, constant, few, special };

struct SelectCase {
    uint32_t rows, length, k;
    Values values = Values::random;
    bool largest = false;
    uint32_t pad = 0;  // of the stride

    friend std::ostream& operator<<(std::ostream& out, const SelectCase& c) {
        return out << c.rows << " x " << c.length << ", k " << c.k << ", values "
                   << static_cast<int>(c.values) << (c.largest ? ", largest" : "") << ", pad "
                   << c.pad;
    }
};

std::vector<float> make_values(const SelectCase& c, std::mt19937& random) {
    const size_t stride = c.length + c.pad;
    std::vector<float> values(c.rows * stride);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (size_t i = 0; i < values.size(); ++i) {
        const auto column = static_cast<float>(i % stride);
        switch (c.values) {
            case Values::random:
                values[i] = uniform(random);
                break;
            case Values::ascending:
                values[i] = column;
                break;
            case Values::descending:
                values[i] = -column;
                break;
            case Values::constant:
                values[i] = 3.5f;
                break;
            case Values::few:
                values[i] = static_cast<float>(random() % 5) - 2;
                break;
            case Values::special: {
                const float all[] = {infinity, -infinity, std::nanf(""), -0.0f, 0.0f, 1e-42f, 7.0f};
                values[i] = random() % 3 ? uniform(random) : all[random() % 7];
                break;
            }
        }
    }
    return values;
}

class CudaSelect : public CudaTest {
  protected:
    // The keys of a row that are selected.
    static std::vector<uint64_t> reference(const SelectCase& c, const float* row) {
        std::vector<uint64_t> keys;
        for (uint32_t i = 0; i < c.length; ++i)
            if (!std::isnan(row[i])) keys.push_back(make_key(c.largest ? -row[i] : row[i], i));
        const size_t kept = std::min<size_t>(keys.size(), c.k);
        std::partial_sort(keys.begin(), keys.begin() + kept, keys.end());
        keys.resize(kept);
        return keys;
    }

    void check_case(const Context& context, const SelectCase& c, const SelectPlan& plan,
                    std::mt19937& random) {
        const std::vector<float> values = make_values(c, random);
        const Buffer<float> device = upload(context, values);
        Buffer<float> out_values(context.memory, size_t{c.rows} * c.k);
        Buffer<uint32_t> out_indices(context.memory, size_t{c.rows} * c.k);
        Buffer<char> scratch(context.memory, select_scratch_bytes(plan, c.rows, c.k));
        check(cudaMemset(out_values.data(), 0xee, out_values.size() * sizeof(float)), "memset");
        finish_default_stream();
        Stream stream;
        SelectProblem problem;
        problem.values = device.data();
        problem.stride = c.length + c.pad;
        problem.rows = c.rows;
        problem.length = c.length;
        problem.k = c.k;
        problem.largest = c.largest;
        problem.out_values = out_values.data();
        problem.out_indices = out_indices.data();
        select(problem, plan, scratch.data(), stream);
        stream.synchronize();
        const std::vector<float> found = download(out_values);
        const std::vector<uint32_t> indices = download(out_indices);
        for (uint32_t r = 0; r < c.rows; ++r) {
            const std::vector<uint64_t> keys =
                reference(c, values.data() + size_t{r} * problem.stride);
            for (uint32_t i = 0; i < c.k; ++i) {
                const size_t at = size_t{r} * c.k + i;
                const bool real = i < keys.size();
                const float sign = c.largest ? -1.0f : 1.0f;
                ASSERT_EQ(indices[at], real ? key_index(keys[i]) : no_index)
                    << c << ", method " << static_cast<int>(plan.method) << ", splits "
                    << plan.splits << ", row " << r << ", place " << i;
                ASSERT_EQ(found[at], sign * (real ? key_value(keys[i]) : infinity)) << c;
            }
        }
    }

    void check_all_methods(const Context& context, const SelectCase& c, std::mt19937& random) {
        for (SelectMethod method : {SelectMethod::warp, SelectMethod::block})
            for (uint32_t splits : {1u, 3u})
                if (splits == 1 || c.length >= 300)
                    check_case(context, c, {method, splits}, random);
        check_case(context, c, plan_select(c.rows, c.length, c.k, context.processors), random);
    }
};

TEST_F(CudaSelect, ShapesOfAllKinds) {
    std::mt19937 random(test_seed());
    const Context context(options());
    for (uint32_t k : {1u, 31u, 32u, 33u, 100u, 128u, 129u, 256u, 1000u, 1024u, 1025u, 2048u})
        for (uint32_t length : {1u, 37u, k, k + 1, 1000u, 1023u, 5003u, 20000u})
            check_all_methods(context,
                              {small_tests() ? 2u : 5u, length, k, Values::random,
                               (k + length) % 2 == 0, length % 3},
                              random);
}

TEST_F(CudaSelect, ValuesOfAllKinds) {
    std::mt19937 random(test_seed());
    const Context context(options());
    for (Values values :
         {Values::ascending, Values::descending, Values::constant, Values::few, Values::special})
        for (uint32_t k : {1u, 10u, 100u, 500u, 2000u})
            for (bool largest : {false, true})
                check_all_methods(
                    context, {3, small_tests() ? 9001u : 30001u, k, values, largest, 0}, random);
}

TEST_F(CudaSelect, OneLongRow) {
    std::mt19937 random(test_seed());
    const Context context(options());
    const uint32_t length = small_tests() ? 100003 : 3000007;
    for (uint32_t k : {1u, 10u, 1000u})
        check_case(context, {1, length, k}, plan_select(1, length, k, context.processors), random);
}

TEST_F(CudaSelect, ManyRows) {
    std::mt19937 random(test_seed());
    const Context context(options());
    check_case(context, {small_tests() ? 50u : 3000u, 1000, 100}, {SelectMethod::block, 1}, random);
    check_case(context, {small_tests() ? 50u : 3000u, 1000, 100}, {SelectMethod::warp, 1}, random);
}

// Tile after tile, with an addend, against the whole at once.
TEST_F(CudaSelect, GoesOnTileByTile) {
    std::mt19937 random(test_seed());
    const Context context(options());
    for (uint32_t k : {1u, 100u, 128u, 1100u, 2304u}) {
        const uint32_t rows = 4, length = 3000, tiles = 3;
        const std::vector<float> values = make_values({rows * tiles, length, k}, random);
        const std::vector<float> addend = make_values({tiles, length, k}, random);
        const Buffer<float> device = upload(context, values), add = upload(context, addend);
        Buffer<uint64_t> keys = upload(context, std::vector<uint64_t>(size_t{rows} * k, no_key));
        Stream stream;
        for (uint32_t t = 0; t < tiles; ++t)
            select_running({device + size_t{t} * rows * length, length, rows, length,
                            add + size_t{t} * length, t * length, k, keys.data()},
                           stream);
        stream.synchronize();
        const std::vector<uint64_t> found = download(keys);
        for (uint32_t r = 0; r < rows; ++r) {
            std::vector<uint64_t> all;
            for (uint32_t t = 0; t < tiles; ++t)
                for (uint32_t i = 0; i < length; ++i)
                    all.push_back(make_key(values[(size_t{t} * rows + r) * length + i] +
                                               addend[size_t{t} * length + i],
                                           t * length + i));
            std::sort(all.begin(), all.end());
            all.resize(k);
            std::vector<uint64_t> kept(found.begin() + size_t{r} * k,
                                       found.begin() + size_t{r + 1} * k);
            std::sort(kept.begin(), kept.end());
            ASSERT_EQ(kept, all) << "k " << k;
        }
    }
}

// Little data, for tools that check every access.
TEST_F(CudaSelect, EveryKernelOnce) {
    std::mt19937 random(test_seed());
    const Context context(options());
    for (uint32_t k : {10u, 100u, 200u, 1000u, 2048u})
        for (SelectMethod method : {SelectMethod::warp, SelectMethod::block})
            for (uint32_t splits : {1u, 3u})
                check_case(context, {1, 6000, k}, {method, splits}, random);
    for (uint32_t length : {100u, 1000u})
        for (uint32_t k : {10u, 100u, 1000u})
            check_case(context, {2, length, k}, {SelectMethod::shorts, 1}, random);
}

}  // namespace
}  // namespace pgwarp::gpu
