#include "bench/report.h"

#include <algorithm>

#include "bench/json.h"
#include "bench/text.h"

namespace pgwarp::bench {
namespace {

// A table with columns as wide as their content: the first `left` are left-aligned, the others,
// which are numbers, right-aligned.
class Table {
  public:
    explicit Table(size_t left, std::vector<std::string> head) : left_(left) {
        rows_.push_back(std::move(head));
    }
    void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
    bool empty() const { return rows_.size() == 1; }

    void print(std::ostream& out) const {
        std::vector<size_t> widths(rows_[0].size());
        for (const auto& row : rows_)
            for (size_t i = 0; i < row.size(); i++) widths[i] = std::max(widths[i], row[i].size());
        for (const auto& row : rows_) {
            std::string line;
            for (size_t i = 0; i < row.size(); i++) {
                const std::string space(widths[i] - row[i].size(), ' ');
                line += (i > 0 ? "   " : "") + (i < left_ ? row[i] + space : space + row[i]);
            }
            out << line.substr(0, line.find_last_not_of(' ') + 1) << "\n";
            if (&row == &rows_[0]) out << std::string(line.size(), '-') << "\n";
        }
        out << "\n";
    }

  private:
    size_t left_;
    std::vector<std::vector<std::string>> rows_;
};

std::string or_dash(std::optional<double> value) {
    return value ? short_number(*value) : "-";
}

std::string megabytes(int64_t bytes) {
    return fixed(double(bytes) / (1 << 20), 1);
}

void print_builds(std::ostream& out, const std::vector<SystemResult>& results) {
    Table table(1, {"system", "load s", "build s", "table MB", "index MB", "maintenance_work_mem",
                    "parallel workers"});
    for (const SystemResult& result : results) {
        if (!result.error.empty() && result.points.empty()) continue;
        const BuildResult& build = result.build;
        table.row({result.name, fixed(build.load_seconds, 1),
                   build.build_seconds.empty() ? "-" : fixed(build.best_build(), 1),
                   megabytes(build.table_bytes), megabytes(build.index_bytes),
                   build.maintenance_work_mem, build.parallel_workers});
    }
    if (!table.empty()) table.print(out);
}

bool has_filters(const std::vector<SystemResult>& results) {
    for (const SystemResult& result : results)
        for (const Point& point : result.points)
            if (!point.filter.empty()) return true;
    return false;
}

void print_searches(std::ostream& out, const RunInfo& info,
                    const std::vector<SystemResult>& results) {
    const bool filtered = has_filters(results);
    std::vector<std::string> head = {"system", "settings"};
    if (filtered) head.insert(head.end(), {"filter", "passes"});
    head.insert(head.end(), {"recall@" + std::to_string(info.k), "clients", "queries/s", "best",
                             "p50 ms", "p95 ms", "p99 ms", "cpu ms"});
    Table table(filtered ? 3 : 2, head);
    for (const SystemResult& result : results)
        for (const Point& point : result.points)
            for (const Speed& speed : point.speeds) {
                const Round round = speed.median();
                std::vector<std::string> row = {
                    result.name, describe(point.settings) + (point.reach ? "  (cheapest)" : "")};
                if (filtered) row.insert(row.end(), {point.filter, percentage(point.share)});
                row.insert(row.end(),
                           {fixed(point.accuracy.recall, 4), std::to_string(speed.clients),
                            short_number(round.queries_per_second), short_number(speed.best()),
                            short_number(round.p50), short_number(round.p95),
                            short_number(round.p99), or_dash(round.cpu)});
                table.row(std::move(row));
            }
    if (!table.empty()) table.print(out);
}

void print_inserts(std::ostream& out, const std::vector<SystemResult>& results) {
    Table table(
        2, {"system", "synchronous_commit", "rows", "inserts/s", "p50 ms", "p99 ms", "cpu ms"});
    for (const SystemResult& result : results)
        for (const InsertResult& insert : result.inserts)
            table.row({result.name, insert.commit, std::to_string(insert.rows),
                       short_number(insert.rows_per_second), short_number(insert.p50),
                       short_number(insert.p99), or_dash(insert.cpu)});
    if (!table.empty()) table.print(out);
}

std::string search_json(const std::string& system, const Point& point, const Speed& speed) {
    const Round round = speed.median();
    std::vector<double> rates;
    for (const Round& each : speed.rounds) rates.push_back(each.queries_per_second);
    JsonObject search("search");
    search.text("system", system).text("settings", describe(point.settings));
    if (!point.filter.empty()) search.text("filter", point.filter).number("share", point.share);
    search.boolean("cheapest", point.reach).number("recall", point.accuracy.recall);
    search.boolean("uses_index", point.accuracy.uses_index);
    search.number("short_answers", point.accuracy.short_answers);
    search.number("repeated_answers", point.accuracy.repeated_answers);
    search.number("clients", speed.clients);
    search.number("queries_per_second", round.queries_per_second);
    search.numbers("rounds", rates).number("p50_ms", round.p50);
    search.number("p95_ms", round.p95).number("p99_ms", round.p99);
    if (round.cpu) search.number("cpu_ms", *round.cpu);
    return search.finish();
}

// Missed recall targets, plans without the index, short or repeated answers, and errors.
void print_warnings(std::ostream& out, const RunInfo& info,
                    const std::vector<SystemResult>& results) {
    for (const SystemResult& result : results) {
        for (const Missed& missed : result.missed)
            out << result.name << ": " << (missed.filter.empty() ? "" : missed.filter + ": ")
                << "no setting reaches recall " << info.recall_target << ": " << missed.best
                << "\n";
        for (const Point& point : result.points) {
            const std::string where = result.name + ": " + describe(point) + ": ";
            const Accuracy& accuracy = point.accuracy;
            if (!accuracy.uses_index && result.build.index_bytes > 0)
                out << where << "the plan does not use the index\n";
            if (accuracy.short_answers > 0)
                out << where << accuracy.short_answers << " queries got fewer than " << info.k
                    << " rows\n";
            if (accuracy.repeated_answers > 0)
                out << where << accuracy.repeated_answers << " queries got a row twice\n";
        }
        if (!result.error.empty()) out << result.name << ": failed: " << result.error << "\n";
    }
}

}  // namespace

void print_tables(std::ostream& out, const RunInfo& info,
                  const std::vector<SystemResult>& results) {
    out << "\n"
        << info.data << ": " << info.rows << " x " << info.dims << ", " << info.metric
        << ", k = " << info.k << ", " << info.queries << " queries\n"
        << "PostgreSQL " << info.server_version << ": " << describe(info.server_settings) << "\n"
        << "queries/s and latencies: median of " << info.repeat << " x " << info.seconds
        << " s, \"best\" the fastest of them; builds: the fastest\n\n";
    print_builds(out, results);
    print_searches(out, info, results);
    print_inserts(out, results);
    print_warnings(out, info, results);
}

void print_json(std::ostream& out, const RunInfo& info, const std::vector<SystemResult>& results) {
    JsonObject run("run");
    run.text("data", info.data).number("rows", info.rows).number("dims", info.dims);
    run.number("queries", info.queries).text("metric", info.metric).number("k", info.k);
    run.number("recall_target", info.recall_target).number("seconds", info.seconds);
    run.number("repeat", info.repeat).text("server_version", info.server_version);
    for (const auto& [name, value] : info.server_settings) run.text(name, value);
    out << run.finish() << "\n";

    for (const SystemResult& result : results) {
        const BuildResult& build = result.build;
        JsonObject object("build");
        object.text("system", result.name).number("load_seconds", build.load_seconds);
        object.numbers("build_seconds", build.build_seconds);
        object.number("table_bytes", build.table_bytes).number("index_bytes", build.index_bytes);
        object.text("maintenance_work_mem", build.maintenance_work_mem);
        object.text("max_parallel_maintenance_workers", build.parallel_workers);
        if (!result.error.empty()) object.text("error", result.error);
        out << object.finish() << "\n";

        for (const Point& point : result.points)
            for (const Speed& speed : point.speeds)
                out << search_json(result.name, point, speed) << "\n";
        for (const Missed& missed : result.missed) {
            JsonObject unreached("unreached");
            unreached.text("system", result.name);
            if (!missed.filter.empty()) unreached.text("filter", missed.filter);
            out << unreached.text("best", missed.best).finish() << "\n";
        }
        for (const InsertResult& insert : result.inserts) {
            JsonObject line("insert");
            line.text("system", result.name).text("synchronous_commit", insert.commit);
            line.number("rows", insert.rows).number("rows_per_second", insert.rows_per_second);
            line.number("p50_ms", insert.p50).number("p99_ms", insert.p99);
            if (insert.cpu) line.number("cpu_ms", *insert.cpu);
            out << line.finish() << "\n";
        }
    }
}

}  // namespace pgwarp::bench
