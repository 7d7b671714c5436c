// rehearse_constraint: a grammar and a reasoning budget that are fed as common_sampler_init and common_sampler_accept
// feed theirs (common/sampling.cpp), with one difference: each end token is asked for first.
#include <algorithm>
#include <cctype>
#include <climits>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "common.h"
#include "llama/grammar/constraint_checks.h"
#include "reasoning-budget.h"

namespace luce::llama {
namespace {

struct SamplerDeleter {
    void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using SamplerPtr = std::unique_ptr<llama_sampler, SamplerDeleter>;

std::string to_pattern(const common_grammar_trigger& trigger) {
    const std::string& text = trigger.value;
    if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD) return regex_escape(text);
    if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN) return text;
    if (text.empty()) return "^$";
    return (text.front() != '^' ? "^" : "") + text + (text.back() != '$' ? "$" : "");
}

llama_sampler* make_grammar(const common_params_sampling& params, const llama_vocab* vocab) {
    const std::string& grammar = common_grammar_value(params.grammar);
    if (!params.grammar_lazy) return llama_sampler_init_grammar(vocab, grammar.c_str(), "root");
    std::vector<std::string> patterns;
    std::vector<Token> tokens;
    for (const common_grammar_trigger& trigger : params.grammar_triggers) {
        if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN)
            tokens.push_back(trigger.token);
        else
            patterns.push_back(to_pattern(trigger));
    }
    std::vector<const char*> texts;
    for (const std::string& pattern : patterns) texts.push_back(pattern.c_str());
    return llama_sampler_init_grammar_lazy_patterns(vocab, grammar.c_str(), "root", texts.data(), texts.size(),
                                                    tokens.data(), tokens.size());
}

Tokens prefill_of(const common_params_sampling& params, const llama_vocab* vocab) {
    const std::string& text = params.generation_prompt;
    if (text.empty()) return {};
    Tokens tokens = common_tokenize(vocab, text, false, true);
    const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
    if (tokens.empty()) return tokens;
    // The space that some tokenizers put before the first special token is none of the prompt's.
    const std::string first = common_token_to_piece(vocab, tokens.front(), true);
    if (!first.empty() && is_space(first.front()) && !is_space(text.front())) tokens.erase(tokens.begin());
    return tokens;
}

class Rehearsal {
public:
    Rehearsal(const common_params_sampling& params, const llama_vocab* vocab)
        : params_(params), vocab_(vocab), grammar_(make_grammar(params, vocab)) {
        const bool has_budget = !params.reasoning_budget_start.empty() && !params.reasoning_budget_end.empty() &&
                                (params.grammar_lazy || params.reasoning_budget_tokens >= 0);
        if (!has_budget) return;
        const std::int32_t n_budget = params.reasoning_budget_tokens;
        budget_.reset(common_reasoning_budget_init(vocab, {params.reasoning_budget_start}, params.reasoning_budget_end,
                                                   params.reasoning_budget_forced, n_budget < 0 ? INT_MAX : n_budget));
    }

    Result<void> run(std::span<const Token> resumed) {
        if (!grammar_) return Error{ErrorCode::bad_grammar, "failed to parse grammar (the log on stderr says where)"};
        const bool feeds_grammar = !params_.grammar_lazy && common_grammar_needs_prefill(params_.grammar);
        for (const Token token : prefill_of(params_, vocab_)) {
            if (feeds_grammar) llama_sampler_accept(grammar_.get(), token);
            if (budget_) llama_sampler_accept(budget_.get(), token);
        }
        for (const Token token : resumed) {
            if (Result<void> accepted = accept(token); !accepted) return accepted;
        }
        return {};
    }

private:
    bool budget_is(common_reasoning_budget_state state) const {
        return common_reasoning_budget_get_state(budget_.get()) == state;
    }

    bool applies() const {
        return !budget_ || !params_.grammar_lazy || budget_is(REASONING_BUDGET_IDLE) ||
               budget_is(REASONING_BUDGET_DONE);
    }

    // common_sampler_accept, for a token that was generated.
    Result<void> accept(Token token) {
        const bool is_for_grammar = applies();
        if (budget_) {
            llama_sampler_accept(budget_.get(), token);
            const Tokens* end = common_reasoning_budget_get_end_match(budget_.get());
            if (!is_for_grammar && budget_is(REASONING_BUDGET_DONE) && end != nullptr) {
                for (const Token end_token : *end) llama_sampler_accept(grammar_.get(), end_token);
            }
        }
        if (!is_for_grammar) return {};
        if (!has_place_for(token)) {
            return Error{ErrorCode::bad_args, "generated= covers an end token that the grammar has no place for"};
        }
        llama_sampler_accept(grammar_.get(), token);
        return {};
    }

    // Of an end token only: what else the grammar does not allow, it throws at.
    bool has_place_for(Token token) const {
        if (!llama_vocab_is_eog(vocab_, token)) return true;
        llama_token_data candidate = {token, 1.0F, 0.0F};
        llama_token_data_array candidates = {&candidate, 1, -1, false};
        llama_sampler_apply(grammar_.get(), &candidates);
        return candidate.logit == 1.0F;
    }

    const common_params_sampling& params_;
    const llama_vocab* vocab_;
    SamplerPtr grammar_;
    SamplerPtr budget_;
};

}  // namespace

Result<void> rehearse_constraint(const common_params_sampling& params, std::span<const Token> resumed,
                                 const Model& model) {
    const llama_vocab* vocab = model.vocab();
    const bool has_end =
        std::any_of(resumed.begin(), resumed.end(), [&](Token token) { return llama_vocab_is_eog(vocab, token); });
    const bool has_prefill = !params.grammar_lazy && !params.generation_prompt.empty();
    if (common_grammar_value(params.grammar).empty() || (!has_end && !has_prefill)) return {};
    try {
        return Rehearsal(params, vocab).run(resumed);
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory, "no memory for the grammar"};
    } catch (const std::exception& e) {
        return Error{ErrorCode::bad_grammar,
                     std::string("the grammar does not take what is written already: ") + e.what()};
    }
}

}  // namespace luce::llama
