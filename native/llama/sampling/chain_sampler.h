// ChainSampler: one request's tokens by llama.cpp's `common`: penalties, cut-offs, temperature and draw, grammar and
// reasoning budget. Knows how to be fast where `common` would look at the whole vocabulary; not what a request asks
// for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/request.h"
#include "llama/grammar/own_stack.h"
#include "llama/model/model.h"
#include "llama/sampling/candidates.h"
#include "llama/sampling/row_sampler.h"
#include "sampling.h"

namespace luce::llama {

// What of the chain lies before its first cut, and that cut.
struct ChainShape {
    FirstCut cut;
    std::optional<float> temperature_alone;  // the chain has no other link than the draw
    Tokens biased;                           // by logit_bias or the vocabulary, each once
    std::size_t n_penalized = 0;             // the last so many tokens are; 0: no penalties
    bool is_constrained = false;             // by a grammar or a reasoning budget: `common` keeps them to itself
};

class ChainSampler final : public RowSampler {
public:
    ChainSampler(common_sampler_ptr sampler, ChainShape shape, const Model& model, const LlamaDecoder& decoder,
                 const engine::Request& request);

    // Bring the state to where it is after the prompt. Throws what llama.cpp's grammar throws.
    Result<void> accept_prompt(const engine::Request& request, std::int32_t n_remembered);

    bool can_choose_ahead() const override { return !shape_.is_constrained; }

protected:
    Result<Token> choose(std::span<const float> logits, std::size_t row) override;
    Result<Token> accept(Token token) override;

private:
    void reseed();
    Result<Token> choose_constrained(std::span<const float> logits, std::size_t row);
    Result<Token> choose_from_candidates(std::span<const float> logits);
    std::span<const Token> find_touched();
    Result<void> accept(Token token, bool is_generated);

    common_sampler_ptr sampler_;
    const ChainShape shape_;
    const Model& model_;
    std::uint64_t seed_;
    bool draws_;
    bool matches_patterns_;  // the grammar is lazy and has a trigger that is a regular expression
    Candidates candidates_;
    Tokens last_;  // accepted, as many as are penalized, in a ring
    std::size_t next_last_ = 0;
    Tokens touched_;  // of the choice that is made
    std::vector<float> terms_;
    std::uint64_t n_drawn_ = 0;
    std::size_t n_text_bytes_ = 0;
    OwnStack stack_;    // of the trigger patterns
    double cpu_s_ = 0;  // of the token that is chosen and accepted
};

}  // namespace luce::llama
