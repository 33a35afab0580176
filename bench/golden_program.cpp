// pgwarp_golden: what bench/golden and bench/recall_cases run against the server that they have
// started.
#include <fnmatch.h>

#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <set>
#include <stdexcept>

#include "bench/dataset.h"
#include "bench/recall_cell.h"
#include "bench/text.h"

using namespace pgwarp::bench;

namespace {

constexpr const char* usage = R"(Measures recall over the tables of test/include/recall_sets.sql.

  pgwarp_golden load DATA [--rows N] [--queries N]   a data set of pgwarp_bench, as recall.source and recall.held_out
  pgwarp_golden golden [options]                     every shape of query by every source over every state of a table
  pgwarp_golden cases [options]                      kinds of queries, conditions and shapes beside their bars

Options: --set NAME (a label)  --metric l2|cosine|ip  --queries N  --k K,...  --targets T,...  --cells GLOB,...
--repeats N  --parts N  --tsv FILE. The server is the one libpq finds.
)";

constexpr size_t most_exact = 40;     // exact searches take long, and tell little
constexpr size_t least_batch = 1000;  // queries of a batch that is worth lists in private memory
constexpr size_t most_single = 20;    // queries of a knn_search that is not worth it
constexpr size_t most_batches = 4;

struct Arguments {
    std::string command;
    std::string data;
    std::string set = "gaussian";
    pgwarp::Metric metric = pgwarp::Metric::l2;
    size_t rows = 0;
    size_t queries = 100;
    std::vector<size_t> k = {10};
    std::vector<double> targets = {0.95};
    std::vector<std::string> cells = {"*"};
    size_t repeats = 3;
    size_t parts = 8;
    std::string tsv;
};

Arguments parse(int count, char** values) {
    Arguments arguments;
    if (count < 2) throw std::runtime_error(std::string("no command\n") + usage);
    arguments.command = values[1];
    int at = 2;
    if (arguments.command == "load" && at < count) arguments.data = values[at++];
    for (; at < count; at += 2) {
        const std::string name = values[at];
        if (at + 1 >= count) throw std::runtime_error(name + " needs a value");
        const std::string value = values[at + 1];
        if (name == "--set") {
            arguments.set = value;
        } else if (name == "--metric") {
            arguments.metric = parse_metric(value);
        } else if (name == "--rows") {
            arguments.rows = std::stoul(value);
        } else if (name == "--queries") {
            arguments.queries = std::stoul(value);
        } else if (name == "--k") {
            arguments.k.clear();
            for (const std::string& k : split(value, ',')) arguments.k.push_back(std::stoul(k));
        } else if (name == "--targets") {
            arguments.targets.clear();
            for (const std::string& target : split(value, ','))
                arguments.targets.push_back(std::stod(target));
        } else if (name == "--cells") {
            arguments.cells = split(value, ',');
        } else if (name == "--repeats") {
            arguments.repeats = std::stoul(value);
        } else if (name == "--parts") {
            arguments.parts = std::stoul(value);
        } else if (name == "--tsv") {
            arguments.tsv = value;
        } else {
            throw std::runtime_error("there is no option \"" + name + "\"\n" + usage);
        }
    }
    return arguments;
}

void load(const Arguments& arguments) {
    DatasetRequest request;
    request.name = arguments.data;
    request.rows = arguments.rows;
    request.queries = arguments.queries;
    const Dataset dataset = read_dataset(request);
    Connection connection("", "");
    connection.execute("DROP TABLE IF EXISTS recall.source, recall.held_out");
    for (const auto& [table, vectors] :
         {std::pair<const char*, const Vectors&>{"recall.source", dataset.base},
          {"recall.held_out", dataset.queries}}) {
        connection.execute(std::string("CREATE TABLE ") + table + " (id int, v vector(" +
                           std::to_string(vectors.dims) + "))");
        BinaryCopy copy(connection, std::string("COPY ") + table + " FROM STDIN (FORMAT binary)");
        for (size_t i = 0; i < vectors.rows; i++)
            copy.row(std::array{binary_int4(static_cast<int32_t>(i)),
                                binary_vector(vectors.row(i), "vector")});
        copy.finish();
    }
}

std::string number(const std::optional<double>& value, int decimals) {
    return value ? fixed(*value, decimals) : "-";
}

// Lines for people on standard output, and the same with tabs in a file.
class Table {
  public:
    Table(const std::string& path, std::vector<std::pair<std::string, int>> columns)
        : columns_(std::move(columns)) {
        if (!path.empty()) {
            file_.open(path);
            if (!file_) throw std::runtime_error("cannot write \"" + path + "\"");
        }
        std::vector<std::string> names;
        for (const auto& column : columns_) names.push_back(column.first);
        add(names);
    }

    void add(const std::vector<std::string>& values) {
        std::string line;
        for (size_t i = 0; i < values.size(); i++) {
            const size_t width = size_t(columns_.at(i).second);
            const std::string space(width > values[i].size() ? width - values[i].size() : 0, ' ');
            // Names to the left, numbers to the right.
            line += (i > 0 ? " " : "") +
                    (std::isalpha(values[i][0]) && i < 4 ? values[i] + space : space + values[i]);
        }
        std::cout << line << std::endl;
        if (file_.is_open()) file_ << join(values, "\t") << std::endl;
    }

  private:
    std::vector<std::pair<std::string, int>> columns_;
    std::ofstream file_;
};

// Tables are made when a cell needs them first.
class Tables {
  public:
    Tables(Connection& connection, const Arguments& arguments, size_t rows)
        : connection_(connection), arguments_(arguments), rows_(rows) {}

    std::string named(const std::string& state, bool parts) {
        const std::string name = state + (parts ? "_parts" : "");
        if (made_.insert(name).second) make(name, state, parts);
        return name;
    }

  private:
    void make(const std::string& name, const std::string& state, bool parts) {
        connection_.execute("CALL recall.make_table('" + name + "', '" +
                            metric_operator_class(arguments_.metric, "vector") + "', '" + state +
                            "', " + std::to_string(parts ? arguments_.parts : 0) + ")");
        if (state == "pending" && !parts) {
            connection_.set("recall.pending_below", std::to_string(rows_ / 5));
            connection_.set("client_min_messages", "error");
            connection_.execute("VACUUM " + name);
            connection_.execute("RESET client_min_messages");
            connection_.execute("RESET recall.pending_below");
        }
        const Result info = connection_.execute(
            "SELECT sum(pending_rows)::float8 / sum(rows) FROM ivfpq_info('" + name + "_v')");
        const double pending = std::stod(first_value(info));
        if ((state == "pending") != (pending > 0.01 && pending < 0.5))
            throw std::runtime_error(
                "table " + name + " has a share of " + fixed(pending, 3) + " pending rows" +
                (rows_ < 10000 ? "\nHINT:  VACUUM trains an index of 10000 rows or more." : ""));
        connection_.execute("SELECT pgwarp_prewarm('" + name + "_v')");
    }

    Connection& connection_;
    const Arguments& arguments_;
    size_t rows_;
    std::set<std::string> made_;
};

bool is_chosen(const Arguments& arguments, const std::string& cell) {
    for (const std::string& glob : arguments.cells)
        if (fnmatch(glob.c_str(), cell.c_str(), 0) == 0) return true;
    return false;
}

void set_up(Connection& connection) {
    // Cells are about the index: whether the planner would take it is another question.
    for (const char* setting : {"enable_seqscan", "enable_sort", "jit"})
        connection.set(setting, "off");
    connection.execute("DROP TABLE IF EXISTS recall.authors");
    connection.execute(
        "CREATE TABLE recall.authors AS SELECT i AS id, i AS rank FROM generate_series(0, 9999) AS "
        "i");
    connection.execute("ALTER TABLE recall.authors ADD PRIMARY KEY (id)");
    connection.execute("ANALYZE recall.authors");
}

// The queries of each statement, or of each series of statements of one query. A batch has as many
// as make it one, if need be the same ones several times.
std::vector<Questions> in_statements(const std::vector<Questions>& groups, const std::string& shape,
                                     const std::string& source) {
    const bool is_batch = shape == "batch" || shape == "lateral";
    if (source != "exact" && source != "store" && !(shape == "batch" && source == "pages"))
        return groups;
    if (source == "store" && !is_batch) return groups;
    std::vector<Questions> statements;
    size_t asked = 0;
    for (const Questions& group : groups) {
        const size_t count = group.vectors.rows;
        if (source == "exact" && asked < most_exact) {
            statements.push_back(part_of(group, 0, std::min(count, most_exact)));
        } else if (source == "pages") {
            for (size_t first = 0; first < count; first += most_single)
                statements.push_back(part_of(group, first, std::min(first + most_single, count)));
        } else if (source != "exact" && statements.size() < most_batches) {
            statements.push_back(part_of(group, 0, std::max(count, least_batch)));
        }
        asked += count;
    }
    return statements;
}

std::vector<std::string> figures(const std::optional<Outcome>& outcome) {
    if (!outcome) return std::vector<std::string>(9, "-");
    return {
        fixed(outcome->recall, 4),   fixed(outcome->below, 3),       fixed(outcome->p50, 3),
        number(outcome->cpu, 3),     fixed(outcome->rows, 2),        number(outcome->lists, 1),
        number(outcome->entries, 0), number(outcome->candidates, 1), number(outcome->ranked, 1)};
}

void golden(const Arguments& arguments) {
    Connection connection("", "");
    const RecallWorld world(connection, arguments.metric);
    Tables tables(connection, arguments, world.rows().rows);
    set_up(connection);
    CellRunner runner(connection, world);
    Table table(arguments.tsv, {{"set", 12},
                                {"shape", 10},
                                {"source", 6},
                                {"state", 9},
                                {"k", 4},
                                {"target", 6},
                                {"recall", 6},
                                {"below08", 7},
                                {"p50_ms", 8},
                                {"cpu_ms", 8},
                                {"rows", 7},
                                {"lists", 7},
                                {"entries", 8},
                                {"candidates", 10},
                                {"ranked", 8}});
    const size_t deepest = *std::max_element(arguments.k.begin(), arguments.k.end());
    // 10% of the rows, the same for all queries.
    const Window tenth{"chance", 4000, 5000};
    std::map<std::string, std::vector<Questions>> asked;
    for (const std::string state :
         {"plain", "condition", "refined", "dead", "deleted", "pending"}) {
        for (const std::string shape : {"scan", "partitions", "batch", "lateral"}) {
            for (const std::string source : {"pages", "store", "mirror", "exact"}) {
                if (!is_chosen(arguments, shape + "/" + source + "/" + state)) continue;
                const std::string about =
                    state == "condition" || state == "deleted" ? state : "plain";
                std::vector<Questions>& groups = asked[about];
                if (groups.empty()) {
                    const Window window = state == "condition" ? tenth : Window{};
                    groups = {world.questions(connection, "held_out", window, arguments.queries,
                                              deepest)};
                    if (state == "deleted")
                        groups = world.without_nearest(groups[0], 1000, deepest);
                }
                const std::vector<Questions> questions = in_statements(groups, shape, source);
                const bool parts = shape == "partitions";
                for (const size_t k : arguments.k) {
                    for (const double target : arguments.targets) {
                        // An exact search has no target.
                        if (source == "exact" && target != arguments.targets[0]) continue;
                        Cell cell;
                        cell.shape = parts ? "scan" : shape;
                        cell.source = source;
                        cell.table = tables.named(state == "deleted" ? "plain" : state, parts);
                        cell.k = k;
                        cell.target = target;
                        cell.one_index = !parts;
                        cell.dead_rows = state == "dead" || state == "deleted";
                        // Searches among deleted rows take long.
                        cell.repeats =
                            source == "exact" || state == "deleted" ? 1 : arguments.repeats;
                        std::vector<std::string> line = {
                            arguments.set,
                            shape,
                            source,
                            state,
                            std::to_string(k),
                            source == "exact" ? "1" : fixed(target, 3)};
                        for (const std::string& figure : figures(runner.run(cell, questions)))
                            line.push_back(figure);
                        table.add(line);
                    }
                }
            }
        }
    }
}

// What recall must be at least, and at most where too much effort is a fault, too.
struct Bar {
    double low;   // below the target
    double high;  // above it
};
constexpr Bar both_sides = {0.01, 0.025};
constexpr Bar as_good = {0.01, 1};
constexpr Bar nearly_as_good = {0.015, 1};

class Cases {
  public:
    explicit Cases(const Arguments& arguments)
        : arguments_(arguments),
          connection_("", ""),
          world_(connection_, arguments.metric),
          tables_(connection_, arguments, world_.rows().rows),
          runner_(connection_, world_),
          deepest_(*std::max_element(arguments.k.begin(), arguments.k.end())),
          table_(arguments.tsv, {{"set", 12},
                                 {"metric", 6},
                                 {"case", 28},
                                 {"by", 14},
                                 {"k", 4},
                                 {"target", 6},
                                 {"recall", 6},
                                 {"below08", 7},
                                 {"verdict", 7},
                                 {"p50_ms", 8},
                                 {"rows", 8},
                                 {"lists", 7},
                                 {"entries", 8},
                                 {"candidates", 10},
                                 {"ranked", 8}}) {
        set_up(connection_);
    }

    void run() {
        held_out();
        kinds();
        conditions();
        dead_rows();
        shapes();
        std::cout << missed_ << " of " << measured_ << " miss their bar" << std::endl;
    }

  private:
    // Where and how a case is searched.
    struct Way {
        std::string name, shape, source;
        bool parts;
    };
    inline static const Way pages = {"pages", "scan", "pages", false};
    inline static const Way mirror = {"mirror", "scan", "mirror", false};
    inline static const Way batch = {"batch", "batch", "store", false};
    inline static const Way lateral = {"lateral", "lateral", "store", false};
    inline static const Way parts = {"partitions", "scan", "pages", true};

    void held_out() {
        for (const std::string state : {"plain", "refined"})
            for (const Way& way : {pages, mirror, batch, parts})
                measure("held_out/" + state, way, state, both_sides, [&] {
                    return world_.questions(connection_, "held_out", "", 0, arguments_.queries,
                                            deepest_);
                });
    }

    void kinds() {
        for (const std::string kind : {"between", "noise", "far", "random"}) {
            // Directions at random are what inner products are asked for; other metrics have "far".
            if (kind == "random" && arguments_.metric != pgwarp::Metric::inner_product) continue;
            for (const Way& way : {pages, mirror})
                measure(kind + "/plain", way, "plain", nearly_as_good, [&] {
                    return world_.questions(connection_, kind, "", 0, arguments_.queries, deepest_);
                });
        }
    }

    void conditions() {
        for (const std::string condition :
             {"chance", "along", "against", "category", "far_category"}) {
            const bool shares = condition.find("category") == std::string::npos;
            for (const double share :
                 shares ? std::vector{0.5, 0.1, 0.01, 0.001} : std::vector{0.0})
                for (const std::string state : {"condition", "plain"})
                    for (const Way& way : {pages, mirror})
                        measure(condition + (shares ? "-" + percentage(share) : "") +
                                    (state == "plain" ? "/filter" : "/index"),
                                way, state, nearly_as_good, [&] {
                                    return world_.questions(connection_, "held_out", condition,
                                                            share, arguments_.queries, deepest_);
                                });
        }
    }

    void dead_rows() {
        for (const Way& way : {pages, mirror, batch, lateral})
            measure("dead/updated", way, "dead", as_good, [&] {
                return world_.questions(connection_, "held_out", "", 0, arguments_.queries,
                                        deepest_);
            });
        for (const Way& way : {pages, mirror, batch, lateral})
            measure(
                "dead/deleted", way, "plain", as_good,
                [&] {
                    return world_.questions(connection_, "held_out", "", 0, arguments_.queries, 1);
                },
                1000);
    }

    void shapes() {
        for (const std::string shape :
             {"join", "semi", "in", "anti", "subquery", "window", "cursor"})
            for (const double share : {0.1, 0.01}) {
                const bool all = shape == "cursor";
                if (all && share < 0.1) continue;
                for (const Way& way : {pages, mirror})
                    measure(
                        shape + (all ? "" : "-" + percentage(share)) + "/plain",
                        {way.name, shape, way.source, false}, "plain", as_good, [&] {
                            const Window window{"chance", 0, static_cast<int32_t>(10000 * share)};
                            return world_.questions(connection_, "held_out",
                                                    all ? Window{} : window, arguments_.queries,
                                                    deepest_);
                        });
            }
    }

    void measure(const std::string& name, const Way& way, const std::string& state, Bar bar,
                 const std::function<Questions()>& ask, size_t deleted = 0) {
        if (!is_chosen(arguments_, name + "/" + way.name)) return;
        // Behind the slash is the state of the table, which makes no difference to what is asked.
        const std::string about = deleted > 0 ? name : name.substr(0, name.rfind('/'));
        if (asked_about_ != about) {
            groups_ = {ask()};
            if (deleted > 0) groups_ = world_.without_nearest(groups_[0], deleted, deepest_);
            asked_about_ = about;
        }
        const std::vector<Questions> questions = in_statements(groups_, way.shape, way.source);
        for (const size_t k : arguments_.k)
            for (const double target : arguments_.targets) {
                Cell cell;
                cell.shape = way.shape;
                cell.source = way.source;
                cell.table = tables_.named(state, way.parts);
                cell.k = k;
                cell.target = target;
                cell.one_index = !way.parts;
                cell.dead_rows = name.starts_with("dead/");
                cell.repeats = 0;
                report(name, way, cell, bar, runner_.run(cell, questions));
            }
    }

    void report(const std::string& name, const Way& way, const Cell& cell, Bar bar,
                const std::optional<Outcome>& outcome) {
        std::string verdict = "-";
        if (outcome) {
            const double rounding = 1e-9;
            verdict = outcome->recall < cell.target - bar.low - rounding    ? "LOW"
                      : outcome->recall > cell.target + bar.high + rounding ? "HIGH"
                      : bar.high < 1 && cell.k == 10 && cell.target == 0.95 && outcome->below > 0.04
                          ? "SPREAD"
                          : "ok";
            measured_++;
            missed_ += verdict != "ok";
        }
        const std::vector<std::string> all =
            figures(outcome);  // recall, below, p50, cpu, rows, lists, ...
        table_.add({arguments_.set, metric_name(arguments_.metric), name, way.name,
                    std::to_string(cell.k), fixed(cell.target, 2), all[0], all[1], verdict, all[2],
                    all[4], all[5], all[6], all[7], all[8]});
    }

    const Arguments& arguments_;
    Connection connection_;
    RecallWorld world_;
    Tables tables_;
    CellRunner runner_;
    size_t deepest_;
    Table table_;
    std::string asked_about_;
    std::vector<Questions> groups_;
    size_t measured_ = 0, missed_ = 0;
};

}  // namespace

int main(int count, char** values) {
    try {
        const Arguments arguments = parse(count, values);
        if (arguments.command == "load") {
            load(arguments);
        } else if (arguments.command == "golden") {
            golden(arguments);
        } else if (arguments.command == "cases") {
            Cases(arguments).run();
        } else {
            std::cerr << usage;
            return 2;
        }
        return 0;
    } catch (const std::exception& error) {
        std::cerr << "pgwarp_golden: " << error.what() << "\n";
        return 1;
    }
}
