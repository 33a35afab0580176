#include "bench/passing.h"

#include <algorithm>

#include "bench/text.h"

namespace pgwarp::bench {
namespace {

// Values are a list of their own in FROM, so that one statement, one scan where the condition is an
// equality, answers for all of them.
std::string passing_sql(const Truth& truth) {
    if (truth.distinct.empty())
        return "SELECT 0, items.id FROM items WHERE (" + truth.filter.condition + ")";
    std::vector<std::string> values;
    for (const int32_t value : truth.distinct) values.push_back(std::to_string(value));
    return "SELECT drawn_number::int - 1, items.id FROM items, unnest('{" + join(values, ",") +
           "}'::int[]) WITH ORDINALITY AS drawn (drawn_value, drawn_number) WHERE (" +
           condition_with(truth.filter, "drawn_value") + ")";
}

}  // namespace

std::vector<Rows> ask_passing(Connection& connection, const Truth& truth) {
    std::vector<Rows> passing(std::max<size_t>(1, truth.distinct.size()));
    connection.execute("BEGIN");
    connection.execute(
        "SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off;"
        " SET LOCAL enable_bitmapscan = off; SET LOCAL cursor_tuple_fraction = 1");
    connection.execute("DECLARE passing BINARY CURSOR FOR " + passing_sql(truth));
    for (;;) {
        const Result result = connection.execute("FETCH 100000 FROM passing");
        const int rows = PQntuples(result.get());
        if (rows == 0) break;
        for (int i = 0; i < rows; i++) {
            const auto group = size_t(read_binary_int4(PQgetvalue(result.get(), i, 0)));
            passing[group].push_back(read_binary_int4(PQgetvalue(result.get(), i, 1)));
        }
    }
    connection.execute("COMMIT");
    for (Rows& rows : passing) std::sort(rows.begin(), rows.end());
    return passing;
}

}  // namespace pgwarp::bench
