#include "bench/svg.h"

#include <algorithm>

#include "bench/text.h"

namespace pgwarp::bench {

const char* colour(size_t number) {
    // The palette of Okabe and Ito, darkest first.
    constexpr const char* colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                       "#e69f00", "#56b4e9", "#000000"};
    return colours[number % std::size(colours)];
}

const char* dashes(size_t number) {
    constexpr const char* all[] = {"", " stroke-dasharray=\"7 3\"", " stroke-dasharray=\"2 3\"",
                                   " stroke-dasharray=\"9 3 2 3\""};
    return all[number % std::size(all)];
}

void SpeedAxis::include(double speed) {
    lowest_ = std::min(lowest_, speed);
    highest_ = std::max(highest_, speed);
}

void SpeedAxis::round() {
    double low = std::floor(std::log10(lowest_) * 10 - 0.5);
    double high = std::ceil(std::log10(highest_) * 10 + 0.5);
    // Ticks are at most 0.4 decades apart, so that few rounds are enough. Speeds beyond the range
    // of ticks get none.
    for (int widened = 0; widened < 8; widened++) {
        lowest_ = std::pow(10, low / 10);
        highest_ = std::pow(10, high / 10);
        if (ticks().size() >= 2) break;
        low--;
        high++;
    }
}

double SpeedAxis::y(double speed) const {
    return panel_height * (1 - std::log(speed / lowest_) / std::log(highest_ / lowest_));
}

std::vector<Tick> SpeedAxis::ticks() const {
    std::vector<Tick> ticks;
    for (double decade = 1e-3; decade < 1e9; decade *= 10)
        for (const double digit : {1.0, 2.0, 5.0}) {
            const double speed = digit * decade;
            if (speed >= lowest_ && speed <= highest_)
                ticks.push_back({y(speed), speed < 1 ? fixed(speed, 3) : fixed(speed, 0)});
        }
    return ticks;
}

std::string escaped(std::string text) {
    text = replace_all(text, "&", "&amp;");
    text = replace_all(text, "<", "&lt;");
    return replace_all(text, ">", "&gt;");
}

std::string text_at(double x, double y, const std::string& anchor, const std::string& text) {
    return "<text x=\"" + fixed(x, 1) + "\" y=\"" + fixed(y, 1) + "\" text-anchor=\"" + anchor +
           "\">" + escaped(text) + "</text>\n";
}

std::string line(double x1, double y1, double x2, double y2) {
    return "<line x1=\"" + fixed(x1, 1) + "\" y1=\"" + fixed(y1, 1) + "\" x2=\"" + fixed(x2, 1) +
           "\" y2=\"" + fixed(y2, 1) + "\"/>\n";
}

std::string polyline(const std::vector<std::string>& corners, const char* colour,
                     const std::string& attributes) {
    return "<polyline points=\"" + join(corners, " ") + "\" fill=\"none\" stroke=\"" + colour +
           "\" stroke-width=\"2\"" + attributes + "/>\n";
}

std::string dot(double x, double y, const char* colour, const std::string& title) {
    return "<circle cx=\"" + fixed(x, 1) + "\" cy=\"" + fixed(y, 1) + "\" r=\"3.5\" fill=\"" +
           colour + "\"><title>" + escaped(title) + "</title></circle>\n";
}

std::string title_of(const RunInfo& info) {
    return info.data + ", " + std::to_string(info.rows) + " x " + std::to_string(info.dims) + ", " +
           info.metric;
}

void begin_svg(std::ostream& out, double width, double height, const std::string& title) {
    out << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << width << " " << height
        << "\" width=\"" << width << "\" height=\"" << height
        << "\" font-family=\"sans-serif\" font-size=\"13\">\n"
        << "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        << "<g font-size=\"15\" font-weight=\"bold\">" << text_at(left, 22, "start", title)
        << "</g>\n";
}

void draw_panel(std::ostream& out, const std::vector<Tick>& x_ticks,
                const std::vector<Tick>& y_ticks, const std::string& x_title,
                const std::string& y_title) {
    std::string lines, labels;
    double free_from = -panel_width;  // labels on the x axis must not overlap
    for (const Tick& tick : x_ticks) {
        lines += line(tick.place, 0, tick.place, panel_height);
        if (tick.place < free_from) continue;
        labels += text_at(tick.place, panel_height + 18, "middle", tick.label);
        free_from = tick.place + 36;
    }
    for (const Tick& tick : y_ticks) {
        lines += line(0, tick.place, panel_width, tick.place);
        labels += text_at(-8, tick.place + 4, "end", tick.label);
    }
    out << "<g stroke=\"#dddddd\">\n"
        << lines << "</g>\n<g fill=\"#444444\">\n"
        << labels << "</g>\n";
    out << "<rect width=\"" << panel_width << "\" height=\"" << panel_height
        << "\" fill=\"none\" stroke=\"#888888\"/>\n";
    out << text_at(panel_width / 2, panel_height + 40, "middle", x_title);
    out << "<g transform=\"translate(-52," << panel_height / 2 << ") rotate(-90)\">"
        << text_at(0, 0, "middle", y_title) << "</g>\n";
}

}  // namespace pgwarp::bench
