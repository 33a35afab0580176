// a and b of a layout's curve, by least squares (Levenberg, Marquardt) over 300 distances.

#include "kernels/graph_layout.h"

#include <cmath>

namespace pgwarp {

namespace {

constexpr int distances = 300;

// The error of a curve, and its derivatives: those after the logarithms of a and b, which keeps
// both positive.
struct CurveFit {
    double error = 0;
    double aa = 0, ab = 0, bb = 0;  // J'J
    double a = 0, b = 0;            // J'r
};

CurveFit measure(double min_dist, double spread, double a, double b) {
    CurveFit fit;
    for (int i = 1; i < distances; ++i) {  // at 0 both are 1
        const double x = 3 * spread * i / (distances - 1);
        const double wanted = x < min_dist ? 1 : std::exp(-(x - min_dist) / spread);
        const double term = a * std::pow(x, 2 * b), value = 1 / (1 + term);
        const double rest = wanted - value;
        const double by_a = -value * value * term, by_b = by_a * 2 * b * std::log(x);
        fit.error += rest * rest;
        fit.aa += by_a * by_a;
        fit.ab += by_a * by_b;
        fit.bb += by_b * by_b;
        fit.a += by_a * rest;
        fit.b += by_b * rest;
    }
    return fit;
}

}  // namespace

LayoutCurve fit_layout_curve(double min_dist, double spread) {
    double a = 1 / std::pow(spread, 2.0), b = 1, damping = 1e-3;
    CurveFit fit = measure(min_dist, spread, a, b);
    for (int step = 0; step < 200 && damping < 1e12; ++step) {
        const double aa = fit.aa * (1 + damping), bb = fit.bb * (1 + damping);
        const double determinant = aa * bb - fit.ab * fit.ab;
        const double to_a = a * std::exp((fit.a * bb - fit.b * fit.ab) / determinant);
        const double to_b = b * std::exp((fit.b * aa - fit.a * fit.ab) / determinant);
        const CurveFit next = measure(min_dist, spread, to_a, to_b);
        if (next.error < fit.error) {
            a = to_a;
            b = to_b;
            fit = next;
            damping /= 10;
        } else {
            damping *= 10;
        }
    }
    return {a, b};
}

}  // namespace pgwarp
