#include "bench/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "bench/text.h"

namespace pgwarp::bench {
namespace {

// Colours that people with colour blindness can tell apart (Okabe and Ito), darkest first.
constexpr const char* colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                   "#e69f00", "#56b4e9", "#000000"};
constexpr double recall_ticks[] = {0,    0.2,  0.4,  0.6,   0.7,   0.8, 0.9,
                                   0.95, 0.98, 0.99, 0.995, 0.999, 1};
constexpr double panel_width = 460, panel_height = 320;
constexpr double left = 70, top = 64, gap = 40, bottom = 52, right = 24;

struct Dot {
    double recall;
    double speed;
    bool reach;
    std::string label;
};

// A system's dots at a number of clients, by recall.
std::vector<Dot> dots_of(const SystemResult& result, unsigned clients) {
    std::vector<Dot> dots;
    for (const Point& point : result.points)
        for (const Speed& speed : point.speeds)
            if (speed.clients == clients)
                dots.push_back({point.accuracy.recall, speed.median().queries_per_second,
                                point.reach, describe(point.settings)});
    std::sort(dots.begin(), dots.end(), [](const Dot& a, const Dot& b) {
        return a.recall != b.recall ? a.recall < b.recall : a.speed > b.speed;
    });
    return dots;
}

std::string escaped(std::string text) {
    text = replace_all(text, "&", "&amp;");
    text = replace_all(text, "<", "&lt;");
    return replace_all(text, ">", "&gt;");
}

std::string tick_label(double tick) {
    char text[32];
    std::snprintf(text, sizeof(text), "%g", tick);
    return text;
}

// Speed is on a log scale. So is what recall lacks of 1, nearly: most of what tells indexes apart
// lies between 0.9 and 1, and a linear axis has little room there.
struct Axes {
    double lowest_recall = 1;
    double highest_recall = 0;
    double lowest_speed = INFINITY;
    double highest_speed = 0;

    void include(const Dot& dot) {
        lowest_recall = std::min(lowest_recall, dot.recall);
        highest_recall = std::max(highest_recall, dot.recall);
        lowest_speed = std::min(lowest_speed, dot.speed);
        highest_speed = std::max(highest_speed, dot.speed);
    }

    // Outwards to a tick of the recall on either side and a tenth of a decade of speed.
    void round() {
        const double* end = std::end(recall_ticks);
        const double* above = std::lower_bound(std::begin(recall_ticks), end, highest_recall);
        const double* below = std::upper_bound(std::begin(recall_ticks), end, lowest_recall) - 1;
        highest_recall = *std::min(std::max(above, std::begin(recall_ticks) + 1), end - 1);
        lowest_recall = *std::min(below, end - 2);
        lowest_speed = std::pow(10, std::floor(std::log10(lowest_speed) * 10 - 0.5) / 10);
        highest_speed = std::pow(10, std::ceil(std::log10(highest_speed) * 10 + 0.5) / 10);
    }

    double x(double recall) const {
        auto stretched = [](double value) { return -std::log(1 - value + 0.001); };
        return panel_width * (stretched(recall) - stretched(lowest_recall)) /
               (stretched(highest_recall) - stretched(lowest_recall));
    }
    double y(double speed) const {
        return panel_height *
               (1 - std::log(speed / lowest_speed) / std::log(highest_speed / lowest_speed));
    }
};

std::string text_at(double x, double y, const std::string& anchor, const std::string& text) {
    return "<text x=\"" + fixed(x, 1) + "\" y=\"" + fixed(y, 1) + "\" text-anchor=\"" + anchor +
           "\">" + escaped(text) + "</text>\n";
}

std::string line(double x1, double y1, double x2, double y2) {
    return "<line x1=\"" + fixed(x1, 1) + "\" y1=\"" + fixed(y1, 1) + "\" x2=\"" + fixed(x2, 1) +
           "\" y2=\"" + fixed(y2, 1) + "\"/>\n";
}

void draw_grid(std::ostream& out, const Axes& axes) {
    std::string lines, labels;
    double free_from = -panel_width;  // labels on the x axis must not run into each other
    for (const double recall : recall_ticks) {
        if (recall < axes.lowest_recall || recall > axes.highest_recall) continue;
        const double x = axes.x(recall);
        lines += line(x, 0, x, panel_height);
        if (x < free_from) continue;
        labels += text_at(x, panel_height + 18, "middle", tick_label(recall));
        free_from = x + 36;
    }
    for (double decade = 1e-3; decade < 1e9; decade *= 10)
        for (const double digit : {1.0, 2.0, 5.0}) {
            const double speed = digit * decade;
            if (speed < axes.lowest_speed || speed > axes.highest_speed) continue;
            lines += line(0, axes.y(speed), panel_width, axes.y(speed));
            labels += text_at(-8, axes.y(speed) + 4, "end",
                              speed < 1 ? fixed(speed, 3) : fixed(speed, 0));
        }
    out << "<g stroke=\"#dddddd\">\n"
        << lines << "</g>\n<g fill=\"#444444\">\n"
        << labels << "</g>\n";
    out << "<rect width=\"" << panel_width << "\" height=\"" << panel_height
        << "\" fill=\"none\" stroke=\"#888888\"/>\n";
}

// A ring around a dot is a setting found by --reach.
void draw_curve(std::ostream& out, const Axes& axes, const std::vector<Dot>& dots,
                const char* colour) {
    std::vector<std::string> corners;
    for (const Dot& dot : dots)
        corners.push_back(fixed(axes.x(dot.recall), 1) + "," + fixed(axes.y(dot.speed), 1));
    out << "<polyline points=\"" << join(corners, " ") << "\" fill=\"none\" stroke=\"" << colour
        << "\" stroke-width=\"2\"/>\n";
    for (const Dot& dot : dots) {
        const std::string centre = "cx=\"" + fixed(axes.x(dot.recall), 1) + "\" cy=\"" +
                                   fixed(axes.y(dot.speed), 1) + "\"";
        if (dot.reach)
            out << "<circle " << centre << " r=\"7\" fill=\"none\" stroke=\"" << colour
                << "\" stroke-width=\"1.5\"/>\n";
        out << "<circle " << centre << " r=\"3.5\" fill=\"" << colour << "\"><title>"
            << escaped(dot.label) << ": recall " << fixed(dot.recall, 4) << ", "
            << short_number(dot.speed) << " queries/s</title></circle>\n";
    }
}

std::vector<unsigned> client_counts(const std::vector<SystemResult>& results) {
    std::vector<unsigned> counts;
    for (const SystemResult& result : results)
        for (const Point& point : result.points)
            for (const Speed& speed : point.speeds)
                if (std::find(counts.begin(), counts.end(), speed.clients) == counts.end())
                    counts.push_back(speed.clients);
    return counts;
}

void draw_legend(std::ostream& out, const std::vector<SystemResult>& results) {
    double x = left;
    for (size_t i = 0; i < results.size(); i++) {
        if (results[i].points.empty()) continue;
        out << "<circle cx=\"" << x + 5 << "\" cy=\"40\" r=\"5\" fill=\""
            << colours[i % std::size(colours)] << "\"/>\n"
            << text_at(x + 16, 44, "start", results[i].name);
        x += 40 + 7.5 * double(results[i].name.size());
    }
}

}  // namespace

void print_chart(std::ostream& out, const RunInfo& info, const std::vector<SystemResult>& results) {
    const std::vector<unsigned> counts = client_counts(results);
    Axes axes;
    for (const SystemResult& result : results)
        for (const unsigned clients : counts)
            for (const Dot& dot : dots_of(result, clients)) axes.include(dot);
    if (axes.highest_speed <= 0) return;
    axes.round();

    const double panels = double(counts.size());
    const double width = left + panels * panel_width + (panels - 1) * (gap + left) + right;
    const double height = top + panel_height + bottom;
    out << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << width << " " << height
        << "\" width=\"" << width << "\" height=\"" << height
        << "\" font-family=\"sans-serif\" font-size=\"13\">\n"
        << "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        << "<g font-size=\"15\" font-weight=\"bold\">"
        << text_at(left, 22, "start",
                   info.data + ", " + std::to_string(info.rows) + " x " +
                       std::to_string(info.dims) + ", " + info.metric)
        << "</g>\n";
    draw_legend(out, results);
    for (size_t panel = 0; panel < counts.size(); panel++) {
        const double x = left + double(panel) * (panel_width + gap + left);
        out << "<g transform=\"translate(" << x << "," << top << ")\">\n";
        draw_grid(out, axes);
        for (size_t i = 0; i < results.size(); i++)
            draw_curve(out, axes, dots_of(results[i], counts[panel]),
                       colours[i % std::size(colours)]);
        out << text_at(panel_width / 2, panel_height + 40, "middle",
                       "recall@" + std::to_string(info.k));
        out << "<g transform=\"translate(-52," << panel_height / 2 << ") rotate(-90)\">"
            << text_at(0, 0, "middle",
                       "queries/s, " + std::to_string(counts[panel]) +
                           (counts[panel] == 1 ? " client" : " clients"))
            << "</g>\n</g>\n";
    }
    out << "</svg>\n";
}

}  // namespace pgwarp::bench
