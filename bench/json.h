// Writes one flat JSON object, field by field.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "bench/text.h"

namespace pgwarp::bench {

class JsonObject {
  public:
    explicit JsonObject(const std::string& kind) { text("kind", kind); }

    JsonObject& text(const std::string& name, const std::string& value) {
        return field(name, quoted(value));
    }
    template <typename Number>
    JsonObject& number(const std::string& name, Number value) {
        return field(name, digits(static_cast<double>(value)));
    }
    JsonObject& numbers(const std::string& name, const std::vector<double>& values) {
        std::vector<std::string> list;
        for (const double value : values) list.push_back(digits(value));
        return field(name, "[" + join(list, ",") + "]");
    }
    JsonObject& boolean(const std::string& name, bool value) {
        return field(name, value ? "true" : "false");
    }
    std::string finish() const { return "{" + join(fields_, ",") + "}"; }

  private:
    JsonObject& field(const std::string& name, const std::string& value) {
        fields_.push_back(quoted(name) + ":" + value);
        return *this;
    }

    // Twelve digits: enough for a size in bytes, and more than the precision of any timing.
    static std::string digits(double value) {
        char text[32];
        std::snprintf(text, sizeof(text), "%.12g", value);
        return text;
    }

    static std::string quoted(const std::string& value) {
        std::string out = "\"";
        for (const char c : value) {
            char escaped[8] = {c, 0};
            if (c == '"' || c == '\\')
                std::snprintf(escaped, sizeof(escaped), "\\%c", c);
            else if (static_cast<unsigned char>(c) < 0x20)
                std::snprintf(escaped, sizeof(escaped), "\\u%04x", c);
            out += escaped;
        }
        return out + "\"";
    }

    std::vector<std::string> fields_;
};

}  // namespace pgwarp::bench
