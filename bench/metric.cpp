#include "bench/metric.h"

#include <cmath>
#include <stdexcept>

namespace pgwarp::bench {
namespace {

struct Spelling {
    const char* sql_operator;
    const char* operator_class;  // behind the name of the type
};

Spelling spelling_of(Metric metric) {
    switch (metric) {
        case Metric::l2:
            return {"<->", "_l2_ops"};
        case Metric::inner_product:
            return {"<#>", "_ip_ops"};
        case Metric::cosine:
            return {"<=>", "_cosine_ops"};
        case Metric::l1:
            break;  // no index has it
    }
    throw std::logic_error("unknown metric");
}

}  // namespace

Metric parse_metric(const std::string& text) {
    std::string names;
    for (Metric metric : all_metrics) {
        if (!can_index(metric)) continue;
        if (text == metric_name(metric)) return metric;
        names += names.empty() ? "" : ", ";
        names += metric_name(metric);
    }
    throw std::runtime_error("unknown metric \"" + text + "\": it is one of " + names);
}

const char* metric_name(Metric metric) {
    return short_name(metric);
}
const char* metric_operator(Metric metric) {
    return spelling_of(metric).sql_operator;
}
std::string metric_operator_class(Metric metric, const std::string& type) {
    return type + spelling_of(metric).operator_class;
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
