// Running code that recurses as deep as its input is nested: llama.cpp's parser of answers descends once for each
// bracket, and a model that loops can write thousands of them. Knows nothing of what runs.
#pragma once

#include <functional>
#include <string_view>

namespace luce::llama {

// The deepest nesting of brackets in a text, those in strings included.
size_t bracket_depth(std::string_view text);

// Runs body on the caller's stack if depth is moderate, else in a thread with a stack that is large enough. What body
// throws comes out here. Returns false, and runs nothing, if no stack would do.
bool run_nested(size_t depth, const std::function<void()>& body);

}  // namespace luce::llama
