// JSON that comes from outside, read within bounds.
#pragma once

#include <string_view>

#include <chat.h>

namespace luce::llama {

// Deeper, code that walks it recursively (there is much of that in llama.cpp) could exhaust the stack.
constexpr int kMaxJsonDepth = 128;

// The deepest nesting of brackets outside strings.
int json_depth(std::string_view text);

// Throws TextFailure(BAD_ARGUMENT) when it is no JSON or nested too deeply. what: the text, for the message.
common_json parse_json(std::string_view text, const char* what);

}  // namespace luce::llama
