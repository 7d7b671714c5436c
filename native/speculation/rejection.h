// Rejection sampling: a token that was drafted by a draw from a distribution q is kept with probability
// min(1, p(x) / q(x)), else replaced by a draw from what p has more than q. What comes out is distributed as p,
// whatever q is, provided that neither the draw nor the choice to verify it knew more than what stands before the
// token.
//
// Sources: "Fast Inference from Transformers via Speculative Decoding" (Leviathan et al., 2023); "Accelerating Large
// Language Model Decoding with Speculative Sampling" (Chen et al., 2023).
//
// Pure: knows neither models nor requests. The random numbers of a request's i-th generated token follow from its seed
// and i alone, so that a request that is taken up again goes on with the same ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/token.h"

namespace luce::speculation {

struct TokenProbability {
    Token token = 0;
    float probability = 0;
};

// Each token once; one that is not in it has probability 0. Adds up to 1, as far as floats do.
using Distribution = std::vector<TokenProbability>;

struct DrawnToken {
    Token token = 0;
    std::span<const TokenProbability> from;  // holds the token
};

// What a random number is for: each has a stream of its own.
enum class Draw : std::uint64_t { draft, keep, replace };

// In [0, 1).
double uniform_at(std::uint64_t seed, std::uint64_t index, Draw draw);

// The token in whose share of the whole the uniform number falls. REQUIRES: one probability is above 0.
Token draw_from(std::span<const TokenProbability> distribution, double uniform);

// The drafted token, or the one that comes instead: never the drafted one again. REQUIRES: p is a distribution.
Token keep_or_replace(std::span<const TokenProbability> p, const DrawnToken& drafted, double keep, double replace);

}  // namespace luce::speculation
