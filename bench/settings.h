// Settings of the server as a user writes them: "name = value; name = value", where a value may be
// a list of numbers to try one after the other (10,20,40) or a range to search (10..400).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bench/connection.h"

namespace pgwarp::bench {

using Settings = std::vector<std::pair<std::string, std::string>>;

// Settings as one line, as in "hnsw.ef_search=40; jit=off"; "defaults" if there are none.
std::string describe(const Settings& settings);

void apply(Connection& connection, const Settings& settings);

// Without lists and ranges.
Settings parse_settings(const std::string& text);

// One Settings for each combination of values in lists. A quoted value ('1,2') is no list.
std::vector<Settings> parse_settings_list(const std::string& text);

// Settings with one range among them, and the steps of that range.
class SettingsRange {
  public:
    explicit SettingsRange(const std::string& text);

    // The decimals written set the step size: a range of 0.80..0.99 has 20 steps.
    size_t steps() const { return static_cast<size_t>(last_ - first_ + 1); }
    Settings at(size_t step) const;

  private:
    Settings settings_;
    size_t varied_ = 0;
    int decimals_ = 0;
    int64_t first_ = 0;  // in units of 10^-decimals
    int64_t last_ = 0;
};

}  // namespace pgwarp::bench
