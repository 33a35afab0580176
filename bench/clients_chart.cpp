#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "bench/chart.h"
#include "bench/svg.h"
#include "bench/text.h"

namespace pgwarp::bench {
namespace {

constexpr double panel_top = 40;      // below the title; there is no legend
constexpr double inset = 20;          // from the frame to the first and the last number of clients
constexpr double label_spacing = 17;  // between labels of lines, which are beside the panel
constexpr double sample_start = 14, sample_end = 36, text_start = 42;  // right of the frame
constexpr double letter = 7.5;                                         // approximate letter width

struct Dot {
    unsigned clients;
    double speed;
};

// A line of the chart: one system with one combination of settings.
struct Series {
    std::string label;
    std::vector<Dot> dots;  // by clients
    const char* colour;
    std::string dashes;  // an SVG attribute; empty for a solid line
};

std::vector<Dot> dots_of(const Point& point) {
    std::vector<Dot> dots;
    for (const Speed& speed : point.speeds)
        if (speed.best() > 0) dots.push_back({speed.clients, speed.median().queries_per_second});
    std::stable_sort(dots.begin(), dots.end(),
                     [](const Dot& a, const Dot& b) { return a.clients < b.clients; });
    return dots;
}

// A system has the same colour as in the other chart, and its settings differ by dashes. With a
// single system, settings differ by colour.
std::vector<Series> all_series(const std::vector<SystemResult>& results) {
    std::vector<Series> all;
    for (size_t system = 0; system < results.size(); system++) {
        size_t number = 0;
        for (const Point& point : results[system].points) {
            const std::vector<Dot> dots = dots_of(point);
            if (dots.empty()) continue;
            const std::string label = results[system].name + ": " + describe(point.settings) +
                                      ", recall " + fixed(point.accuracy.recall, 4);
            all.push_back({label, dots, colour(results.size() == 1 ? number : system),
                           results.size() == 1 ? "" : dashes(number)});
            number++;
        }
    }
    return all;
}

// Numbers of clients on a log scale; one alone is in the middle.
class ClientsAxis {
  public:
    explicit ClientsAxis(const std::vector<Series>& all) {
        for (const Series& series : all)
            for (const Dot& each : series.dots) counts_.insert(each.clients);
    }

    double x(unsigned clients) const {
        const double first = *counts_.begin(), last = *counts_.rbegin();
        if (first == last) return panel_width / 2;
        return inset +
               (panel_width - 2 * inset) * std::log2(clients / first) / std::log2(last / first);
    }

    std::vector<Tick> ticks() const {
        std::vector<Tick> ticks;
        for (const unsigned clients : counts_)
            ticks.push_back({x(clients), std::to_string(clients)});
        return ticks;
    }

  private:
    std::set<unsigned> counts_;
};

// The y positions of the labels: each beside the end of its line, or as near as other labels allow.
// Many labels may need more height than the panel has.
std::vector<double> label_places(const std::vector<Series>& all, const SpeedAxis& speeds) {
    auto end_of = [&](size_t i) { return speeds.y(all[i].dots.back().speed); };
    std::vector<size_t> order(all.size());
    for (size_t i = 0; i < order.size(); i++) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return end_of(a) < end_of(b); });
    std::vector<double> places(all.size());
    double lowest = 0;
    for (const size_t i : order) {
        places[i] = std::max(end_of(i), lowest);
        lowest = places[i] + label_spacing;
    }
    double highest = std::max(panel_height, label_spacing * double(all.size() - 1));
    for (size_t i = order.size(); i-- > 0; highest = places[order[i]] - label_spacing)
        places[order[i]] = std::min(places[order[i]], highest);
    return places;
}

void draw_series(std::ostream& out, const Series& series, const ClientsAxis& clients,
                 const SpeedAxis& speeds) {
    std::vector<std::string> corners;
    for (const Dot& each : series.dots)
        corners.push_back(fixed(clients.x(each.clients), 1) + "," + fixed(speeds.y(each.speed), 1));
    out << polyline(corners, series.colour, series.dashes);
    for (const Dot& each : series.dots)
        out << dot(clients.x(each.clients), speeds.y(each.speed), series.colour,
                   series.label + ", " + std::to_string(each.clients) +
                       (each.clients == 1 ? " client: " : " clients: ") + short_number(each.speed) +
                       " queries/s");
}

// Draws a label, a sample of its line, and a thin connection to the line's last dot.
void draw_label(std::ostream& out, const Series& series, double x, double y, double place) {
    out << "<g stroke=\"" << series.colour << "\" stroke-width=\"0.7\" opacity=\"0.6\">"
        << line(x, y, panel_width + sample_start, place) << "</g>\n"
        << "<g stroke=\"" << series.colour << "\" stroke-width=\"2\"" << series.dashes << ">"
        << line(panel_width + sample_start, place, panel_width + sample_end, place) << "</g>\n"
        << text_at(panel_width + text_start, place + 4, "start", series.label);
}

}  // namespace

void print_clients_chart(std::ostream& out, const RunInfo& info,
                         const std::vector<SystemResult>& results) {
    const std::vector<Series> all = all_series(results);
    if (all.empty()) return;
    const ClientsAxis clients(all);
    SpeedAxis speeds;
    size_t longest = 0;
    for (const Series& series : all) {
        for (const Dot& each : series.dots) speeds.include(each.speed);
        longest = std::max(longest, series.label.size());
    }
    speeds.round();

    const std::vector<double> places = label_places(all, speeds);
    const double last_label = *std::max_element(places.begin(), places.end());
    begin_svg(out, left + panel_width + text_start + letter * double(longest) + right,
              panel_top + std::max(panel_height + bottom, last_label + right),
              title_of(info) + ", k = " + std::to_string(info.k));
    out << "<g transform=\"translate(" << left << "," << panel_top << ")\">\n";
    draw_panel(out, clients.ticks(), speeds.ticks(), "clients", "queries/s");
    for (size_t i = 0; i < all.size(); i++) {
        const Dot& end = all[i].dots.back();
        draw_label(out, all[i], clients.x(end.clients), speeds.y(end.speed), places[i]);
    }
    for (const Series& series : all) draw_series(out, series, clients, speeds);
    out << "</g>\n</svg>\n";
}

}  // namespace pgwarp::bench
