#include "bench/search.h"

#include <algorithm>
#include <iostream>
#include <latch>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <thread>

#include "bench/backend_clock.h"
#include "bench/clock.h"
#include "bench/parallel.h"
#include "bench/recall.h"
#include "bench/text.h"

namespace pgwarp::bench {
namespace {

constexpr const char* plain_query =
    "SELECT id FROM items {where} ORDER BY v {op} $1::{type} LIMIT {k}";
// Not counted: the first queries of a connection fill catalog caches, and run before the CPU
// reaches its full clock rate.
constexpr double warm_up_seconds = 0.5;
constexpr Oid int4_type = 23;

std::string query_sql(const SearchTask& task) {
    const std::string& own = task.system.query;
    const std::string sql =
        replace_all(own.empty() ? plain_query : own, "{op}", metric_operator(task.options.metric));
    return replace_all(replace_all(replace_all(sql, "{type}", task.system.type), "{k}",
                                   std::to_string(task.options.k)),
                       "{where}", where_clause(task.truth.filter));
}

// A query's parameters in binary: its vector, and its value of $2 if the filter has one.
using Parameters = std::vector<std::string>;

Parameters parameters_of(const SearchTask& task, size_t query) {
    Parameters parameters = {binary_vector(task.queries.row(query), task.system.type)};
    if (!task.truth.values.empty()) parameters.push_back(binary_int4(task.truth.values[query]));
    return parameters;
}

// One client.
class Session {
  public:
    Session(const SearchTask& task, const Settings& settings)
        : connection_(task.database.connect()), clock_(connection_), sql_(query_sql(task)) {
        // A query loads the access method's library before its settings are applied: until then,
        // PostgreSQL accepts a misspelt setting as a placeholder, and ignores it silently.
        connection_.execute_binary(sql_, parameters_of(task, 0));
        apply(connection_, settings);
        connection_.prepare("search", sql_);
    }

    void ask(const Parameters& query, std::vector<int32_t>& answer) {
        const Result result = connection_.execute_prepared("search", query);
        const int rows = PQntuples(result.get());
        answer.resize(static_cast<size_t>(rows));
        if (PQftype(result.get(), 0) != int4_type)
            throw std::runtime_error("the query must give the id first, an int\nSTATEMENT:  " +
                                     sql_);
        for (int i = 0; i < rows; i++) answer[i] = read_binary_int4(PQgetvalue(result.get(), i, 0));
    }

    // The first query's plan.
    bool uses_one_of(const std::vector<std::string>& indexes, const SearchTask& task) {
        std::vector<std::string> values;
        for (const float value : task.queries.row(0)) values.push_back(std::to_string(value));
        std::string parameters = connection_.quote_literal("[" + join(values, ",") + "]");
        if (!task.truth.values.empty()) parameters += ", " + std::to_string(task.truth.values[0]);
        const Result plan =
            connection_.execute("EXPLAIN (COSTS off) EXECUTE search(" + parameters + ")");
        for (int i = 0; i < PQntuples(plan.get()); i++) {
            const std::string line = PQgetvalue(plan.get(), i, 0);
            for (const std::string& index : indexes)
                if (line.find(" " + index) != std::string::npos) return true;
        }
        return false;
    }

    std::optional<double> cpu_seconds() const { return clock_.seconds(); }

  private:
    Connection connection_;
    BackendClock clock_;
    std::string sql_;
};

std::vector<Parameters> all_parameters(const SearchTask& task) {
    std::vector<Parameters> all;
    for (size_t query = 0; query < task.queries.rows; query++)
        all.push_back(parameters_of(task, query));
    return all;
}

// Throws on a row that no index may return. A row that fails the filter would count as a hit, as
// near as it is.
void check_row(const SearchTask& task, size_t query, int32_t row) {
    if (row < 0 || size_t(row) >= task.base.rows)
        throw std::runtime_error("got row " + std::to_string(row) + " of " +
                                 std::to_string(task.base.rows));
    if (!task.truth.passes(query, row))
        throw std::runtime_error("query " + std::to_string(query) + " got row " +
                                 std::to_string(row) + ", which does not pass \"" +
                                 task.truth.filter.condition + "\"");
}

bool has_repeats(std::vector<int32_t> rows) {
    std::sort(rows.begin(), rows.end());
    return std::adjacent_find(rows.begin(), rows.end()) != rows.end();
}

// Measurements of one client.
struct ClientLog {
    std::vector<float> latencies;  // ms, of queries that started after the warm-up
    double seconds = 0;
    std::optional<double> cpu_before;
    std::optional<double> cpu_after;
};

std::optional<double> sum(std::optional<double> left, std::optional<double> right) {
    if (!left || !right) return {};
    return *left + *right;
}

ClientLog run_client(Session& session, const std::vector<Parameters>& queries, size_t first,
                     double seconds) {
    ClientLog log;
    std::vector<int32_t> answer;
    const Clock::time_point begin = Clock::now();
    Clock::time_point counted_from{};
    for (size_t i = first;; i++) {
        const Clock::time_point asked = Clock::now();
        const bool counted = seconds_between(begin, asked) >= warm_up_seconds;
        if (counted && counted_from == Clock::time_point{}) {
            counted_from = asked;
            log.cpu_before = session.cpu_seconds();
        }
        if (counted && !log.latencies.empty() && seconds_between(counted_from, asked) >= seconds) {
            log.seconds = seconds_between(counted_from, asked);
            log.cpu_after = session.cpu_seconds();
            return log;
        }
        session.ask(queries[i % queries.size()], answer);
        if (counted)
            log.latencies.push_back(
                static_cast<float>(1000 * seconds_between(asked, Clock::now())));
    }
}

}  // namespace

Accuracy measure_accuracy(const SearchTask& task, const Settings& settings) {
    const size_t k = task.options.k;
    const unsigned clients =
        *std::max_element(task.options.clients.begin(), task.options.clients.end());
    std::vector<std::unique_ptr<Session>> sessions;
    for (unsigned i = 0; i < clients; i++)
        sessions.push_back(std::make_unique<Session>(task, settings));

    std::vector<size_t> hits(task.queries.rows);
    std::vector<char> is_short(task.queries.rows), is_repeated(task.queries.rows);
    parallel_pieces(task.queries.rows, clients, [&](unsigned client, size_t query) {
        std::vector<int32_t> answer;
        sessions[client]->ask(parameters_of(task, query), answer);
        for (const int32_t row : answer) check_row(task, query, row);
        const std::vector<int32_t>& nearest = task.truth.neighbors[query];
        hits[query] =
            count_hits(task.options.metric, task.base, task.queries.row(query), nearest, answer, k);
        is_short[query] = answer.size() < nearest.size();
        is_repeated[query] = has_repeats(answer);
    });

    Accuracy accuracy;
    size_t wanted = 0;
    for (const std::vector<int32_t>& nearest : task.truth.neighbors) wanted += nearest.size();
    accuracy.recall = double(std::accumulate(hits.begin(), hits.end(), size_t{0})) / double(wanted);
    accuracy.short_answers = std::count(is_short.begin(), is_short.end(), char{1});
    accuracy.repeated_answers = std::count(is_repeated.begin(), is_repeated.end(), char{1});
    accuracy.uses_index = sessions[0]->uses_one_of(task.database.index_names(), task);
    return accuracy;
}

Round measure_speed(const SearchTask& task, const Settings& settings, unsigned clients) {
    const std::vector<Parameters> queries = all_parameters(task);
    std::vector<ClientLog> logs(clients);
    std::latch ready(clients);
    std::exception_ptr failure;
    std::mutex failure_lock;
    auto client = [&](unsigned number) {
        bool arrived = false;
        try {
            Session session(task, settings);
            arrived = true;
            ready.arrive_and_wait();
            logs[number] = run_client(session, queries, number * queries.size() / clients,
                                      task.options.seconds);
        } catch (...) {
            if (!arrived) ready.count_down();
            const std::lock_guard guard(failure_lock);
            if (!failure) failure = std::current_exception();
        }
    };
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < clients; i++) threads.emplace_back(client, i);
    for (std::thread& thread : threads) thread.join();
    if (failure) std::rethrow_exception(failure);

    Round round;
    std::vector<float> latencies;
    std::optional<double> cpu_before = 0, cpu_after = 0;
    for (const ClientLog& log : logs) {
        cpu_before = sum(cpu_before, log.cpu_before);
        cpu_after = sum(cpu_after, log.cpu_after);
        round.queries_per_second += double(log.latencies.size()) / log.seconds;
        latencies.insert(latencies.end(), log.latencies.begin(), log.latencies.end());
    }
    round.cpu = milliseconds_each(cpu_before, cpu_after, latencies.size());
    round.p50 = percentile(latencies, 0.50);
    round.p95 = percentile(latencies, 0.95);
    round.p99 = percentile(latencies, 0.99);
    return round;
}

Point measure_point(const SearchTask& task, const Settings& settings, bool reach) {
    Point point;
    point.settings = settings;
    point.reach = reach;
    point.accuracy = measure_accuracy(task, settings);
    point.filter = task.truth.filter.condition;
    point.share = task.truth.share;
    std::cerr << task.system.name << ": " << describe(point) << " has recall "
              << fixed(point.accuracy.recall, 4) << "\n";
    return point;
}

bool find_cheapest(const SearchTask& task, const SettingsRange& range, double target,
                   Point& point) {
    auto measure = [&](size_t step) { return measure_point(task, range.at(step), true); };
    point = measure(range.steps() - 1);
    if (point.accuracy.recall < target) return false;
    // Step `enough` is known to reach the target; those below `low` are known not to.
    size_t low = 0, enough = range.steps() - 1;
    while (low < enough) {
        const size_t middle = low + (enough - low) / 2;
        const Point tried = measure(middle);
        if (tried.accuracy.recall >= target) {
            enough = middle;
            point = tried;
        } else {
            low = middle + 1;
        }
    }
    return true;
}

}  // namespace pgwarp::bench
