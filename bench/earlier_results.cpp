#include "bench/earlier_results.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

#include "bench/input_file.h"
#include "bench/json_reader.h"

namespace pgwarp::bench {
namespace {

// One line of the file, as JsonObject writes it.
class Fields {
  public:
    explicit Fields(JsonReader& json) : json_(json) {
        json.expect('{');
        json.members('}', [&] {
            const std::string name = json.string();
            json.expect(':');
            const char first = json.peek();
            if (first == '"')
                texts_[name] = json.string();
            else if (first == 't' || first == 'f')
                booleans_[name] = json.boolean();
            else if (json.accept('['))
                json.members(']', [&] { json.number(); });
            else
                numbers_[name] = json.number();
        });
        kind_ = text("kind");
    }

    const std::string& kind() const { return kind_; }
    bool has(const std::string& name) const {
        return texts_.contains(name) || numbers_.contains(name) || booleans_.contains(name);
    }
    std::string text(const std::string& name) const { return get(texts_, name, "text"); }
    bool boolean(const std::string& name) const { return get(booleans_, name, "boolean"); }
    double number(const std::string& name, double lowest, double highest) const {
        const double value = get(numbers_, name, "number");
        if (!(value >= lowest && value <= highest)) fail("\"" + name + "\" is out of range");
        return value;
    }
    size_t whole(const std::string& name, double lowest, double highest = 1e15) const {
        const double value = number(name, lowest, highest);
        if (value != std::floor(value)) fail("\"" + name + "\" is no whole number");
        return static_cast<size_t>(value);
    }
    [[noreturn]] void fail(const std::string& what) const {
        json_.fail(what + " in the object that ends");
    }

  private:
    template <typename Value>
    Value get(const std::map<std::string, Value>& values, const std::string& name,
              const std::string& type) const {
        const auto found = values.find(name);
        if (found == values.end()) fail("no " + type + " \"" + name + "\"");
        return found->second;
    }

    const JsonReader& json_;
    std::map<std::string, std::string> texts_;
    std::map<std::string, double> numbers_;
    std::map<std::string, bool> booleans_;
    std::string kind_;
};

RunInfo run_of(const Fields& fields) {
    RunInfo info;
    info.data = fields.text("data");
    info.rows = fields.whole("rows", 0);
    info.dims = fields.whole("dims", 0);
    info.metric = fields.text("metric");
    info.k = fields.whole("k", 1);
    return info;
}

SystemResult& find_or_add(std::vector<SystemResult>& systems, const std::string& name) {
    for (SystemResult& system : systems)
        if (system.name == name) return system;
    systems.emplace_back().name = name;
    return systems.back();
}

Point& find_or_add(std::vector<Point>& points, const Settings& settings,
                   const std::string& filter) {
    for (Point& point : points)
        if (point.settings == settings && point.filter == filter) return point;
    Point& added = points.emplace_back();
    added.settings = settings;
    added.filter = filter;
    return added;
}

Settings settings_of(const Fields& fields) {
    const std::string text = fields.text("settings");
    if (text == describe(Settings{})) return {};
    try {
        return parse_settings(text);
    } catch (const std::exception&) {
        fields.fail("\"settings\" are none");
    }
}

void add_search(const Fields& fields, std::vector<SystemResult>& systems) {
    SystemResult& system = find_or_add(systems, fields.text("system"));
    // Files from before there were filters have none.
    const std::string filter = fields.has("filter") ? fields.text("filter") : "";
    Point& point = find_or_add(system.points, settings_of(fields), filter);
    if (!filter.empty()) point.share = fields.number("share", 0, 1);
    point.reach = fields.boolean("cheapest");
    point.accuracy.recall = fields.number("recall", 0, 1);
    Round median;
    median.queries_per_second = fields.number("queries_per_second", 0, 1e12);
    point.speeds.push_back({static_cast<unsigned>(fields.whole("clients", 1, 1e9)), {median}});
}

std::string described(const RunInfo& info) {
    return info.data + ", " + std::to_string(info.rows) + " x " + std::to_string(info.dims) + ", " +
           info.metric + ", k = " + std::to_string(info.k);
}

}  // namespace

void EarlierResults::read(const std::string& path) {
    File file{path, {}, {}};
    const std::string text = read_text(path);
    try {
        JsonReader json(text, path);
        while (!json.at_end()) {
            const Fields fields(json);
            if (fields.kind() == "run") file.runs.push_back(run_of(fields));
            if (fields.kind() == "search") add_search(fields, file.systems);
        }
        if (file.systems.empty()) json.fail("no search");
    } catch (const std::exception& error) {
        throw std::runtime_error(error.what() +
                                 std::string("\nHINT:  --from-json takes what --json wrote."));
    }
    files_.push_back(std::move(file));
}

void EarlierResults::check_same_data(const RunInfo& info) const {
    for (const File& file : files_)
        for (const RunInfo& run : file.runs)
            if (described(run) != described(info))
                throw std::runtime_error(
                    "\"" + file.path + "\" has figures on other data\nDETAIL:  It has " +
                    described(run) + "; beside it is " + described(info) + ".");
}

RunInfo EarlierResults::common_run() const {
    for (const File& file : files_)
        if (!file.runs.empty()) {
            check_same_data(file.runs.front());
            return file.runs.front();
        }
    throw std::runtime_error(
        "no file of --from-json says what it was measured on\nDETAIL:  None has an object of kind "
        "\"run\".");
}

std::vector<SystemResult> EarlierResults::beside(std::vector<SystemResult> results) const {
    for (const File& file : files_)
        for (SystemResult system : file.systems) {
            const bool taken = std::any_of(results.begin(), results.end(), [&](const auto& other) {
                return other.name == system.name;
            });
            if (taken) system.name += " (" + file.path + ")";
            results.push_back(std::move(system));
        }
    return results;
}

}  // namespace pgwarp::bench
