// The next token of a draft, from the drafter's logits: the likeliest. Knows no model.
#pragma once

#include <span>

#include "llama/decoding/logit_choice.h"
#include "speculation/draft_source.h"

namespace luce::llama {

// Appends it to the draft; false: no logit is finite, and nothing was appended.
inline bool add_likeliest(std::span<const float> logits, speculation::Draft& draft) {
    const Likeliest best = likeliest(logits);
    if (best.probability <= 0.0F) return false;
    draft.tokens.push_back(best.token);
    draft.confidence.push_back(best.probability);
    return true;
}

}  // namespace luce::llama
