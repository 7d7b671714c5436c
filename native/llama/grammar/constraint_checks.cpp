#include "llama/grammar/constraint_checks.h"

#include <cctype>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "common.h"
#include "llama-grammar.h"
#include "llama/grammar/trigger_checks.h"

namespace luce::llama {
namespace {

using engine::ConstraintParams;
using engine::Trigger;

constexpr std::size_t kMaxGrammarBytes = std::size_t{8} << 20;
constexpr std::size_t kMaxGenerationPromptBytes = std::size_t{64} << 10;
constexpr std::size_t kMaxReasonBytes = 200;  // the parser quotes all that comes after the mistake

struct GrammarDeleter {
    void operator()(llama_grammar* grammar) const { llama_grammar_free_impl(grammar); }
};

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

}  // namespace

Error to_grammar_error() {
    try {
        throw;
    } catch (const std::bad_alloc&) {
        return {ErrorCode::out_of_memory, "no memory for the request's grammar or sampling state"};
    } catch (const std::invalid_argument& e) {
        return {ErrorCode::bad_args, e.what()};
    } catch (const std::exception& e) {
        return {ErrorCode::bad_grammar, std::string(e.what()).substr(0, kMaxReasonBytes)};
    }
}

Tokens generation_prompt_tokens(const std::string& text, const llama_vocab* vocab) {
    if (text.empty()) return {};
    Tokens tokens = common_tokenize(vocab, text, false, true);
    const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
    if (tokens.empty()) return tokens;
    // The space that some tokenizers put before the first special token is none of the prompt's.
    const std::string first = common_token_to_piece(vocab, tokens.front(), true);
    if (!first.empty() && is_space(first.front()) && !is_space(text.front())) tokens.erase(tokens.begin());
    return tokens;
}

Result<void> check_grammar(const std::string& grammar, std::span<const Token> prefill, const llama_vocab* vocab) try {
    if (grammar.size() > kMaxGrammarBytes) return Error{ErrorCode::bad_grammar, "the grammar has more than 8 MiB"};
    const std::unique_ptr<llama_grammar, GrammarDeleter> trial(
        llama_grammar_init_impl(vocab, grammar.c_str(), "root", false, nullptr, 0, nullptr, 0));
    if (!trial) return Error{ErrorCode::bad_grammar, "failed to parse grammar"};
    for (const Token token : prefill) llama_grammar_accept_impl(*trial, token);
    return {};
} catch (...) {
    return to_grammar_error();
}

Result<void> check_constraint(const ConstraintParams& constraint, const Model& model) {
    if (constraint.any() && !model.info().has_text) {
        return Error{ErrorCode::unsupported,
                     "this model's vocabulary has ids only (no_vocab): grammars and reasoning "
                     "budgets need its texts"};
    }
    if (Result<void> tokens = check_tokens(constraint, model.info().n_vocab); !tokens) return tokens;
    if (!constraint.any()) return {};
    if (Result<void> triggers = check_triggers(constraint.triggers); !triggers) return triggers;
    if (constraint.generation_prompt.size() > kMaxGenerationPromptBytes) {
        return Error{ErrorCode::bad_args, "gen_prompt= has more than 64 KiB"};
    }
    if (constraint.grammar.empty()) return {};
    const Tokens prefill =
        constraint.grammar_is_lazy ? Tokens() : generation_prompt_tokens(constraint.generation_prompt, model.vocab());
    return check_grammar(constraint.grammar, prefill, model.vocab());
}

}  // namespace luce::llama
