// How many ways a grammar has to read a short run of one character. llama.cpp tries a token's characters in all ways
// that the grammar has for them, one after another, when it turns out not to fit: exponential in the token's length.
#pragma once

#include "base/result.h"
#include "llama-grammar.h"

namespace luce::llama {

// Reads runs of twelve equal characters from the start of each rule, with a bound on the steps. REQUIRES: rules
// without left recursion, all references defined. Errors: bad_grammar.
Result<void> probe_grammar(const llama_grammar_rules& rules);

}  // namespace luce::llama
