#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "bench/chart.h"
#include "bench/svg.h"
#include "bench/text.h"

namespace pgwarp::bench {
namespace {

constexpr double legend_top = 42, legend_line = 20;
constexpr double sample_width = 26, text_start = 34;
constexpr double inset = 20;  // from the frame to the smallest and the largest share

// A line of the chart: a system with one combination of settings, or with the cheapest settings
// that --reach found for each filter.
struct Series {
    std::string system;
    std::string label;
    std::vector<const Point*> points;  // by share
    const char* colour = nullptr;
    std::string dashes;
};

std::vector<std::string> names_of(const Settings& settings) {
    std::vector<std::string> names;
    for (const auto& [name, value] : settings) names.push_back(name);
    return names;
}

// The points that `belongs` takes, by share; several of one share in the order of the run.
template <typename Belongs>
std::vector<const Point*> points_by_share(const SystemResult& system, Belongs belongs) {
    std::vector<const Point*> points;
    for (const Point& point : system.points)
        if (belongs(point)) points.push_back(&point);
    std::stable_sort(points.begin(), points.end(),
                     [](const Point* a, const Point* b) { return a->share < b->share; });
    return points;
}

// A point that was given and is also the cheapest is on both lines. Settings that were only found
// to be the cheapest have no line of their own. The cheapest of one range have the same names.
std::vector<Series> series_of(const SystemResult& system) {
    std::vector<Series> all;
    auto add = [&](const std::string& what, auto belongs) {
        all.push_back({system.name, system.name + ": " + what, points_by_share(system, belongs),
                       nullptr, ""});
    };
    std::set<Settings> given;
    std::set<std::vector<std::string>> reached;
    for (const Point& point : system.points)
        if (!point.reach && given.insert(point.settings).second)
            add(describe(point.settings),
                [&](const Point& other) { return other.settings == point.settings; });
    for (const Point& point : system.points)
        if (point.reach && reached.insert(names_of(point.settings)).second)
            add("cheapest", [&](const Point& other) {
                return other.reach && names_of(other.settings) == names_of(point.settings);
            });
    return all;
}

// A system has the same colour as in the other charts.
std::vector<Series> all_series(const std::vector<SystemResult>& results) {
    std::vector<Series> all;
    for (size_t system = 0; system < results.size(); system++) {
        size_t number = 0;
        for (Series& series : series_of(results[system])) {
            series.colour = colour(results.size() == 1 ? number : system);
            series.dashes = results.size() == 1 ? "" : dashes(number);
            all.push_back(std::move(series));
            number++;
        }
    }
    return all;
}

// Shares on a log scale; one alone is in the middle.
class ShareAxis {
  public:
    explicit ShareAxis(const std::vector<Series>& all) {
        for (const Series& series : all)
            for (const Point* point : series.points) shares_.insert(point->share);
    }

    double x(double share) const {
        const double first = *shares_.begin(), last = *shares_.rbegin();
        if (first == last) return panel_width / 2;
        return inset + (panel_width - 2 * inset) * std::log(share / first) / std::log(last / first);
    }

    std::vector<Tick> ticks() const {
        std::vector<Tick> ticks;
        for (const double share : shares_) ticks.push_back({x(share), percentage(share)});
        return ticks;
    }

  private:
    std::set<double> shares_;
};

// Recall on a linear scale that ends at 1 and begins at a tenth.
class RecallAxis {
  public:
    explicit RecallAxis(const std::vector<Series>& all) {
        for (const Series& series : all)
            for (const Point* point : series.points)
                lowest_ = std::min(lowest_, std::floor(point->accuracy.recall * 10) / 10);
    }

    double y(double recall) const { return panel_height * (1 - recall) / (1 - lowest_); }

    std::vector<Tick> ticks() const {
        const double step = lowest_ > 0.85 ? 0.02 : lowest_ > 0.65 ? 0.05 : 0.1;
        std::vector<Tick> ticks;
        for (int i = 0; 1 - i * step > lowest_ - 1e-6; i++)
            ticks.push_back({y(1 - i * step), fixed(1 - i * step, 2)});
        return ticks;
    }

  private:
    double lowest_ = 0.9;
};

struct Dot {
    double x;
    double y;
    std::string title;
};

void draw_dots(std::ostream& out, const Series& series, const std::vector<Dot>& dots) {
    if (dots.empty()) return;
    std::vector<std::string> corners;
    for (const Dot& each : dots) corners.push_back(fixed(each.x, 1) + "," + fixed(each.y, 1));
    out << polyline(corners, series.colour, series.dashes);
    for (const Dot& each : dots) out << dot(each.x, each.y, series.colour, each.title);
}

// "ours: probes=3, tenth = 3 (10%): "
std::string title_start(const Series& series, const Point& point) {
    return series.system + ": " + describe(point.settings) + ", " + point.filter + " (" +
           percentage(point.share) + "): ";
}

void draw_recalls(std::ostream& out, const RunInfo& info, const std::vector<Series>& all,
                  const ShareAxis& shares) {
    const RecallAxis recalls(all);
    draw_panel(out, shares.ticks(), recalls.ticks(), "rows that pass",
               "recall@" + std::to_string(info.k));
    for (const Series& series : all) {
        std::vector<Dot> dots;
        for (const Point* point : series.points)
            dots.push_back(
                {shares.x(point->share), recalls.y(point->accuracy.recall),
                 title_start(series, *point) + "recall " + fixed(point->accuracy.recall, 4)});
        draw_dots(out, series, dots);
    }
}

void draw_speeds(std::ostream& out, const std::vector<Series>& all, const ShareAxis& shares,
                 const SpeedAxis& speeds, unsigned clients) {
    draw_panel(out, shares.ticks(), speeds.ticks(), "rows that pass",
               "queries/s, " + std::to_string(clients) + (clients == 1 ? " client" : " clients"));
    for (const Series& series : all) {
        std::vector<Dot> dots;
        for (const Point* point : series.points)
            for (const Speed& speed : point->speeds) {
                if (speed.clients != clients || speed.best() <= 0) continue;
                const double rate = speed.median().queries_per_second;
                dots.push_back({shares.x(point->share), speeds.y(rate),
                                title_start(series, *point) + short_number(rate) + " queries/s"});
            }
        draw_dots(out, series, dots);
    }
}

void draw_legend(std::ostream& out, const std::vector<Series>& all) {
    double y = legend_top;
    for (const Series& series : all) {
        out << "<g stroke=\"" << series.colour << "\" stroke-width=\"2\"" << series.dashes << ">"
            << line(left, y, left + sample_width, y) << "</g>\n"
            << text_at(left + text_start, y + 4, "start", series.label);
        y += legend_line;
    }
}

// The points that a filter's share is known of.
std::vector<SystemResult> filtered_only(std::vector<SystemResult> results) {
    for (SystemResult& result : results)
        std::erase_if(result.points,
                      [](const Point& point) { return point.filter.empty() || point.share <= 0; });
    return results;
}

}  // namespace

void print_filters_chart(std::ostream& out, const RunInfo& info,
                         const std::vector<SystemResult>& all_results) {
    const std::vector<SystemResult> results = filtered_only(all_results);
    const std::vector<Series> all = all_series(results);
    if (all.empty()) return;
    const ShareAxis shares(all);
    std::set<unsigned> counts;
    SpeedAxis speeds;
    for (const Series& series : all)
        for (const Point* point : series.points)
            for (const Speed& speed : point->speeds) {
                if (speed.best() <= 0) continue;
                counts.insert(speed.clients);
                speeds.include(speed.median().queries_per_second);
            }
    if (!speeds.empty()) speeds.round();

    const double panels = 1 + double(counts.size());
    const double panel_top = legend_top + legend_line * double(all.size());
    begin_svg(out, left + panels * panel_width + (panels - 1) * (gap + left) + right,
              panel_top + panel_height + bottom,
              title_of(info) + ", k = " + std::to_string(info.k));
    draw_legend(out, all);
    double x = left;
    out << "<g transform=\"translate(" << x << "," << panel_top << ")\">\n";
    draw_recalls(out, info, all, shares);
    out << "</g>\n";
    for (const unsigned clients : counts) {
        x += panel_width + gap + left;
        out << "<g transform=\"translate(" << x << "," << panel_top << ")\">\n";
        draw_speeds(out, all, shares, speeds, clients);
        out << "</g>\n";
    }
    out << "</svg>\n";
}

std::vector<SystemResult> split_by_filter(const std::vector<SystemResult>& results) {
    std::vector<SystemResult> split;
    for (const SystemResult& result : results) {
        const size_t first = split.size();
        for (const Point& point : result.points) {
            const std::string name =
                result.name + (point.filter.empty() ? "" : ", " + point.filter);
            auto at = std::find_if(split.begin() + ptrdiff_t(first), split.end(),
                                   [&](const SystemResult& other) { return other.name == name; });
            if (at == split.end()) {
                at = split.emplace(split.end());
                at->name = name;
            }
            at->points.push_back(point);
        }
        if (result.points.empty()) split.push_back(result);
    }
    return split;
}

}  // namespace pgwarp::bench
