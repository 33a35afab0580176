// The metrics, by operator: <-> (L2), <#> (negative inner product), <=> (cosine), <+> (L1), and
// their properties for the kernels. Indexes support all but L1, graphs support all.
//
// Every switch over metrics lists all of them without a default: -Werror=switch makes the compiler
// stop at each one that a new metric must extend.
#pragma once

#include "kernels/host_device.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace pgwarp {

// Stored on disk: never renumber.
enum class Metric : uint8_t { l2 = 0, inner_product = 1, cosine = 2, l1 = 3 };

inline constexpr Metric all_metrics[] = {Metric::l2, Metric::inner_product, Metric::cosine,
                                         Metric::l1};

// The name that SQL functions show.
constexpr const char* sql_name(Metric metric) {
    switch (metric) {
        case Metric::l2:
            return "l2";
        case Metric::inner_product:
            return "inner_product";
        case Metric::cosine:
            return "cosine";
        case Metric::l1:
            return "l1";
    }
    return "unknown";
}

// The name that SQL functions and benches take as well, where there is a shorter one.
constexpr const char* short_name(Metric metric) {
    return metric == Metric::inner_product ? "ip" : sql_name(metric);
}

// Whether all_metrics has each metric at its number, and the next number is of none: sql_name() has
// a case for every metric.
constexpr bool lists_all_metrics() {
    for (size_t i = 0; i < std::size(all_metrics); ++i)
        if (static_cast<size_t>(all_metrics[i]) != i) return false;
    return sql_name(static_cast<Metric>(std::size(all_metrics))) == std::string_view("unknown");
}
static_assert(lists_all_metrics(), "all_metrics lacks a metric, or has them in another order");

// Whether an index supports the metric. False for a value that is not a metric.
inline bool can_index(Metric metric) {
    switch (metric) {
        case Metric::l2:
        case Metric::inner_product:
        case Metric::cosine:
            return true;
        case Metric::l1:
            return false;
    }
    return false;
}

// Whether vectors get unit length before they are compared.
PGWARP_HOST_DEVICE constexpr bool normalizes(Metric metric) {
    switch (metric) {
        case Metric::cosine:
            return true;
        case Metric::l2:
        case Metric::inner_product:
        case Metric::l1:
            return false;
    }
    return false;
}

// Whether a distance is a function of the inner product and the norms.
PGWARP_HOST_DEVICE constexpr bool has_products(Metric metric) {
    switch (metric) {
        case Metric::l2:
        case Metric::inner_product:
        case Metric::cosine:
            return true;
        case Metric::l1:
            return false;
    }
    return false;
}

// Whether the squared norms are part of the distance: |x|^2 + |y|^2 - 2 <x, y>.
PGWARP_HOST_DEVICE constexpr bool has_norms(Metric metric) {
    switch (metric) {
        case Metric::l2:
        case Metric::cosine:
            return true;
        case Metric::inner_product:
        case Metric::l1:
            return false;
    }
    return false;
}

// The factor of the inner product in the distance.
PGWARP_HOST_DEVICE constexpr float product_factor(Metric metric) {
    return has_norms(metric) ? -2.0f : -1.0f;
}

}  // namespace pgwarp
