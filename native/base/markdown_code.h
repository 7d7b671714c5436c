// MarkdownCode: whether a text, as it comes, is inside code, as Markdown has it: what a model quotes there is no call.
// Knows nothing of formats or tokens.
#pragma once

#include <string>
#include <string_view>

namespace luce {

class MarkdownCode {
public:
    // More of the text.
    void add(std::string_view text);

    // In a fence that began at a line's start and is not closed, or between backticks on the last line.
    bool is_open() const;

private:
    std::string fence_;  // that is open
    std::string line_;   // the last, as far as it has come
};

// Of a whole text.
bool ends_in_code(std::string_view text);

}  // namespace luce
