// The next token of a draft, from the drafter's logits: the likeliest, or one that is drawn. Knows no model.
#pragma once

#include <span>

#include "speculation/draft_source.h"

namespace luce::llama {

// Appends it to the draft; false: no logit is finite, and nothing was appended. Drawn tokens come from few candidates,
// so that what they were drawn from stays short: rejection sampling is exact for whatever that is.
bool add_token(std::span<const float> logits, const speculation::DraftAsk& ask, speculation::Draft& draft);

// What is drawn from: at most kMostCandidates tokens, likeliest first; none: no logit is finite.
inline constexpr std::size_t kMostCandidates = 32;

// By the request's temperature. A drafter knows less than its target, so its distribution is flatter: drawn a little
// sharper it has more in common with the target's. At temperature 1, packaged model and drafter, drawn at 1, 0.8, 0.6:
// copies 0.850, 0.871, 0.885; edits 0.838, 0.858, 0.870; code 0.505, 0.510, 0.505. A drafter as good as its target
// would be best at 1.
inline constexpr float kDraftTemperature = 0.8F;
speculation::Distribution drawn_from(std::span<const float> logits, const speculation::DrawRule& rule);

}  // namespace luce::llama
