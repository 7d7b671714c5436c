// What the sampling of a request comes to: whether it is greedy, and which links that look back do something. Knows no
// sampler.
#pragma once

#include "records/records.h"

namespace luce::records {

// Below this temperature, dividing by it overflows; what is left there is the largest logit anyway.
inline constexpr float kMinTemperature = 1e-6F;

bool is_greedy(const SamplingArgs& sampling);
bool has_penalties(const SamplingArgs& sampling);
bool has_dry(const SamplingArgs& sampling);
bool is_ordered(const SamplingArgs& sampling, SamplerKind kind);

}  // namespace luce::records
