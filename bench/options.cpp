#include "bench/options.h"

#include <charconv>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>

#include "bench/text.h"

namespace pgwarp::bench {

const char* const usage = R"(Measures vector indexes of PostgreSQL side by side.

  pgwarp_bench --data NAME [options] --system NAME [its options] [--system NAME ...]
  pgwarp_bench --from-json FILE [--from-json FILE ...]
               [--svg FILE] [--svg-clients FILE] [--svg-filters FILE]

The run:
  --config FILE       read options from a file: one a line, without the dashes; # begins a comment
  --connect STRING    libpq connection string; else the usual environment (PGHOST, PGPORT ...)
  --data NAME         fashion-mnist, glove, PREFIX for PREFIX_base.fvecs and PREFIX_query.fvecs (also
                      .bvecs, .fbin, .f16bin, .u8bin, .i8bin; .xz, .gz), a directory of base.fbin and
                      query.fbin, or NAME.hdf5 of ann-benchmarks
  --data-dir DIR      where names are looked for and exact results are kept (build/data)
  --metric M          l2, ip or cosine; by default what an hdf5 file says, and l2 for other data
  --rows N            first N rows only
  --queries N         first N queries (1000)
  --k K               neighbors to ask for (10)
  --clients LIST      numbers of clients, such as 1,2,8 (1)
  --seconds S         length of one measurement (5)
  --repeat N          measurements of each point, of which the median is reported (3)
  --builds N          times to build each index, of which the fastest is reported (1)
  --recall R          what --reach aims at (0.95)
  --filter FILTER     a condition for the queries, "tenth = 3", on columns that --setup adds; each
                      point is measured with each filter; may be repeated. An integer $2 is drawn
                      for each query, "tenant = $2; $2 = 0..999", or the query's own number,
                      "far = $2; $2 = query"
  --farthest SHARE    add a column far to the table: for a row among the farthest SHARE (0.01) of
                      all rows from a query, that query's number; else -1
  --inserts N         at the end, insert N rows one a transaction (0)
  --commit LIST       values of synchronous_commit to insert under, such as off,on (off)
  --json FILE         results, one JSON object a line
  --svg FILE          recall against queries/s as a picture
  --svg-clients FILE  queries/s against the number of clients as a picture
  --svg-filters FILE  recall and queries/s against the share of rows that pass as a picture
  --from-json FILE    draw the results of an earlier run, written by --json, too; may be repeated;
                      without --data, draw those alone and measure nothing
  --keep              leave the databases, and use those an earlier run with --keep left

A system (what stands before the first --system holds for all):
  --system NAME       begins one; it gets a database of its own, bench_NAME
  --extension NAME    what to create (pgwarp)
  --type TYPE         of the column: vector, which is the default, or halfvec
  --setup SQL         to run after CREATE TABLE items (id int, v TYPE(d)); may be repeated
  --primary-key       make id the primary key, after loading
  --build-set LIST    settings for the build: "maintenance_work_mem=1GB; name=value"
  --index SQL         CREATE INDEX ON items USING ...; {ops} becomes vector_l2_ops or its like
  --query SQL         default: SELECT id FROM items {where} ORDER BY v {op} $1::{type} LIMIT {k}
  --set LIST          a point of the curve, "hnsw.ef_search=40"; a list of numbers, as in
                      "hnsw.ef_search=20,40,80", makes several; may be repeated
  --reach RANGE       find the smallest value that reaches the recall: "hnsw.ef_search=10..400"
)";

namespace {

template <typename Number>
Number parse_number(const std::string& text) {
    Number value = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || rest != text.data() + text.size() || value < 0)
        throw std::runtime_error("\"" + text + "\" is not a number");
    return value;
}

template <typename Number>
Number parse_positive(const std::string& text) {
    const Number value = parse_number<Number>(text);
    if (value <= 0) throw std::runtime_error("it must be more than zero");
    return value;
}

// An option applies either to the whole run or to the last system named. Options of the second kind
// before the first system become the defaults of all systems.
class Parser {
  public:
    Parser();

    void arguments(const std::vector<std::string>& words);
    Options finish();

  private:
    struct Option {
        bool takes_value;
        std::function<void(const std::string&)> store;
    };

    SystemOptions& system() {
        return options_.systems.empty() ? pattern_ : options_.systems.back();
    }
    void config_file(const std::string& path);
    void store(const std::string& name, const std::string& value);
    void begin_system(const std::string& name);
    void add_filter(const std::string& text);
    void check_filters() const;

    std::map<std::string, Option> known_;
    Options options_;
    SystemOptions pattern_;
};

Parser::Parser() {
    auto value = [this](const char* name, std::function<void(const std::string&)> store) {
        known_[name] = {true, std::move(store)};
    };
    auto flag = [this](const char* name, std::function<void()> store) {
        known_[name] = {false, [store](const std::string&) { store(); }};
    };
    Options& run = options_;
    value("config", [this](const std::string& v) { config_file(v); });
    value("connect", [&run](const std::string& v) { run.connection = v; });
    value("data", [&run](const std::string& v) { run.data.name = v; });
    value("data-dir", [&run](const std::string& v) { run.data.directory = v; });
    value("metric", [&run](const std::string& v) {
        run.metric = parse_metric(v);
        run.metric_given = true;
    });
    value("rows", [&run](const std::string& v) { run.data.rows = parse_positive<size_t>(v); });
    value("queries", [&run](const std::string& v) { run.queries = parse_positive<size_t>(v); });
    value("k", [&run](const std::string& v) { run.k = parse_positive<size_t>(v); });
    value("clients", [&run](const std::string& v) {
        run.clients.clear();
        for (const std::string& part : split(v, ','))
            run.clients.push_back(parse_positive<unsigned>(part));
    });
    value("seconds", [&run](const std::string& v) { run.seconds = parse_positive<double>(v); });
    value("repeat", [&run](const std::string& v) { run.repeat = parse_positive<size_t>(v); });
    value("builds", [&run](const std::string& v) { run.builds = parse_positive<size_t>(v); });
    value("recall", [&run](const std::string& v) { run.recall = parse_positive<double>(v); });
    value("inserts", [&run](const std::string& v) { run.inserts = parse_number<size_t>(v); });
    value("commit", [&run](const std::string& v) { run.commits = split(v, ','); });
    value("json", [&run](const std::string& v) { run.json_path = v; });
    value("svg", [&run](const std::string& v) { run.svg_path = v; });
    value("svg-clients", [&run](const std::string& v) { run.clients_svg_path = v; });
    value("svg-filters", [&run](const std::string& v) { run.filters_svg_path = v; });
    value("farthest", [&run](const std::string& v) {
        run.farthest = parse_positive<double>(v);
        if (run.farthest > 1) throw std::runtime_error("it is a share, of at most 1");
    });
    value("filter", [this](const std::string& v) { add_filter(v); });
    value("from-json", [&run](const std::string& v) { run.earlier_paths.push_back(v); });
    flag("keep", [&run] { run.keep = true; });

    value("system", [this](const std::string& v) { begin_system(v); });
    value("type", [this](const std::string& v) {
        if (v != "vector" && v != "halfvec")
            throw std::runtime_error("unknown type \"" + v + "\": it is vector or halfvec");
        system().type = v;
    });
    value("extension", [this](const std::string& v) { system().extension = v; });
    value("setup", [this](const std::string& v) { system().setup.push_back(v); });
    flag("primary-key", [this] { system().primary_key = true; });
    value("build-set",
          [this](const std::string& v) { system().build_settings = parse_settings(v); });
    value("index", [this](const std::string& v) { system().index = v; });
    value("query", [this](const std::string& v) { system().query = v; });
    value("set", [this](const std::string& v) {
        for (Settings& settings : parse_settings_list(v))
            system().sets.push_back(std::move(settings));
    });
    value("reach", [this](const std::string& v) { system().reaches.emplace_back(v); });
}

void Parser::begin_system(const std::string& name) {
    if (name.empty()) throw std::runtime_error("a system needs a name");
    options_.systems.push_back(pattern_);
    options_.systems.back().name = name;
}

void Parser::add_filter(const std::string& text) {
    const Filter filter = parse_filter(text);
    for (const Filter& other : options_.filters)
        if (other.condition == filter.condition)
            throw std::runtime_error("\"" + filter.condition + "\" is there twice");
    options_.filters.push_back(filter);
}

void Parser::check_filters() const {
    if (options_.filters.empty() && options_.earlier_paths.empty() &&
        !options_.filters_svg_path.empty())
        throw std::runtime_error("option svg-filters needs --filter");
    for (const SystemOptions& system : options_.systems)
        if (!options_.filters.empty() && !system.query.empty() &&
            system.query.find("{where}") == std::string::npos)
            throw std::runtime_error("the query of system \"" + system.name +
                                     "\" has no {where}, which --filter needs");
}

void Parser::store(const std::string& name, const std::string& value) {
    try {
        known_.at(name).store(value);
    } catch (const std::exception& error) {
        throw std::runtime_error("option " + name + ": " + error.what());
    }
}

void Parser::arguments(const std::vector<std::string>& words) {
    for (size_t i = 0; i < words.size(); i++) {
        const std::string& word = words[i];
        const size_t equals = word.find('=');
        const bool joined = word.starts_with("--") && equals != std::string::npos;
        const std::string name = word.starts_with("--") ? word.substr(2, equals - 2) : "";
        const auto option = known_.find(name);
        if (option == known_.end())
            throw std::runtime_error("unknown option \"" + word + "\"; --help shows what there is");
        if (!option->second.takes_value) {
            store(name, "");
        } else if (joined) {
            store(name, word.substr(equals + 1));
        } else if (i + 1 < words.size()) {
            store(name, words[++i]);
        } else {
            throw std::runtime_error("option " + name + " needs a value");
        }
    }
}

void Parser::config_file(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw std::runtime_error("could not read \"" + path + "\"");
    std::string line;
    for (size_t number = 1; std::getline(file, line); number++) {
        line = trim(line);
        if (line.empty() || line.front() == '#') continue;
        const size_t space = line.find_first_of(" \t");
        const std::string name = line.substr(0, space);
        const std::string value = space == std::string::npos ? "" : trim(line.substr(space));
        const auto option = known_.find(name);
        const std::string place = path + ":" + std::to_string(number) + ": ";
        if (option == known_.end())
            throw std::runtime_error(place + "unknown option \"" + name + "\"");
        if (option->second.takes_value == value.empty())
            throw std::runtime_error(place + name +
                                     (value.empty() ? " needs a value" : " takes no value"));
        store(name, value);
    }
}

Options Parser::finish() {
    const bool draws = !options_.svg_path.empty() || !options_.clients_svg_path.empty() ||
                       !options_.filters_svg_path.empty();
    if (!options_.earlier_paths.empty() && !draws)
        throw std::runtime_error(
            "option from-json needs --svg, --svg-clients or --svg-filters to draw into");
    const bool measures = !options_.data.name.empty() || !options_.systems.empty();
    if (!options_.earlier_paths.empty() && !measures) return std::move(options_);
    if (options_.data.name.empty())
        throw std::runtime_error("which data set? Try --data fashion-mnist, or --help");
    if (options_.systems.empty()) begin_system(pattern_.extension);
    check_filters();
    std::set<std::string> names;
    for (SystemOptions& system : options_.systems) {
        if (!names.insert(system.name).second)
            throw std::runtime_error("two systems are named \"" + system.name + "\"");
        if (system.sets.empty() && system.reaches.empty()) system.sets.push_back({});
    }
    return std::move(options_);
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments) {
    Parser parser;
    parser.arguments(arguments);
    return parser.finish();
}

}  // namespace pgwarp::bench
