// TokenConstraint: one request's grammar and reasoning budget: what they think of a token, and what they have seen of
// the text. Asks llama.cpp's samplers in the order of common_sampler_sample and common_sampler_accept, which can only
// ask them about a table of the whole vocabulary. Knows no logits but those it is handed, and no draws.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <llama.h>

#include "base/result.h"
#include "base/token.h"
#include "engine/request.h"
#include "llama/grammar/own_stack.h"
#include "llama/sampling/trigger_window.h"

namespace luce::llama {

// What is const may be called on any thread, one at a time; it changes nothing that counts. Each throws what
// llama.cpp's grammar throws.
class TokenConstraint {
public:
    // REQUIRES: check_constraint() has passed.
    TokenConstraint(const engine::ConstraintParams& params, const llama_vocab* vocab);

    // The only token that a spent reasoning budget allows now.
    std::optional<Token> forced() const;

    // Whether the grammar takes the token. The budget forbids none unless it forces one.
    bool allows(Token token) const;

    // Takes away (-INFINITY) what the grammar forbids.
    void mask(llama_token_data_array& tokens) const;

    // A generated token is the text's. Errors: bad_grammar.
    Result<void> accept(Token token);

private:
    struct Free {
        void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
    };
    using Sampler = std::unique_ptr<llama_sampler, Free>;

    bool is_judged() const;
    void advance(Token token);
    void feed(Token token);

    const llama_vocab* vocab_;
    Sampler grammar_;  // may be none
    Sampler budget_;   // may be none
    Tokens forcible_;  // what the budget can force, each once
    bool is_lazy_;
    std::optional<TriggerWindow> window_;  // while the grammar waits for words and tokens alone
    bool matches_patterns_;                // the grammar is lazy and has a trigger that is a regular expression
    std::size_t n_text_bytes_ = 0;
    OwnStack stack_;  // of the trigger patterns
};

}  // namespace luce::llama
