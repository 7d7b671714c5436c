// A draw from a whole row of logits by its temperature alone: what llama.cpp's chain of temperature and draw does,
// without a table of the vocabulary. Knows no other links and no state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/token.h"

namespace luce::llama {

// The token that the chain picks with this seed. `terms` is room to work in. REQUIRES: temperature > 0. Errors:
// internal (no logit is finite), bad_args (not at this temperature).
Result<Token> draw_by_temperature(std::span<const float> logits, float temperature, std::uint32_t seed,
                                  std::vector<float>& terms);

}  // namespace luce::llama
