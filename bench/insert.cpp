#include "bench/insert.h"

#include "bench/backend_clock.h"
#include "bench/clock.h"

namespace pgwarp::bench {

InsertResult measure_inserts(const Database& database, const Vectors& rows, size_t first,
                             size_t count, size_t first_id, const std::string& commit) {
    Connection connection = database.connect();
    connection.set("synchronous_commit", commit);
    connection.prepare("add",
                       "INSERT INTO items (id, v) VALUES ($1::int, $2::" + database.type() + ")");
    std::vector<float> latencies;
    const BackendClock clock(connection);
    const std::optional<double> cpu_before = clock.seconds();
    const Stopwatch whole;
    for (size_t i = 0; i < count; i++) {
        const std::string values[] = {binary_int4(static_cast<int32_t>(first_id + i)),
                                      binary_vector(rows.row(first + i), database.type())};
        const Stopwatch one;
        connection.execute_prepared("add", values);
        latencies.push_back(static_cast<float>(1000 * one.seconds()));
    }
    InsertResult result{commit, count, double(count) / whole.seconds(), 0, 0, {}};
    result.cpu = milliseconds_each(cpu_before, clock.seconds(), count);
    result.p50 = percentile(latencies, 0.50);
    result.p99 = percentile(latencies, 0.99);
    return result;
}

}  // namespace pgwarp::bench
