#include "bench/filter.h"

#include <charconv>
#include <stdexcept>

#include "bench/text.h"

namespace pgwarp::bench {
namespace {

constexpr const char* parameter = "$2";

bool is_integer(const std::string& text, int32_t& value) {
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && rest == text.data() + text.size();
}

// What follows the condition: "$2 = 0..999" or "$2 = query".
void parse_values(const std::string& text, Filter& filter) {
    const std::string hint = ": write \"$2 = 0..999\" or \"$2 = query\"";
    const size_t equals = text.find('=');
    if (equals == std::string::npos || trim(text.substr(0, equals)) != parameter)
        throw std::runtime_error("\"" + text + "\" does not say what $2 is" + hint);
    const std::string values = trim(text.substr(equals + 1));
    filter.is_query_number = values == "query";
    if (filter.is_query_number) return;
    const size_t dots = values.find("..");
    if (dots == std::string::npos || !is_integer(values.substr(0, dots), filter.first) ||
        !is_integer(values.substr(dots + 2), filter.last) || filter.last < filter.first)
        throw std::runtime_error("\"" + values + "\" is no range of integers" + hint);
}

}  // namespace

Filter parse_filter(const std::string& text) {
    Filter filter;
    const size_t end = text.find(';');
    filter.condition = trim(text.substr(0, end));
    if (filter.condition.empty()) throw std::runtime_error("a filter needs a condition");
    filter.has_parameter = filter.condition.find(parameter) != std::string::npos;
    const std::string values = end == std::string::npos ? "" : trim(text.substr(end + 1));
    if (filter.has_parameter && values.empty())
        throw std::runtime_error("the condition has $2, which needs values: write \"" +
                                 filter.condition + "; $2 = 0..999\"");
    if (!filter.has_parameter && !values.empty())
        throw std::runtime_error("the condition \"" + filter.condition + "\" has no $2");
    if (filter.has_parameter) parse_values(values, filter);
    return filter;
}

std::string condition_with(const Filter& filter, const std::string& value) {
    return replace_all(filter.condition, parameter, value);
}

std::string where_clause(const Filter& filter) {
    if (filter.condition.empty()) return "";
    // The type is stated, since it is sent in binary: a bigint column would make $2 a bigint.
    return "WHERE (" + condition_with(filter, "$2::int") + ")";
}

}  // namespace pgwarp::bench
