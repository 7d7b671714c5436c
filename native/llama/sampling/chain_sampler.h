// ChainSampler: one request's tokens by llama.cpp's `common`: penalties, cut-offs, temperature and draw, within a
// grammar and a reasoning budget. Knows how to be fast where `common` would look at the whole vocabulary; not what a
// request asks for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/request.h"
#include "llama/sampling/candidates.h"
#include "llama/sampling/row_sampler.h"
#include "llama/sampling/token_constraint.h"
#include "sampling.h"

namespace luce::llama {

// What of the chain lies before its first cut, and that cut.
struct ChainShape {
    FirstCut cut;
    std::optional<float> temperature_alone;  // the chain has no other link than the draw
    Tokens biased;                           // by logit_bias or the vocabulary, each once
    std::size_t n_penalized = 0;             // the last so many tokens are; 0: no penalties

    // The link before the last that draws too, and how it is made with a seed.
    struct Draw {
        int link;
        std::function<llama_sampler*(std::uint32_t seed)> make;
    };
    std::optional<Draw> early_draw;

    std::uint64_t n_least = 0;  // before so many tokens …
    Tokens ends;                // … none of these is chosen, if there is another
};

class ChainSampler final : public RowSampler {
public:
    // `chain` has neither grammar nor budget; `constraint` may be none.
    ChainSampler(common_sampler_ptr chain, ChainShape shape, std::unique_ptr<TokenConstraint> constraint,
                 const LlamaDecoder& decoder, const engine::SamplingArgs& sampling);

    // Bring the state to where it is after the prompt. Throws what llama.cpp's grammar throws.
    Result<void> accept_prompt(const engine::Request& request, std::int32_t n_remembered);

protected:
    Result<Token> choose(std::span<const float> logits) override;
    Result<Token> accept(Token token) override;

private:
    std::uint32_t seed_of_draw() const;
    void reseed();
    void skip_draw();
    Result<Token> choose_any(std::span<const float> logits);
    Result<Token> choose_other_than_ends(std::span<const float> logits);
    Result<Token> choose_freely(std::span<const float> logits);
    Result<Token> choose_constrained(std::span<const float> logits);
    Result<Token> choose_forced(Token forced, float logit);
    Result<Token> choose_from_masked(std::span<const float> logits);
    Result<Token> apply_chain(llama_token_data_array& tokens, int first_link);
    std::span<const Token> find_touched();
    Result<void> accept(Token token, bool is_generated);

    common_sampler_ptr sampler_;
    const ChainShape shape_;
    std::unique_ptr<TokenConstraint> constraint_;
    std::uint64_t seed_;
    bool draws_;
    Candidates candidates_;
    Tokens last_;  // accepted, as many as are penalized, in a ring
    std::size_t next_last_ = 0;
    Tokens touched_;  // of the choice that is made
    std::vector<float> terms_;
    std::vector<float> without_ends_;  // a row, while the text may not end
    std::uint64_t n_drawn_ = 0;
    double cpu_s_ = 0;  // of the token that is chosen and accepted within a constraint
};

}  // namespace luce::llama
