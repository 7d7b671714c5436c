#include "llama/sampling/token_constraint.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "common.h"
#include "llama/grammar/constraint_checks.h"
#include "reasoning-budget.h"

namespace luce::llama {
namespace {

using engine::ConstraintParams;
using engine::Trigger;

// std::regex recurses once a character of the text that a lazy grammar has waited through, about 200 bytes a character;
// a main thread has 8 MiB. Longer texts get a stack of their own (a thread start a token: far less than the match).
constexpr std::size_t kMaxModerateText_bytes = std::size_t{8} << 10;
constexpr std::size_t kMaxText_bytes = std::size_t{512} << 10;
constexpr std::size_t kBaseStack_bytes = std::size_t{16} << 20;
constexpr std::size_t kStackPerByte_bytes = 1024;  // sanitizers multiply it

bool has_trigger_patterns(const ConstraintParams& params) {
    return params.grammar_is_lazy &&
           std::any_of(params.triggers.begin(), params.triggers.end(), [](const Trigger& trigger) {
               return trigger.kind == Trigger::Kind::pattern || trigger.kind == Trigger::Kind::pattern_full;
           });
}

// The regular expression that `common` makes of a trigger.
std::string pattern_of(const Trigger& trigger) {
    if (trigger.kind == Trigger::Kind::word) return regex_escape(trigger.text);
    if (trigger.kind == Trigger::Kind::pattern) return trigger.text;
    if (trigger.text.empty()) return "^$";
    const std::string begin = trigger.text.front() == '^' ? "" : "^";
    return begin + trigger.text + (trigger.text.back() == '$' ? "" : "$");
}

llama_sampler* make_grammar(const ConstraintParams& params, const llama_vocab* vocab) {
    const char* const grammar = params.grammar.c_str();
    if (!params.grammar_is_lazy) return llama_sampler_init_grammar(vocab, grammar, "root");
    std::vector<std::string> patterns;
    Tokens tokens;
    for (const Trigger& trigger : params.triggers) {
        if (trigger.kind == Trigger::Kind::token) {
            tokens.push_back(trigger.token);
        } else {
            patterns.push_back(pattern_of(trigger));
        }
    }
    std::vector<const char*> texts;
    for (const std::string& pattern : patterns) texts.push_back(pattern.c_str());
    return llama_sampler_init_grammar_lazy_patterns(vocab, grammar, "root", texts.data(), texts.size(), tokens.data(),
                                                    tokens.size());
}

// Of think_budget, and without one where a lazy grammar must know when the model thinks.
bool has_budget(const ConstraintParams& params) {
    return !params.think_start.empty() && !params.think_end.empty() &&
           (params.grammar_is_lazy || params.think_budget.value_or(-1) >= 0);
}

Tokens forced_by(const ConstraintParams& params) {
    if (!params.think_budget) return {};
    Tokens forced = params.think_message;
    forced.insert(forced.end(), params.think_end.front().begin(), params.think_end.front().end());
    return forced;
}

}  // namespace

TokenConstraint::TokenConstraint(const ConstraintParams& params, const llama_vocab* vocab)
    : vocab_(vocab), is_lazy_(params.grammar_is_lazy), matches_patterns_(has_trigger_patterns(params)) {
    if (!params.grammar.empty()) grammar_.reset(make_grammar(params, vocab));
    if (grammar_ && is_lazy_) window_ = TriggerWindow::of(params.triggers);
    const Tokens prefill = generation_prompt_tokens(params.generation_prompt, vocab);
    if (grammar_ && !is_lazy_) {
        for (const Token token : prefill) llama_sampler_accept(grammar_.get(), token);
    }
    if (!has_budget(params)) return;
    const Tokens forced = forced_by(params);
    const std::int32_t n_most = params.think_budget.value_or(-1);
    budget_.reset(common_reasoning_budget_init(vocab, {params.think_start}, params.think_end, forced,
                                               n_most < 0 ? std::numeric_limits<std::int32_t>::max() : n_most));
    for (const Token token : prefill) llama_sampler_accept(budget_.get(), token);
    forcible_ = forced;
    std::sort(forcible_.begin(), forcible_.end());
    forcible_.erase(std::unique(forcible_.begin(), forcible_.end()), forcible_.end());
}

// Only the budget's sampler knows how far it is: the token that it leaves of those it can force.
std::optional<Token> TokenConstraint::forced() const {
    if (!budget_ || common_reasoning_budget_get_state(budget_.get()) != REASONING_BUDGET_FORCING) return std::nullopt;
    std::vector<llama_token_data> tokens;
    for (const Token token : forcible_) tokens.push_back({token, 0.0F, 0.0F});
    llama_token_data_array array = {tokens.data(), tokens.size(), -1, false};
    llama_sampler_apply(budget_.get(), &array);
    const auto left = std::find_if(tokens.begin(), tokens.end(), [](const auto& data) { return data.logit == 0.0F; });
    return left == tokens.end() ? std::nullopt : std::optional(left->id);
}

// A lazy grammar neither sees nor judges what the model thinks.
bool TokenConstraint::is_judged() const {
    if (!grammar_) return false;
    if (!budget_ || !is_lazy_) return true;
    const common_reasoning_budget_state state = common_reasoning_budget_get_state(budget_.get());
    return state == REASONING_BUDGET_IDLE || state == REASONING_BUDGET_DONE;
}

bool TokenConstraint::allows(Token token) const {
    llama_token_data data = {token, 0.0F, 0.0F};
    llama_token_data_array array = {&data, 1, -1, false};
    mask(array);
    return data.logit == 0.0F;
}

void TokenConstraint::mask(llama_token_data_array& tokens) const {
    if (is_judged() && !window_) llama_sampler_apply(grammar_.get(), &tokens);
}

Result<void> TokenConstraint::accept(Token token) {
    if (!matches_patterns_) {
        advance(token);
        return {};
    }
    // The whole answer bounds what a grammar waits through; only the grammar knows when it stopped waiting.
    n_text_bytes_ += common_token_to_piece(vocab_, token, true).size();
    if (n_text_bytes_ > kMaxText_bytes) {
        return Error{ErrorCode::bad_grammar,
                     "an answer whose grammar waits for a trigger pattern cannot be longer than 512 KiB"};
    }
    if (n_text_bytes_ <= kMaxModerateText_bytes) {
        advance(token);
    } else {
        stack_.run(kBaseStack_bytes + n_text_bytes_ * kStackPerByte_bytes, [&] { advance(token); });
    }
    return {};
}

// What ends the thinking may be a trigger, so a grammar that has not seen the thinking sees its end.
void TokenConstraint::advance(Token token) {
    const bool was_judged = is_judged();
    if (budget_) {
        llama_sampler_accept(budget_.get(), token);
        const bool is_over = common_reasoning_budget_get_state(budget_.get()) == REASONING_BUDGET_DONE;
        const llama_tokens* end = common_reasoning_budget_get_end_match(budget_.get());
        if (grammar_ && !was_judged && is_over && end != nullptr) {
            for (const Token end_token : *end) feed(end_token);
        }
    }
    if (was_judged) feed(token);
}

void TokenConstraint::feed(Token token) {
    if (!window_) {
        llama_sampler_accept(grammar_.get(), token);
        return;
    }
    const Tokens shown = window_->add(token, common_token_to_piece(vocab_, token, true));
    if (!shown.empty()) window_.reset();
    for (const Token next : shown) llama_sampler_accept(grammar_.get(), next);
}

}  // namespace luce::llama
