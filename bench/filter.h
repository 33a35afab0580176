// A filter: the condition that the queries of a point have in common, as a user writes it.
#pragma once

#include <cstdint>
#include <string>

namespace pgwarp::bench {

// "tenant = $2; $2 = 0..999": each query has its own value of the integer $2.
struct Filter {
    std::string condition;  // SQL, as after WHERE; empty: none
    // $2 is drawn from first..last, or is the number of the query in the run, from 0.
    bool has_parameter = false;
    bool is_query_number = false;
    int32_t first = 0;
    int32_t last = 0;
};

// Throws on a condition whose $2 has no values, and on values for no $2.
Filter parse_filter(const std::string& text);

// The condition with `parameter` in the place of $2.
std::string condition_with(const Filter& filter, const std::string& parameter);

// "WHERE (...)", with $2 as an int; "" without a condition.
std::string where_clause(const Filter& filter);

}  // namespace pgwarp::bench
