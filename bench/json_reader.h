// Reads JSON text token by token, for a caller that knows the structure.
#pragma once

#include <string>

namespace pgwarp::bench {

class JsonReader {
  public:
    // Both must outlive the reader; the path is for messages.
    JsonReader(const std::string& text, const std::string& path)
        : at_(text.data()), begin_(text.data()), end_(text.data() + text.size()), path_(path) {}

    [[noreturn]] void fail(const std::string& what) const;

    // Whether only whitespace is left.
    bool at_end();

    // The next character that is not whitespace.
    char peek();
    bool accept(char wanted);
    void expect(char wanted);

    std::string string();
    double number();
    bool boolean();

    // Skips a string, a number, or an array of these.
    void skip_value();

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
    bool accept_word(const std::string& word);
    char next_in_string();
    std::string escaped_character();
    unsigned hexadecimal();

    const char* at_;
    const char* begin_;
    const char* end_;
    const std::string& path_;
};

}  // namespace pgwarp::bench
