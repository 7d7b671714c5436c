// What a row of logits says by itself: its largest entry and its probabilities. Knows no model and no sampling state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/decoder.h"

namespace luce::llama {

// The first token with the largest logit. Errors: internal (no logit is finite).
Result<Token> argmax(std::span<const float> logits);

// The chosen token's log-probability first, then the n likeliest. None if there are no logits.
std::vector<engine::TokenLogprob> top_logprobs(std::span<const float> logits, Token chosen, std::int32_t n);

}  // namespace luce::llama
