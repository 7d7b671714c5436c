// Words and lists: how a line is cut. Words are separated by runs of spaces and tabs, list items by exactly one
// separator. Both are read lazily and without copying, so that a hostile 16 MiB line costs no more memory than it has.
// Knows no command.
#pragma once

#include <optional>
#include <string_view>

namespace luce::wire {

bool is_blank(std::string_view text);

std::string_view trim(std::string_view text);

class WordReader {
public:
    explicit WordReader(std::string_view text) : rest_(text) {}

    std::optional<std::string_view> next();

    // What follows the last word that was read.
    std::string_view rest() const { return rest_; }

private:
    std::string_view rest_;
};

// The last word and what stands before it, without the blanks between. A single word has an empty head.
struct LastWord {
    std::string_view head;
    std::string_view word;
};
LastWord split_last_word(std::string_view text);

// Items of a list value. An empty text is an empty list; `a,` has two items, the second one empty.
class ListReader {
public:
    ListReader(std::string_view text, char separator) : rest_(text), separator_(separator), done_(text.empty()) {}

    std::optional<std::string_view> next();

    bool has_next() const { return !done_; }

private:
    std::string_view rest_;
    char separator_;
    bool done_;
};

}  // namespace luce::wire
