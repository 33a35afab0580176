#include "bench/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <string>

#include "bench/svg.h"
#include "bench/text.h"

namespace pgwarp::bench {
namespace {

constexpr double recall_ticks[] = {0,    0.2,  0.4,  0.6,   0.7,   0.8, 0.9,
                                   0.95, 0.98, 0.99, 0.995, 0.999, 1};
constexpr double legend_line = 20;

struct Dot {
    double recall;
    double speed;
    bool reach;
    std::string label;
};

// A system's points measured with this number of clients, in the order of recall.
std::vector<Dot> dots_of(const SystemResult& result, unsigned clients) {
    std::vector<Dot> dots;
    for (const Point& point : result.points)
        for (const Speed& speed : point.speeds)
            if (speed.clients == clients && speed.best() > 0)
                dots.push_back({point.accuracy.recall, speed.median().queries_per_second,
                                point.reach, describe(point.settings)});
    std::sort(dots.begin(), dots.end(), [](const Dot& a, const Dot& b) {
        return a.recall != b.recall ? a.recall < b.recall : a.speed > b.speed;
    });
    return dots;
}

std::string tick_label(double tick) {
    char text[32];
    std::snprintf(text, sizeof(text), "%g", tick);
    return text;
}

// Nearly a log scale of 1 - recall: indexes differ mostly between 0.9 and 1, where a linear axis
// has little room.
class RecallAxis {
  public:
    void include(double recall) {
        lowest_ = std::min(lowest_, recall);
        highest_ = std::max(highest_, recall);
    }

    // Extends the axis to a tick on either side; the two ticks differ.
    void round() {
        const double* end = std::end(recall_ticks);
        const double* above = std::lower_bound(std::begin(recall_ticks), end, highest_);
        const double* below = std::upper_bound(std::begin(recall_ticks), end, lowest_) - 1;
        below = std::min(below, end - 2);
        lowest_ = *below;
        highest_ = *std::min(std::max(above, below + 1), end - 1);
    }

    double x(double recall) const {
        auto stretched = [](double value) { return -std::log(1 - value + 0.001); };
        return panel_width * (stretched(recall) - stretched(lowest_)) /
               (stretched(highest_) - stretched(lowest_));
    }

    std::vector<Tick> ticks() const {
        std::vector<Tick> ticks;
        for (const double recall : recall_ticks)
            if (recall >= lowest_ && recall <= highest_)
                ticks.push_back({x(recall), tick_label(recall)});
        return ticks;
    }

  private:
    double lowest_ = 1;
    double highest_ = 0;
};

struct Axes {
    RecallAxis recalls;
    SpeedAxis speeds;
};

// A ring around a dot marks a setting found by --reach.
void draw_curve(std::ostream& out, const Axes& axes, const std::vector<Dot>& dots,
                const char* colour) {
    if (dots.empty()) return;
    std::vector<std::string> corners;
    for (const Dot& each : dots)
        corners.push_back(fixed(axes.recalls.x(each.recall), 1) + "," +
                          fixed(axes.speeds.y(each.speed), 1));
    out << polyline(corners, colour);
    for (const Dot& each : dots) {
        const double x = axes.recalls.x(each.recall), y = axes.speeds.y(each.speed);
        if (each.reach)
            out << "<circle cx=\"" << fixed(x, 1) << "\" cy=\"" << fixed(y, 1)
                << "\" r=\"7\" fill=\"none\" stroke=\"" << colour << "\" stroke-width=\"1.5\"/>\n";
        out << dot(x, y, colour,
                   each.label + ": recall " + fixed(each.recall, 4) + ", " +
                       short_number(each.speed) + " queries/s");
    }
}

std::set<unsigned> client_counts(const std::vector<SystemResult>& results) {
    std::set<unsigned> counts;
    for (const SystemResult& result : results)
        for (const Point& point : result.points)
            for (const Speed& speed : point.speeds)
                if (speed.best() > 0) counts.insert(speed.clients);
    return counts;
}

// The systems' names, wrapped into lines of at most `width`.
struct Legend {
    std::string text;
    size_t lines = 1;
};

Legend legend_of(const std::vector<SystemResult>& results, double width) {
    Legend legend;
    double x = left;
    for (size_t i = 0; i < results.size(); i++) {
        if (results[i].points.empty()) continue;
        const double advance = 40 + 7.5 * double(results[i].name.size());
        if (x > left && x + advance > width) {
            x = left;
            legend.lines++;
        }
        const double y = 40 + legend_line * double(legend.lines - 1);
        legend.text += "<circle cx=\"" + fixed(x + 5, 1) + "\" cy=\"" + fixed(y, 1) +
                       "\" r=\"5\" fill=\"" + colour(i) + "\"/>\n" +
                       text_at(x + 16, y + 4, "start", results[i].name);
        x += advance;
    }
    return legend;
}

}  // namespace

void print_chart(std::ostream& out, const RunInfo& info, const std::vector<SystemResult>& results) {
    const std::set<unsigned> counts = client_counts(results);
    if (counts.empty()) return;
    Axes axes;
    for (const SystemResult& result : results)
        for (const unsigned clients : counts)
            for (const Dot& each : dots_of(result, clients)) {
                axes.recalls.include(each.recall);
                axes.speeds.include(each.speed);
            }
    axes.recalls.round();
    axes.speeds.round();

    const double panels = double(counts.size());
    const double width = left + panels * panel_width + (panels - 1) * (gap + left) + right;
    const Legend legend = legend_of(results, width);
    const double panel_top = top + legend_line * double(legend.lines - 1);
    begin_svg(out, width, panel_top + panel_height + bottom, title_of(info));
    out << legend.text;
    double x = left;
    for (const unsigned clients : counts) {
        out << "<g transform=\"translate(" << x << "," << panel_top << ")\">\n";
        draw_panel(
            out, axes.recalls.ticks(), axes.speeds.ticks(), "recall@" + std::to_string(info.k),
            "queries/s, " + std::to_string(clients) + (clients == 1 ? " client" : " clients"));
        for (size_t i = 0; i < results.size(); i++)
            draw_curve(out, axes, dots_of(results[i], clients), colour(i));
        out << "</g>\n";
        x += panel_width + gap + left;
    }
    out << "</svg>\n";
}

}  // namespace pgwarp::bench
