// check_constraint: the values by themselves. rehearse_constraint is in constraint_rehearsal.cpp.
#include "llama/grammar/constraint_checks.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common.h"
#include "llama/grammar/grammar_limits.h"
#include "llama/grammar/trigger_checks.h"

namespace luce::llama {
namespace {

using engine::ConstraintParams;
using engine::Trigger;

constexpr std::size_t kMaxGenerationPromptBytes = std::size_t{64} << 10;

Result<void> check_tokens(const ConstraintParams& constraint, std::int32_t n_vocab) {
    std::vector<const Tokens*> lists = {&constraint.preserved, &constraint.think_start, &constraint.think_message};
    for (const Tokens& end : constraint.think_end) lists.push_back(&end);
    Tokens triggers;
    for (const Trigger& trigger : constraint.triggers) triggers.push_back(trigger.token);
    lists.push_back(&triggers);
    for (const Tokens* list : lists) {
        for (const Token token : *list) {
            if (token >= 0 && token < n_vocab) continue;
            return Error{ErrorCode::token_out_of_range, "a constraint names token " + std::to_string(token) +
                                                            ", outside the vocabulary of " + std::to_string(n_vocab)};
        }
    }
    return {};
}

bool has_end_token(const Tokens& tokens, const llama_vocab* vocab) {
    return std::any_of(tokens.begin(), tokens.end(), [&](Token token) { return llama_vocab_is_eog(vocab, token); });
}

// A grammar that applies from the start is fed the generation prompt's tokens, and aborts at an end token.
Result<void> check_generation_prompt(const ConstraintParams& constraint, const llama_vocab* vocab) {
    const std::string& text = constraint.generation_prompt;
    if (text.size() > kMaxGenerationPromptBytes) return Error{ErrorCode::bad_args, "gen_prompt= has more than 64 KiB"};
    if (text.empty() || constraint.grammar.empty() || constraint.grammar_is_lazy) return {};
    if (!has_end_token(common_tokenize(vocab, text, false, true), vocab)) return {};
    return Error{ErrorCode::bad_args, "gen_prompt= holds an end token, which no grammar can begin with"};
}

// When the reasoning ends, a lazy grammar is fed the end's tokens; if it has been triggered, it aborts at an end token.
Result<void> check_think_end(const ConstraintParams& constraint, const llama_vocab* vocab) {
    if (constraint.grammar.empty() || !constraint.grammar_is_lazy) return {};
    for (const Tokens& end : constraint.think_end) {
        if (!has_end_token(end, vocab)) continue;
        return Error{ErrorCode::bad_args, "think_end= holds an end token, which a lazy grammar has no place for"};
    }
    return {};
}

}  // namespace

Result<void> check_constraint(const ConstraintParams& constraint, const Model& model) {
    if (constraint.any() && !model.info().has_text) {
        return Error{ErrorCode::unsupported,
                     "this model's vocabulary has ids only (no_vocab): grammars and reasoning "
                     "budgets need its texts"};
    }
    if (Result<void> tokens = check_tokens(constraint, model.info().n_vocab); !tokens) return tokens;
    if (!constraint.any()) return {};
    const llama_vocab* vocab = model.vocab();
    if (Result<void> triggers = check_triggers(constraint.triggers); !triggers) return triggers;
    if (Result<void> prompt = check_generation_prompt(constraint, vocab); !prompt) return prompt;
    if (Result<void> end = check_think_end(constraint, vocab); !end) return end;
    if (constraint.grammar.empty()) return {};
    return check_grammar(constraint.grammar, vocab);
}

}  // namespace luce::llama
