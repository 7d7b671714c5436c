// GBNF grammars put together: what takes what either of two takes (a tool call, or an answer by a schema), and what
// wants a text before. Knows GBNF's spelling of names and literals, and nothing of what the rules are about.
#pragma once

#include <string>
#include <string_view>

namespace luce::llama {

// The first grammar's root becomes this rule, its other rules keep their names.
inline constexpr const char* kFirstRoot = "calls-root";

// Both are llama.cpp's own: each has a root, and comes out of grammar_choice() as valid as it went in.
std::string grammar_choice(const std::string& first, const std::string& second);

// `text`, and then what the grammar takes.
std::string grammar_after(std::string_view text, const std::string& grammar);

}  // namespace luce::llama
