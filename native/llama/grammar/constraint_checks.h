// Is this constraint safe for llama.cpp? Whatever it would abort, leak or recurse without a bound at is refused here,
// before its sampler is built. What a grammar costs, the parser and each token, is limited in llama.cpp itself
// (cmake/patches/grammar-steps.patch). Knows nothing of sampling.
#pragma once

#include <span>
#include <string>

#include "engine/request.h"
#include "llama/model/model.h"

struct llama_vocab;

namespace luce::llama {

// All that the constraint's own values say: tokens in range, a grammar that takes the generation prompt, the triggers'
// limits. Errors: token_out_of_range, bad_args, bad_grammar, out_of_memory, unsupported.
Result<void> check_constraint(const engine::ConstraintParams& constraint, const Model& model);

// What llama.cpp feeds the grammars that apply from the start, and the reasoning budget, before the first token.
Tokens generation_prompt_tokens(const std::string& text, const llama_vocab* vocab);

// Parses the grammar and feeds it these tokens, as common_sampler_init will, which leaks when a grammar throws. The
// vocabulary is for grammars that name tokens by their text (<think>); without one they are refused. Errors: bad_args,
// bad_grammar, out_of_memory.
Result<void> check_grammar(const std::string& grammar, std::span<const Token> prefill, const llama_vocab* vocab);

// What llama.cpp's grammar threw. REQUIRES: called in the handler that caught it.
Error to_grammar_error();

}  // namespace luce::llama
