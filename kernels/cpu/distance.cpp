// Distances in portable SIMD. Highway compiles this file once for every instruction set, each into
// a namespace of its own; the last pass adds the choice between them.
//
// A call costs one load of the chosen table and one indirect jump. Highway's own dispatch would
// call a function in another library every time, which is measurable on vectors of 100 dimensions.

#include "kernels/distance.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/distance.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/cache_control.h"
#include "kernels/cpu/float16_lanes.h"

#ifndef PGWARP_DISTANCE_FUNCTIONS
#define PGWARP_DISTANCE_FUNCTIONS
namespace pgwarp {

template <typename A, typename B>
struct PairFunctions {
    float (*squared_l2_distance)(const A*, const B*, size_t) noexcept;
    float (*dot_product)(const A*, const B*, size_t) noexcept;
    float (*l1_distance)(const A*, const B*, size_t) noexcept;
    CosineParts (*cosine_parts)(const A*, const B*, size_t) noexcept;
};

struct DistanceFunctions {
    int64_t target;  // one of Highway's HWY_ constants
    PairFunctions<float, float> floats;
    PairFunctions<float, float16> float_and_half;
    PairFunctions<float16, float16> halves;
    double (*squared_norm)(const float*, size_t) noexcept;
    double (*squared_norm_of_halves)(const float16*, size_t) noexcept;
    void (*squared_l2_distances)(const float*, Rows, size_t, float*) noexcept;
    void (*squared_l2_half_distances)(const float*, HalfRows, size_t, float*) noexcept;
    void (*dot_products)(const float*, Rows, size_t, float*) noexcept;
    void (*dot_half_products)(const float*, HalfRows, size_t, float*) noexcept;
};

}  // namespace pgwarp
#endif

HWY_BEFORE_NAMESPACE();
namespace pgwarp {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using Floats = hn::Vec<FloatTag>;

// What one pair of elements adds to the sum. A pair of zeros adds nothing, so that a last, partial
// step can be padded with zeros.
struct SquaredDifference {
    static HWY_INLINE Floats add(Floats sum, Floats a, Floats b) {
        const Floats difference = hn::Sub(a, b);
        return hn::MulAdd(difference, difference, sum);
    }
};

struct Product {
    static HWY_INLINE Floats add(Floats sum, Floats a, Floats b) { return hn::MulAdd(a, b, sum); }
};

struct AbsoluteDifference {
    static HWY_INLINE Floats add(Floats sum, Floats a, Floats b) {
        return hn::Add(sum, hn::AbsDiff(a, b));
    }
};

HWY_INLINE Floats load(const float* from) {
    return hn::LoadU(FloatTag(), from);
}

HWY_INLINE Floats load(const bfloat16* from) {
#if HWY_TARGET == HWY_NEON
    // One instruction interleaves zeros with the halves; widening and shifting would be two, with
    // lower throughput.
    const uint16x4_t half = vld1_u16(reinterpret_cast<const uint16_t*>(from));
    const uint16x8_t halves = vcombine_u16(half, vdup_n_u16(0));
    return Floats(vreinterpretq_f32_u16(vzip1q_u16(vdupq_n_u16(0), halves)));
#else
    const FloatTag tag;
    const hn::RebindToUnsigned<FloatTag> wide;
    const hn::Rebind<uint16_t, FloatTag> narrow;
    const auto bits = hn::LoadU(narrow, reinterpret_cast<const uint16_t*>(from));
    return hn::BitCast(tag, hn::ShiftLeft<16>(hn::PromoteTo(wide, bits)));
#endif
}

HWY_INLINE Floats load(const float16* from) {
    return load_float16(from);
}

// The last `dims % lanes` elements; the other lanes are zero. Reads no byte outside the vector,
// whose end may be the end of a memory page. (MaskedLoad reads whole vectors on NEON and SSE.)
template <typename Element>
HWY_INLINE Floats load_tail(const Element* vector, size_t dims) {
    const FloatTag tag;
    const size_t lanes = hn::Lanes(tag);
    if (HWY_LIKELY(dims >= lanes)) {
        const Floats last = load(vector + dims - lanes);
        return hn::IfThenZeroElse(hn::FirstN(tag, lanes - dims % lanes), last);
    }
    HWY_ALIGN float padded[hn::MaxLanes(FloatTag())] = {};
    for (size_t i = 0; i < dims; i++) padded[i] = to_float(vector[i]);
    return hn::Load(tag, padded);
}

HWY_INLINE float sum_of_lanes(Floats values) {
    return hn::GetLane(hn::SumOfLanes(FloatTag(), values));
}

// Four sums, because a multiply-add has a latency of about four cycles.
template <class Step, typename A, typename B>
HWY_INLINE float sum_over_pair(const A* HWY_RESTRICT a, const B* HWY_RESTRICT b, size_t dims) {
    const FloatTag tag;
    const size_t lanes = hn::Lanes(tag);
    Floats sum0 = hn::Zero(tag);
    Floats sum1 = hn::Zero(tag);
    Floats sum2 = hn::Zero(tag);
    Floats sum3 = hn::Zero(tag);
    size_t i = 0;
    for (; i + 4 * lanes <= dims; i += 4 * lanes) {
        const size_t j = i + lanes;
        const size_t k = j + lanes;
        const size_t l = k + lanes;
        sum0 = Step::add(sum0, load(a + i), load(b + i));
        sum1 = Step::add(sum1, load(a + j), load(b + j));
        sum2 = Step::add(sum2, load(a + k), load(b + k));
        sum3 = Step::add(sum3, load(a + l), load(b + l));
    }
    for (; i + lanes <= dims; i += lanes) {
        sum0 = Step::add(sum0, load(a + i), load(b + i));
    }
    if (i < dims) {
        sum1 = Step::add(sum1, load_tail(a, dims), load_tail(b, dims));
    }
    return sum_of_lanes(hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3)));
}

constexpr size_t rows_at_once = 4;

// Longer rows are taken one by one: four streams through memory are then slower than one (5.5
// against 6.9 billion elements/s on a Neoverse V1 with 784 dimensions), while the query stays in
// the L1 cache either way and the sum over lanes no longer matters.
constexpr size_t dims_of_short_rows = 256;

// Arm's prefetcher loses track of four streams that each end after a few cache lines. Prefetching
// the next group, which is one contiguous stream, gains up to 50% when rows come from the L2 or L3
// cache.
template <typename Element>
HWY_INLINE void prefetch([[maybe_unused]] const Element* from, [[maybe_unused]] size_t count) {
#if HWY_ARCH_ARM
    constexpr size_t line = 64 / sizeof(Element);
    for (size_t i = 0; i < count; i += line) hwy::Prefetch(from + i);
#endif
}

// Four rows with two sums each: eight independent chains, and every load of the query serves four
// multiply-adds. Sums, query and one row's elements fit into sixteen registers. Named variables,
// because vectors of scalable length cannot be kept in arrays.
template <class Step, typename Element>
HWY_INLINE void sums_over_four_rows(const float* HWY_RESTRICT query, const Element* const* rows,
                                    size_t dims, float* HWY_RESTRICT sums) {
    const FloatTag tag;
    const size_t lanes = hn::Lanes(tag);
    const Element* HWY_RESTRICT row0 = rows[0];
    const Element* HWY_RESTRICT row1 = rows[1];
    const Element* HWY_RESTRICT row2 = rows[2];
    const Element* HWY_RESTRICT row3 = rows[3];
    const Element* next_group = row3 + dims;
    Floats sum0 = hn::Zero(tag), odd_sum0 = hn::Zero(tag);
    Floats sum1 = hn::Zero(tag), odd_sum1 = hn::Zero(tag);
    Floats sum2 = hn::Zero(tag), odd_sum2 = hn::Zero(tag);
    Floats sum3 = hn::Zero(tag), odd_sum3 = hn::Zero(tag);
    size_t i = 0;
    for (; i + 2 * lanes <= dims; i += 2 * lanes) {
        const size_t j = i + lanes;
        const Floats query0 = hn::LoadU(tag, query + i);
        const Floats query1 = hn::LoadU(tag, query + j);
        prefetch(next_group + rows_at_once * i, rows_at_once * 2 * lanes);
        sum0 = Step::add(sum0, query0, load(row0 + i));
        sum1 = Step::add(sum1, query0, load(row1 + i));
        sum2 = Step::add(sum2, query0, load(row2 + i));
        sum3 = Step::add(sum3, query0, load(row3 + i));
        odd_sum0 = Step::add(odd_sum0, query1, load(row0 + j));
        odd_sum1 = Step::add(odd_sum1, query1, load(row1 + j));
        odd_sum2 = Step::add(odd_sum2, query1, load(row2 + j));
        odd_sum3 = Step::add(odd_sum3, query1, load(row3 + j));
    }
    if (i + lanes <= dims) {
        const Floats query0 = hn::LoadU(tag, query + i);
        sum0 = Step::add(sum0, query0, load(row0 + i));
        sum1 = Step::add(sum1, query0, load(row1 + i));
        sum2 = Step::add(sum2, query0, load(row2 + i));
        sum3 = Step::add(sum3, query0, load(row3 + i));
        i += lanes;
    }
    if (i < dims) {
        const Floats query1 = load_tail(query, dims);
        odd_sum0 = Step::add(odd_sum0, query1, load_tail(row0, dims));
        odd_sum1 = Step::add(odd_sum1, query1, load_tail(row1, dims));
        odd_sum2 = Step::add(odd_sum2, query1, load_tail(row2, dims));
        odd_sum3 = Step::add(odd_sum3, query1, load_tail(row3, dims));
    }
    sums[0] = sum_of_lanes(hn::Add(sum0, odd_sum0));
    sums[1] = sum_of_lanes(hn::Add(sum1, odd_sum1));
    sums[2] = sum_of_lanes(hn::Add(sum2, odd_sum2));
    sums[3] = sum_of_lanes(hn::Add(sum3, odd_sum3));
}

template <class Step, typename Element>
HWY_INLINE void sums_over_rows(const float* query, RowsOf<Element> rows, size_t dims, float* sums) {
    if (dims > dims_of_short_rows) {
        for (size_t i = 0; i < rows.count; i++) {
            sums[i] = sum_over_pair<Step>(query, rows.data + i * rows.stride, dims);
        }
        return;
    }
    for (size_t first = 0; first < rows.count; first += rows_at_once) {
        // The last group repeats its last row as padding. Another path would have another order of
        // additions.
        const size_t present = HWY_MIN(rows_at_once, rows.count - first);
        const Element* group[rows_at_once];
        for (size_t i = 0; i < rows_at_once; i++) {
            group[i] = rows.data + (first + HWY_MIN(i, present - 1)) * rows.stride;
        }
        float group_sums[rows_at_once];
        sums_over_four_rows<Step>(query, group, dims, group_sums);
        for (size_t i = 0; i < present; i++) sums[first + i] = group_sums[i];
    }
}

// Halves are floats once they are loaded: of equal values, the results are equal to the last bit.
template <typename A, typename B>
float squared_l2_distance(const A* a, const B* b, size_t dims) noexcept {
    return sum_over_pair<SquaredDifference>(a, b, dims);
}

template <typename A, typename B>
float dot_product(const A* a, const B* b, size_t dims) noexcept {
    return sum_over_pair<Product>(a, b, dims);
}

template <typename A, typename B>
float l1_distance(const A* a, const B* b, size_t dims) noexcept {
    return sum_over_pair<AbsoluteDifference>(a, b, dims);
}

void squared_l2_distances(const float* query, Rows rows, size_t dims, float* distances) noexcept {
    sums_over_rows<SquaredDifference>(query, rows, dims, distances);
}

void squared_l2_half_distances(const float* query, HalfRows rows, size_t dims,
                               float* distances) noexcept {
    sums_over_rows<SquaredDifference>(query, rows, dims, distances);
}

void dot_products(const float* query, Rows rows, size_t dims, float* products) noexcept {
    sums_over_rows<Product>(query, rows, dims, products);
}

void dot_half_products(const float* query, HalfRows rows, size_t dims, float* products) noexcept {
    sums_over_rows<Product>(query, rows, dims, products);
}

// Two steps per iteration: with three sums per step, that is six independent chains.
template <typename A, typename B>
CosineParts cosine_parts(const A* HWY_RESTRICT a, const B* HWY_RESTRICT b, size_t dims) noexcept {
    const FloatTag tag;
    const size_t lanes = hn::Lanes(tag);
    Floats product0 = hn::Zero(tag);
    Floats product1 = hn::Zero(tag);
    Floats norm_a0 = hn::Zero(tag);
    Floats norm_a1 = hn::Zero(tag);
    Floats norm_b0 = hn::Zero(tag);
    Floats norm_b1 = hn::Zero(tag);
    const auto step0 = [&](Floats a0, Floats b0) HWY_ATTR {
        product0 = hn::MulAdd(a0, b0, product0);
        norm_a0 = hn::MulAdd(a0, a0, norm_a0);
        norm_b0 = hn::MulAdd(b0, b0, norm_b0);
    };
    const auto step1 = [&](Floats a1, Floats b1) HWY_ATTR {
        product1 = hn::MulAdd(a1, b1, product1);
        norm_a1 = hn::MulAdd(a1, a1, norm_a1);
        norm_b1 = hn::MulAdd(b1, b1, norm_b1);
    };
    size_t i = 0;
    for (; i + 2 * lanes <= dims; i += 2 * lanes) {
        step0(load(a + i), load(b + i));
        step1(load(a + i + lanes), load(b + i + lanes));
    }
    if (i + lanes <= dims) {
        step0(load(a + i), load(b + i));
        i += lanes;
    }
    if (i < dims) {
        step1(load_tail(a, dims), load_tail(b, dims));
    }
    return {sum_of_lanes(hn::Add(product0, product1)), sum_of_lanes(hn::Add(norm_a0, norm_a1)),
            sum_of_lanes(hn::Add(norm_b0, norm_b1))};
}

double squared_norm(const float* HWY_RESTRICT a, size_t dims) noexcept {
    const hn::ScalableTag<double> tag;
    const hn::Rebind<float, decltype(tag)> narrow;
    const size_t lanes = hn::Lanes(tag);
    auto sum0 = hn::Zero(tag);
    auto sum1 = hn::Zero(tag);
    auto sum2 = hn::Zero(tag);
    auto sum3 = hn::Zero(tag);
    size_t i = 0;
    for (; i + 4 * lanes <= dims; i += 4 * lanes) {
        const auto a0 = hn::PromoteTo(tag, hn::LoadU(narrow, a + i));
        const auto a1 = hn::PromoteTo(tag, hn::LoadU(narrow, a + i + lanes));
        const auto a2 = hn::PromoteTo(tag, hn::LoadU(narrow, a + i + 2 * lanes));
        const auto a3 = hn::PromoteTo(tag, hn::LoadU(narrow, a + i + 3 * lanes));
        sum0 = hn::MulAdd(a0, a0, sum0);
        sum1 = hn::MulAdd(a1, a1, sum1);
        sum2 = hn::MulAdd(a2, a2, sum2);
        sum3 = hn::MulAdd(a3, a3, sum3);
    }
    double rest = 0;
    for (; i < dims; i++) {
        rest += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    }
    return rest +
           hn::GetLane(hn::SumOfLanes(tag, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

// Through floats, a piece at a time: it is no hot path.
double squared_norm_of_halves(const float16* a, size_t dims) noexcept {
    constexpr size_t piece = 256;
    HWY_ALIGN float floats[piece];
    double sum = 0;
    for (size_t i = 0; i < dims; i += piece) {
        const size_t count = HWY_MIN(piece, dims - i);
        to_floats(a + i, count, floats);
        sum += squared_norm(floats, count);
    }
    return sum;
}

template <typename A, typename B>
constexpr PairFunctions<A, B> pair_functions() {
    return {
        .squared_l2_distance = squared_l2_distance<A, B>,
        .dot_product = dot_product<A, B>,
        .l1_distance = l1_distance<A, B>,
        .cosine_parts = cosine_parts<A, B>,
    };
}

}  // namespace

const DistanceFunctions* distance_functions() {
    static constexpr DistanceFunctions functions = {
        .target = HWY_TARGET,
        .floats = pair_functions<float, float>(),
        .float_and_half = pair_functions<float, float16>(),
        .halves = pair_functions<float16, float16>(),
        .squared_norm = squared_norm,
        .squared_norm_of_halves = squared_norm_of_halves,
        .squared_l2_distances = squared_l2_distances,
        .squared_l2_half_distances = squared_l2_half_distances,
        .dot_products = dot_products,
        .dot_half_products = dot_half_products,
    };
    return &functions;
}

}  // namespace HWY_NAMESPACE
}  // namespace pgwarp
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pgwarp {

HWY_EXPORT(distance_functions);

namespace {
const DistanceFunctions* chosen = HWY_DYNAMIC_DISPATCH(distance_functions)();
}

void choose_distance_target() noexcept {
    chosen = HWY_DYNAMIC_DISPATCH(distance_functions)();
}

const char* distance_target() noexcept {
    return hwy::TargetName(chosen->target);
}

float squared_l2_distance(const float* a, const float* b, size_t dims) noexcept {
    return chosen->floats.squared_l2_distance(a, b, dims);
}

float squared_l2_distance(const float* a, const float16* b, size_t dims) noexcept {
    return chosen->float_and_half.squared_l2_distance(a, b, dims);
}

float squared_l2_distance(const float16* a, const float16* b, size_t dims) noexcept {
    return chosen->halves.squared_l2_distance(a, b, dims);
}

float dot_product(const float* a, const float* b, size_t dims) noexcept {
    return chosen->floats.dot_product(a, b, dims);
}

float dot_product(const float* a, const float16* b, size_t dims) noexcept {
    return chosen->float_and_half.dot_product(a, b, dims);
}

float dot_product(const float16* a, const float16* b, size_t dims) noexcept {
    return chosen->halves.dot_product(a, b, dims);
}

float l1_distance(const float* a, const float* b, size_t dims) noexcept {
    return chosen->floats.l1_distance(a, b, dims);
}

float l1_distance(const float* a, const float16* b, size_t dims) noexcept {
    return chosen->float_and_half.l1_distance(a, b, dims);
}

float l1_distance(const float16* a, const float16* b, size_t dims) noexcept {
    return chosen->halves.l1_distance(a, b, dims);
}

CosineParts cosine_parts(const float* a, const float* b, size_t dims) noexcept {
    return chosen->floats.cosine_parts(a, b, dims);
}

CosineParts cosine_parts(const float* a, const float16* b, size_t dims) noexcept {
    return chosen->float_and_half.cosine_parts(a, b, dims);
}

CosineParts cosine_parts(const float16* a, const float16* b, size_t dims) noexcept {
    return chosen->halves.cosine_parts(a, b, dims);
}

double squared_norm(const float* a, size_t dims) noexcept {
    return chosen->squared_norm(a, dims);
}

double squared_norm(const float16* a, size_t dims) noexcept {
    return chosen->squared_norm_of_halves(a, dims);
}

void squared_l2_distances(const float* query, Rows rows, size_t dims, float* distances) noexcept {
    chosen->squared_l2_distances(query, rows, dims, distances);
}

void squared_l2_distances(const float* query, HalfRows rows, size_t dims,
                          float* distances) noexcept {
    chosen->squared_l2_half_distances(query, rows, dims, distances);
}

void dot_products(const float* query, Rows rows, size_t dims, float* products) noexcept {
    chosen->dot_products(query, rows, dims, products);
}

void dot_products(const float* query, HalfRows rows, size_t dims, float* products) noexcept {
    chosen->dot_half_products(query, rows, dims, products);
}

}  // namespace pgwarp
#endif
