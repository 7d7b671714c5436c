// What a grammar may cost before llama.cpp sees it. llama.cpp's grammar code recurses once a nested bracket and once a
// leftmost rule, expands repetitions by copying, and follows each leftmost path by itself, all without a bound and on
// the daemon's one thread. Knows nothing of requests; no grammar of llama.cpp's own templates or schemas is refused.
#pragma once

#include <string>
#include <utility>

#include "base/result.h"

struct llama_vocab;

namespace luce::llama {

inline Error bad_grammar(std::string text) { return {ErrorCode::bad_grammar, std::move(text)}; }

// Checks that llama.cpp can parse the grammar and start on it in bounded time, stack and memory. The vocabulary is for
// grammars that name tokens by their text (<think>); without one they are refused. What llama.cpp's parser says of a
// bad grammar goes to stderr. Errors: bad_grammar, out_of_memory.
Result<void> check_grammar(const std::string& grammar, const llama_vocab* vocab);

// The lexical half of it: brackets, repetitions and how much they expand to. Must pass before llama.cpp's parser runs.
Result<void> check_grammar_text(const std::string& grammar);

}  // namespace luce::llama
