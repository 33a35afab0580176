#include "bench/metric.h"

#include <cmath>
#include <stdexcept>

namespace pgwarp::bench {
namespace {

struct Name {
    Metric metric;
    const char* name;
    const char* sql_operator;
    const char* operator_class;
};

constexpr Name names[] = {
    {Metric::l2, "l2", "<->", "vector_l2_ops"},
    {Metric::inner_product, "ip", "<#>", "vector_ip_ops"},
    {Metric::cosine, "cosine", "<=>", "vector_cosine_ops"},
};

const Name& name_of(Metric metric) {
    for (const Name& name : names)
        if (name.metric == metric) return name;
    throw std::logic_error("unknown metric");
}

}  // namespace

Metric parse_metric(const std::string& text) {
    for (const Name& name : names)
        if (text == name.name) return name.metric;
    throw std::runtime_error("unknown metric \"" + text + "\": it is one of l2, ip, cosine");
}

const char* metric_name(Metric metric) {
    return name_of(metric).name;
}
const char* metric_operator(Metric metric) {
    return name_of(metric).sql_operator;
}
const char* metric_operator_class(Metric metric) {
    return name_of(metric).operator_class;
}

double distance(Metric metric, std::span<const float> left, std::span<const float> right) {
    double dot = 0, squares = 0, left_norm = 0, right_norm = 0;
    for (size_t i = 0; i < left.size(); i++) {
        const double a = left[i], b = right[i];
        dot += a * b;
        squares += (a - b) * (a - b);
        left_norm += a * a;
        right_norm += b * b;
    }
    switch (metric) {
        case Metric::l2:
            return squares;
        case Metric::inner_product:
            return -dot;
        case Metric::cosine:
            return dot == 0 ? 1 : 1 - dot / std::sqrt(left_norm * right_norm);
        case Metric::l1:
            break;  // no index has it
    }
    throw std::logic_error("unknown metric");
}

}  // namespace pgwarp::bench
