// pgwarp_bench: measures vector indexes of PostgreSQL side by side. See README.md.
#include <exception>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/chart.h"
#include "bench/database.h"
#include "bench/dataset.h"
#include "bench/earlier_results.h"
#include "bench/farthest.h"
#include "bench/ground_truth.h"
#include "bench/insert.h"
#include "bench/options.h"
#include "bench/parallel.h"
#include "bench/passing.h"
#include "bench/report.h"
#include "bench/search.h"
#include "bench/text.h"

using namespace pgwarp::bench;

namespace {

// A system during a run. A system that fails keeps its error and is skipped from then on; the
// others are still measured.
class Runner {
  public:
    Runner(const Options& options, const SystemOptions& options_of_system)
        : system(options_of_system), database(options, options_of_system) {
        result.name = system.name;
    }

    const SystemOptions& system;
    Database database;
    SystemResult result;

    template <typename Step>
    void attempt(Step step) {
        if (result.error.empty()) catch_error(step);
    }

    // Also after a failure.
    void drop() {
        catch_error([this] { database.drop(); });
    }

  private:
    template <typename Step>
    void catch_error(Step step) {
        try {
            step();
        } catch (const std::exception& error) {
            std::cerr << system.name << ": " << error.what() << "\n";
            if (result.error.empty()) result.error = error.what();
        }
    }
};

// The rows to index, the queries, and spare rows for inserts. Spare rows are not in the table: some
// indexes treat duplicates differently.
struct Data {
    Dataset set;
    Vectors spare;
    std::vector<int32_t> labels;  // column "far"; empty: none
    std::vector<Truth> truths;    // one a filter; without filters, one for all rows
};

Data read_data(const Options& options) {
    Data data;
    DatasetRequest all = options.data;
    all.queries = 0;
    data.set = read_dataset(all);
    Vectors& queries = data.set.queries;
    const size_t asked = std::min(options.queries, queries.rows);
    data.spare.dims = queries.dims;
    data.spare.rows = queries.rows - asked;
    data.spare.values.assign(queries.values.begin() + ptrdiff_t(asked * queries.dims),
                             queries.values.end());
    queries.truncate(asked);
    const size_t wanted = options.inserts * options.commits.size();
    if (wanted > data.spare.rows)
        throw std::runtime_error(
            "not enough rows to insert\nDETAIL:  Inserted rows are queries that are not asked; " +
            std::to_string(data.spare.rows) + " are left and " + std::to_string(wanted) +
            " are needed.\nHINT:  Lower --inserts or --queries.");
    if (options.farthest > 0)
        data.labels = farthest_labels(options.metric, data.set.base, queries, options.farthest,
                                      default_threads());
    if (options.filters.empty())
        data.truths.push_back(plain_truth(
            ground_truth(options.metric, data.set, options.k, options.data.directory), options.k));
    return data;
}

Truth filtered_truth(const Options& options, const Filter& filter, Connection& connection,
                     const Data& data) {
    std::cerr << "computing exact neighbors among rows with " << filter.condition << "\n";
    const Vectors& queries = data.set.queries;
    Truth truth;
    truth.filter = filter;
    if (filter.has_parameter) set_values(truth, parameter_values(filter, queries.rows));
    truth.passing = ask_passing(connection, truth);
    rank_passing(truth, options.metric, data.set.base, queries, options.k, default_threads());
    return truth;
}

// The first system that got its table says which rows pass. In the others the same rows must pass:
// else the figures do not belong side by side.
void find_truths(const Options& options, std::vector<Runner>& runners, Data& data) {
    const Runner* first = nullptr;
    for (Runner& runner : runners)
        runner.attempt([&] {
            Connection connection = runner.database.connect();
            if (first == nullptr) {
                std::vector<Truth> truths;
                for (const Filter& filter : options.filters)
                    truths.push_back(filtered_truth(options, filter, connection, data));
                data.truths = std::move(truths);
                first = &runner;
                return;
            }
            for (const Truth& truth : data.truths)
                if (ask_passing(connection, truth) != truth.passing)
                    throw std::runtime_error("other rows than in system \"" + first->system.name +
                                             "\" pass the filter \"" + truth.filter.condition +
                                             "\"\nHINT:  Give all systems the same --setup.");
        });
}

RunInfo describe_run(const Options& options, const Data& data) {
    RunInfo info;
    info.data = data.set.name;
    info.rows = data.set.base.rows;
    info.dims = data.set.base.dims;
    info.queries = data.set.queries.rows;
    info.metric = metric_name(options.metric);
    info.k = options.k;
    info.recall_target = options.recall;
    info.seconds = options.seconds;
    info.repeat = options.repeat;
    Connection connection(options.connection, "postgres");
    info.server_version = connection.show("server_version");
    for (const char* name :
         {"shared_buffers", "maintenance_work_mem", "max_parallel_maintenance_workers",
          "max_wal_size", "fsync", "synchronous_commit"})
        info.server_settings.emplace_back(name, connection.show(name));
    return info;
}

SearchTask task_of(const Options& options, const Runner& runner, const Data& data,
                   const Truth& truth) {
    return {options, runner.system, runner.database, data.set.base, data.set.queries, truth};
}

const Truth& truth_of(const Data& data, const Point& point) {
    for (const Truth& truth : data.truths)
        if (truth.filter.condition == point.filter) return truth;
    throw std::logic_error("a point has a filter that the run has not");
}

// A point that is already listed is marked as reached, not measured twice.
void add_point(std::vector<Point>& points, const Point& point) {
    for (Point& other : points)
        if (other.settings == point.settings && other.filter == point.filter) {
            other.reach = true;
            return;
        }
    points.push_back(point);
}

// Finds the points of a system's curve for one filter, with recall but without speed yet. The first
// pass over the queries warms the caches, and its result is discarded.
void find_points(const Options& options, Runner& runner, const Data& data, const Truth& truth) {
    const SearchTask task = task_of(options, runner, data, truth);
    measure_accuracy(task, {});
    for (const Settings& settings : runner.system.sets)
        runner.result.points.push_back(measure_point(task, settings, false));
    for (const SettingsRange& range : runner.system.reaches) {
        Point point;
        if (find_cheapest(task, range, options.recall, point))
            add_point(runner.result.points, point);
        else
            runner.result.missed.push_back({point.filter, describe(point.settings) + " has " +
                                                              fixed(point.accuracy.recall, 4)});
    }
}

void find_all_points(const Options& options, Runner& runner, const Data& data) {
    for (const Truth& truth : data.truths) find_points(options, runner, data, truth);
    for (Point& point : runner.result.points)
        for (const unsigned clients : options.clients) point.speeds.push_back({clients, {}});
}

// Each round measures all systems in turn, so that a disturbance of the machine affects all of
// them.
void measure_speeds(const Options& options, std::vector<Runner>& runners, const Data& data) {
    for (size_t round = 0; round < options.repeat; round++)
        for (Runner& runner : runners)
            runner.attempt([&] {
                for (Point& point : runner.result.points) {
                    const SearchTask task = task_of(options, runner, data, truth_of(data, point));
                    for (Speed& speed : point.speeds) {
                        speed.rounds.push_back(measure_speed(task, point.settings, speed.clients));
                        std::cerr << runner.system.name << ": " << describe(point) << ", "
                                  << "clients=" << speed.clients << ": "
                                  << short_number(speed.rounds.back().queries_per_second)
                                  << " queries/s\n";
                    }
                }
            });
}

void insert_rows(const Options& options, Runner& runner, const Data& data) {
    if (options.inserts == 0) return;
    runner.database.forget();
    for (size_t i = 0; i < options.commits.size(); i++) {
        const size_t first = i * options.inserts;
        runner.result.inserts.push_back(measure_inserts(runner.database, data.spare, first,
                                                        options.inserts, data.set.base.rows + first,
                                                        options.commits[i]));
    }
}

template <typename Print>
void write_file(const std::string& path, Print print) {
    if (path.empty()) return;
    std::ofstream file(path);
    print(file);
    file.close();
    if (!file) throw std::runtime_error("could not write \"" + path + "\"");
}

void draw(const Options& options, const RunInfo& info, const std::vector<SystemResult>& results) {
    const std::vector<SystemResult> split = split_by_filter(results);
    write_file(options.svg_path, [&](std::ostream& out) { print_chart(out, info, split); });
    write_file(options.clients_svg_path,
               [&](std::ostream& out) { print_clients_chart(out, info, split); });
    write_file(options.filters_svg_path,
               [&](std::ostream& out) { print_filters_chart(out, info, results); });
}

int run(Options options) {
    EarlierResults earlier;
    for (const std::string& path : options.earlier_paths) earlier.read(path);
    if (options.systems.empty()) {
        draw(options, earlier.common_run(), earlier.beside({}));
        return 0;
    }
    check_dataset(options.data);
    if (!options.metric_given) options.metric = metric_of(options.data);
    const Connection server(options.connection, "postgres");  // fail now, not after reading data
    Data data = read_data(options);
    const RunInfo info = describe_run(options, data);
    earlier.check_same_data(info);

    std::vector<Runner> runners;
    for (const SystemOptions& system : options.systems) runners.emplace_back(options, system);
    const std::string data_key = fingerprint(data.set);
    for (Runner& runner : runners)
        runner.attempt([&] {
            runner.result.build = runner.database.make({data.set.base, data.labels}, data_key);
        });
    if (!options.filters.empty()) find_truths(options, runners, data);
    for (Runner& runner : runners) runner.attempt([&] { find_all_points(options, runner, data); });
    measure_speeds(options, runners, data);
    for (Runner& runner : runners) runner.attempt([&] { insert_rows(options, runner, data); });

    std::vector<SystemResult> results;
    bool failed = false;
    for (Runner& runner : runners) {
        if (!options.keep) runner.drop();
        failed |= !runner.result.error.empty();
        results.push_back(runner.result);
    }
    print_tables(std::cout, info, results);
    write_file(options.json_path, [&](std::ostream& out) { print_json(out, info, results); });
    draw(options, info, earlier.beside(results));
    return failed ? 1 : 0;
}

}  // namespace

int main(int count, char** arguments) {
    const std::vector<std::string> words(arguments + 1, arguments + count);
    if (words.empty() || words[0] == "--help" || words[0] == "-h") {
        (words.empty() ? std::cerr : std::cout) << usage;
        return words.empty() ? 2 : 0;
    }
    try {
        return run(parse_options(words));
    } catch (const std::exception& error) {
        std::cerr << "pgwarp_bench: " << error.what() << "\n";
        return 1;
    }
}
