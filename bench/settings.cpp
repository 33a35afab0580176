#include "bench/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "bench/text.h"

namespace pgwarp::bench {
namespace {

bool is_number(const std::string& text) {
    double value = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && rest == text.data() + text.size();
}

// Pairs of name and value; lists and ranges are not expanded.
Settings parse_pairs(const std::string& text) {
    Settings settings;
    for (const std::string& part : split(text, ';')) {
        if (part.empty()) continue;
        const size_t equals = part.find('=');
        if (equals == std::string::npos || equals == 0)
            throw std::runtime_error("\"" + part + "\" is not a setting: write name=value");
        settings.emplace_back(trim(part.substr(0, equals)), trim(part.substr(equals + 1)));
    }
    return settings;
}

std::string unquoted(const std::string& value) {
    const bool quoted = value.size() >= 2 && value.front() == '\'' && value.back() == '\'';
    return quoted ? value.substr(1, value.size() - 2) : value;
}

int decimals_of(const std::string& number) {
    const size_t point = number.find('.');
    return point == std::string::npos ? 0 : static_cast<int>(number.size() - point - 1);
}

}  // namespace

std::string describe(const Settings& settings) {
    std::vector<std::string> pairs;
    for (const auto& [name, value] : settings) pairs.push_back(name + "=" + value);
    return pairs.empty() ? "defaults" : join(pairs, "; ");
}

void apply(Connection& connection, const Settings& settings) {
    for (const auto& [name, value] : settings) connection.set(name, value);
}

Settings parse_settings(const std::string& text) {
    Settings settings = parse_pairs(text);
    for (auto& [name, value] : settings) value = unquoted(value);
    return settings;
}

std::vector<Settings> parse_settings_list(const std::string& text) {
    std::vector<Settings> lists = {{}};
    for (const auto& [name, written] : parse_pairs(text)) {
        std::vector<std::string> values = split(written, ',');
        if (!std::all_of(values.begin(), values.end(), is_number)) values = {unquoted(written)};
        std::vector<Settings> longer;
        for (const Settings& settings : lists)
            for (const std::string& value : values) {
                longer.push_back(settings);
                longer.back().emplace_back(name, value);
            }
        lists = std::move(longer);
    }
    return lists;
}

SettingsRange::SettingsRange(const std::string& text) : settings_(parse_pairs(text)) {
    bool found = false;
    for (size_t i = 0; i < settings_.size(); i++) {
        std::string& value = settings_[i].second;
        const size_t dots = value.find("..");
        const std::string low = value.substr(0, dots);
        const std::string high = dots == std::string::npos ? "" : value.substr(dots + 2);
        if (!is_number(low) || !is_number(high)) {
            value = unquoted(value);
            continue;
        }
        if (found) throw std::runtime_error("\"" + text + "\" has more than one range");
        found = true;
        varied_ = i;
        decimals_ = std::max(decimals_of(low), decimals_of(high));
        first_ = std::llround(std::stod(low) * std::pow(10, decimals_));
        last_ = std::llround(std::stod(high) * std::pow(10, decimals_));
    }
    if (!found || last_ < first_)
        throw std::runtime_error("\"" + text + "\" has no range: write name=10..400");
}

Settings SettingsRange::at(size_t step) const {
    const int64_t units = first_ + static_cast<int64_t>(step);
    char text[64];
    std::snprintf(text, sizeof(text), "%.*f", decimals_, double(units) / std::pow(10, decimals_));
    Settings settings = settings_;
    settings[varied_].second = text;
    return settings;
}

}  // namespace pgwarp::bench
