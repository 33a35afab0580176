#include "bench/glove_json.h"

#include <charconv>
#include <cmath>
#include <stdexcept>

#include "bench/input_file.h"

namespace pgwarp::bench {
namespace {

// Just enough of JSON for this file: strings, numbers, arrays and objects, read forwards.
class JsonReader {
  public:
    JsonReader(const std::string& text, const std::string& path)
        : at_(text.data()), begin_(text.data()), end_(text.data() + text.size()), path_(path) {}

    [[noreturn]] void fail(const std::string& what) const {
        throw std::runtime_error("could not read \"" + path_ + "\": " + what + " at byte " +
                                 std::to_string(at_ - begin_));
    }

    char peek() {
        while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) at_++;
        if (at_ == end_) fail("the file ends too early");
        return *at_;
    }

    bool accept(char wanted) {
        if (peek() != wanted) return false;
        at_++;
        return true;
    }

    void expect(char wanted) {
        if (!accept(wanted)) fail(std::string("expected '") + wanted + "'");
    }

    // The raw text between the quotes: names of fields need no unescaping.
    std::string string() {
        expect('"');
        const char* start = at_;
        while (at_ < end_ && *at_ != '"') at_ += *at_ == '\\' ? 2 : 1;
        if (at_ >= end_) {
            at_ = end_;
            fail("a string does not end");
        }
        return std::string(start, at_++);
    }

    double number() {
        peek();
        double value = 0;
        const auto [next, error] = std::from_chars(at_, end_, value);
        if (error != std::errc()) fail("expected a number");
        at_ = next;
        return value;
    }

    void skip_value() {
        const char first = peek();
        if (first == '"') {
            string();
        } else if (first == '[') {
            expect('[');
            members(']', [this] { skip_value(); });
        } else {
            number();
        }
    }

    // Calls member() for each member up to the closing bracket.
    template <typename Member>
    void members(char closing, Member member) {
        if (accept(closing)) return;
        do {
            member();
        } while (accept(','));
        expect(closing);
    }

  private:
    const char* at_;
    const char* begin_;
    const char* end_;
    const std::string& path_;
};

std::string read_text(const std::string& path) {
    const auto file = open_input(path);
    std::string text;
    constexpr size_t step = 1 << 24;
    for (size_t got = step; got == step;) {
        const size_t before = text.size();
        text.resize(before + step);
        got = file->read(text.data() + before, step);
        text.resize(before + got);
    }
    return text;
}

// One array of "vectors" into its row.
void read_word(JsonReader& json, Vectors& vectors, std::vector<bool>& seen) {
    json.string();
    json.expect(':');
    json.expect('[');
    std::vector<double> numbers;
    json.members(']', [&] { numbers.push_back(json.number()); });
    if (numbers.size() != vectors.dims + 2) json.fail("expected the values, a norm and a number");

    double squares = 0;
    for (size_t i = 0; i < vectors.dims; i++) squares += numbers[i] * numbers[i];
    const double norm = numbers[vectors.dims];
    if (std::abs(std::sqrt(squares) - norm) > 1e-3 * (1 + norm)) json.fail("norm does not match");

    const double row = numbers[vectors.dims + 1];
    if (!(row >= 0 && row < double(vectors.rows)) || seen[size_t(row)])
        json.fail("bad word number");
    seen[size_t(row)] = true;
    for (size_t i = 0; i < vectors.dims; i++)
        vectors.values[size_t(row) * vectors.dims + i] = static_cast<float>(numbers[i]);
}

}  // namespace

Vectors read_glove_json(const std::string& path) {
    const std::string text = read_text(path);
    JsonReader json(text, path);
    Vectors vectors;
    std::vector<bool> seen;
    size_t words = 0;
    json.expect('{');
    json.members('}', [&] {
        const std::string name = json.string();
        json.expect(':');
        if (name == "size") {
            vectors.rows = static_cast<size_t>(json.number());
        } else if (name == "dimensions") {
            vectors.dims = static_cast<size_t>(json.number());
        } else if (name == "vectors") {
            if (vectors.rows == 0 || vectors.dims == 0) json.fail("no size or dimensions before");
            vectors.values.resize(vectors.rows * vectors.dims);
            seen.resize(vectors.rows);
            json.expect('{');
            json.members('}', [&] {
                read_word(json, vectors, seen);
                words++;
            });
        } else {
            json.skip_value();
        }
    });
    if (words != vectors.rows) json.fail("fewer words than the file says");
    return vectors;
}

}  // namespace pgwarp::bench
