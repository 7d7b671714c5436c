// check_grammar_text: one walk over the grammar's bytes that tells strings, classes, tokens and comments from operators
// as llama_grammar_parser does, and adds up what its repetitions copy. It need not agree with the parser after a place
// where the parser gives up, only before. Must not know what the rules mean.
#include <algorithm>
#include <string>
#include <vector>

#include "llama/grammar/grammar_limits.h"

namespace luce::llama {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{8} << 20;
constexpr std::size_t kMaxDepth = 200;      // the parser recurses once a bracket, about 500 bytes of stack each
constexpr double kMaxElements = 1 << 20;    // 8 bytes each
constexpr double kMaxNameBytes = 64 << 20;  // each rule that a repetition makes is named after the rule it is in
constexpr double kParserMaxTimes = 2000;    // llama.cpp's MAX_REPETITION_THRESHOLD: more is "no limit"

bool is_digit(char c) { return '0' <= c && c <= '9'; }
bool is_word(char c) { return is_digit(c) || ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || c == '-'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

class Scan {
public:
    // The parser takes a C string, so a zero byte ends it; at() gives one past the end, too.
    explicit Scan(const std::string& text) : text_(text.c_str()) {}

    Result<void> run() {
        while (at() != 0) {
            if (Result<void> step = next(); !step) return step;
            if (n_elements_ > kMaxElements) return bad_grammar("the grammar's repetitions expand to too many elements");
            if (n_name_bytes_ > kMaxNameBytes) return bad_grammar("the grammar repeats too much under long rule names");
        }
        return {};
    }

private:
    char at(std::size_t ahead = 0) const { return text_[i_ + ahead]; }

    Result<void> next() {
        const char c = at();
        if (c == '#') {
            skip_comment();
        } else if (c == '"' || c == '[') {
            skip_quoted(c == '"' ? '"' : ']');
        } else if (c == '<') {
            while (at() != 0 && at() != '>') ++i_;
            set_symbol(1);
        } else if (is_word(c)) {
            skip_word();
        } else if (c == '(') {
            if (++depth_ > kMaxDepth) return bad_grammar("the grammar nests more than 200 brackets");
            ++i_;
            add_rule(1);
        } else if (c == ')') {
            depth_ -= depth_ > 0 ? 1 : 0;
            ++i_;
            set_symbol(1);
        } else if (c == '.') {
            ++i_;
            set_symbol(1);
        } else if (c == '*' || c == '+' || c == '?') {
            ++i_;
            repeat(c == '+' ? 1 : 0, c == '?' ? 1 : kParserMaxTimes + 1);
        } else if (c == '{') {
            return counted_repetition();
        } else {
            ++i_;
        }
        return {};
    }

    void skip_comment() {
        while (at() != 0 && at() != '\n' && at() != '\r') ++i_;
    }

    void skip_space() {
        while (is_space(at()) || at() == '#') {
            if (at() == '#')
                skip_comment();
            else
                ++i_;
        }
    }

    // One character as the parser's decode_utf8 takes it, which trusts the first byte's length.
    void skip_character() {
        const auto first = static_cast<unsigned char>(at());
        const std::size_t n_bytes = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
        const std::size_t last = i_ + (first == '\\' ? 2 : n_bytes);
        while (i_ < last && at() != 0) ++i_;
    }

    void skip_quoted(char close) {
        ++i_;
        double n_characters = 0;
        for (; at() != 0 && at() != close; ++n_characters) skip_character();
        if (at() != 0) ++i_;
        set_symbol(n_characters);
    }

    // A rule's name stands before "::="; elsewhere it is a reference.
    void skip_word() {
        const std::size_t begin = i_;
        while (is_word(at())) ++i_;
        const std::size_t n_bytes = i_ - begin;
        while (at() == ' ' || at() == '\t') ++i_;
        if (depth_ == 0 && at() == ':') name_bytes_ = static_cast<double>(n_bytes);
        set_symbol(1);
    }

    void set_symbol(double n_elements) {
        symbol_ = n_elements;
        n_elements_ += n_elements;
    }

    void add_rule(double n_elements) {
        n_elements_ += n_elements + 3;
        n_name_bytes_ += name_bytes_ + 16;
    }

    // S{m,n} is m copies of S and n - m rules that each hold one; without a maximum it is one such rule.
    void repeat(double min, double max) {
        const double n_optional = max > kParserMaxTimes ? 1 : max - min;
        n_elements_ += n_optional * (symbol_ + 4);
        n_name_bytes_ += n_optional * (name_bytes_ + 16);
        n_elements_ += std::max(0.0, min - 1) * symbol_;
        symbol_ = min * symbol_ + (n_optional > 0 ? 1 : 0);
    }

    double number() {
        double value = 0;
        for (; is_digit(at()); ++i_) value = std::min(value * 10 + (at() - '0'), 1e9);
        return value;
    }

    Result<void> counted_repetition() {
        ++i_;
        skip_space();
        const double min = number();
        double max = min;
        skip_space();
        if (at() == ',') {
            ++i_;
            skip_space();
            max = is_digit(at()) ? number() : 1e9;
        }
        if (min > max) return bad_grammar("a repetition {m,n} of the grammar has m > n: it matches nothing");
        if (min > kParserMaxTimes) return bad_grammar("the grammar repeats something more than 2000 times");
        repeat(min, max);
        return {};
    }

    const char* text_;
    std::size_t i_ = 0;
    std::size_t depth_ = 0;
    double symbol_ = 0;      // elements of the symbol that a repetition would copy
    double name_bytes_ = 0;  // of the rule that is being read
    double n_elements_ = 0;
    double n_name_bytes_ = 0;
};

}  // namespace

Result<void> check_grammar_text(const std::string& grammar) {
    if (grammar.size() > kMaxBytes) return bad_grammar("the grammar has more than 8 MiB");
    return Scan(grammar).run();
}

}  // namespace luce::llama
