// Shared by the charts: size of a panel, its axis of speed, and SVG elements.
#pragma once

#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "bench/report.h"

namespace pgwarp::bench {

constexpr double panel_width = 460, panel_height = 320;
constexpr double left = 70, top = 64, gap = 40, bottom = 52, right = 24;

// Colours that remain distinct with colour blindness; repeats after the last.
const char* colour(size_t number);

// An SVG attribute for lines of one colour; empty for the first, which is solid.
const char* dashes(size_t number);

// A tick of an axis: where it is in the panel, across or down.
struct Tick {
    double place;
    std::string label;
};

// Queries/s on a log scale, within a panel.
class SpeedAxis {
  public:
    void include(double speed);
    bool empty() const { return highest_ <= 0; }

    // Extends the axis by at least 0.05 decades at either end, and until it has two ticks.
    void round();

    double y(double speed) const;
    std::vector<Tick> ticks() const;

  private:
    double lowest_ = INFINITY;
    double highest_ = 0;
};

// Escapes text between tags.
std::string escaped(std::string text);

std::string text_at(double x, double y, const std::string& anchor, const std::string& text);
std::string line(double x1, double y1, double x2, double y2);
std::string polyline(const std::vector<std::string>& corners, const char* colour,
                     const std::string& attributes = "");

// A dot that shows `title` under the mouse.
std::string dot(double x, double y, const char* colour, const std::string& title);

// Writes the opening tag, a white background and the title.
void begin_svg(std::ostream& out, double width, double height, const std::string& title);
std::string title_of(const RunInfo& info);

// Grid, frame and the labels of both axes.
void draw_panel(std::ostream& out, const std::vector<Tick>& x_ticks,
                const std::vector<Tick>& y_ticks, const std::string& x_title,
                const std::string& y_title);

}  // namespace pgwarp::bench
