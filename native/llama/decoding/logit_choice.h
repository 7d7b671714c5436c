// What a row of logits says by itself: its largest entry and its probabilities. Knows no model and no sampling state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/decoder.h"
#include "speculation/trees/draft_tree.h"

namespace luce::llama {

Error no_finite_logits();

// The first token with the largest logit. Errors: internal (no logit is finite).
Result<Token> argmax(std::span<const float> logits);

struct Likeliest {
    Token token = 0;
    float probability = 0;  // at temperature 1; 0: no logit is finite
};

// argmax() with its probability. Terms below e^-16 of the largest are left out of the sum: it is for drafts, whose
// probabilities are not calibrated anyway.
Likeliest likeliest(std::span<const float> logits);

// The n likeliest tokens (fewer where others are below e^-16 of the first), likeliest first, with their probabilities
// as likeliest() has them. None if no logit is finite.
std::vector<speculation::Candidate> likeliest_few(std::span<const float> logits, std::size_t n);

// The chosen token's log-probability first, then the n likeliest. None if there are no logits.
std::vector<engine::TokenLogprob> top_logprobs(std::span<const float> logits, Token chosen, std::int32_t n);

}  // namespace luce::llama
