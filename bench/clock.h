// Time, and what a set of times tells.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

namespace pgwarp::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point start, Clock::time_point end) {
    return std::chrono::duration<double>(end - start).count();
}

class Stopwatch {
  public:
    double seconds() const { return seconds_between(start_, Clock::now()); }

  private:
    Clock::time_point start_ = Clock::now();
};

// The smallest value that at least `fraction` of the values do not exceed. Sorts them.
inline double percentile(std::vector<float>& values, double fraction) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const double rank = std::ceil(fraction * static_cast<double>(values.size()));
    return values[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

}  // namespace pgwarp::bench
