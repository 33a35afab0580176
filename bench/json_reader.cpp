#include "bench/json_reader.h"

#include <charconv>
#include <stdexcept>
#include <string_view>

namespace pgwarp::bench {
namespace {

std::string utf8(unsigned code) {
    auto tail = [code](int shift) { return char(0x80 | ((code >> shift) & 0x3f)); };
    if (code < 0x80) return {char(code)};
    if (code < 0x800) return {char(0xc0 | (code >> 6)), tail(0)};
    if (code < 0x10000) return {char(0xe0 | (code >> 12)), tail(6), tail(0)};
    return {char(0xf0 | (code >> 18)), tail(12), tail(6), tail(0)};
}

}  // namespace

void JsonReader::fail(const std::string& what) const {
    throw std::runtime_error("could not read \"" + path_ + "\": " + what + " at byte " +
                             std::to_string(at_ - begin_));
}

bool JsonReader::at_end() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) at_++;
    return at_ == end_;
}

char JsonReader::peek() {
    if (at_end()) fail("the file ends too early");
    return *at_;
}

bool JsonReader::accept(char wanted) {
    if (peek() != wanted) return false;
    at_++;
    return true;
}

void JsonReader::expect(char wanted) {
    if (!accept(wanted)) fail(std::string("expected '") + wanted + "'");
}

char JsonReader::next_in_string() {
    if (at_ == end_) fail("a string does not end");
    return *at_++;
}

unsigned JsonReader::hexadecimal() {
    unsigned value = 0;
    const char* stop = end_ - at_ < 4 ? end_ : at_ + 4;
    const auto [next, error] = std::from_chars(at_, stop, value, 16);
    if (error != std::errc() || next != at_ + 4) fail("expected four hexadecimal digits");
    at_ = next;
    return value;
}

// What follows a backslash.
std::string JsonReader::escaped_character() {
    const char kind = next_in_string();
    constexpr std::string_view kinds = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
    if (const size_t at = kinds.find(kind); at != kinds.npos) return {meanings[at]};
    if (kind != 'u') fail("unknown escape in a string");
    unsigned code = hexadecimal();
    if (code >= 0xd800 && code < 0xdc00) {
        if (next_in_string() != '\\' || next_in_string() != 'u') fail("half a surrogate pair");
        const unsigned low = hexadecimal();
        if (low < 0xdc00 || low >= 0xe000) fail("half a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    return utf8(code);
}

std::string JsonReader::string() {
    expect('"');
    std::string text;
    for (char c = next_in_string(); c != '"'; c = next_in_string()) {
        if (c == '\\')
            text += escaped_character();
        else
            text += c;
    }
    return text;
}

double JsonReader::number() {
    peek();
    double value = 0;
    const auto [next, error] = std::from_chars(at_, end_, value);
    if (error != std::errc()) fail("expected a number");
    at_ = next;
    return value;
}

bool JsonReader::accept_word(const std::string& word) {
    if (!std::string_view(at_, end_).starts_with(word)) return false;
    at_ += word.size();
    return true;
}

bool JsonReader::boolean() {
    peek();
    if (accept_word("true")) return true;
    if (!accept_word("false")) fail("expected true or false");
    return false;
}

void JsonReader::skip_value() {
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

}  // namespace pgwarp::bench
