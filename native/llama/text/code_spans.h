// Whether a text ends inside code, as Markdown has it: what a model quotes there is no call. Knows nothing of formats.
#pragma once

#include <string_view>

namespace luce::llama {

// In a fence that began at a line's start and is not closed, or between backticks on the last line.
bool ends_in_code(std::string_view text);

}  // namespace luce::llama
