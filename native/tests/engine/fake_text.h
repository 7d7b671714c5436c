// The arithmetic model's texts: what it says after each. Knows neither cells nor lanes.
#pragma once

#include <cstdint>

#include "base/token.h"
#include "engine/request.h"

namespace luce::tests {

inline constexpr std::int32_t kVocab = 1000;
inline constexpr Token kEndToken = 999;
inline constexpr std::uint64_t kHashStart = 1469598103934665603ULL;

inline std::uint64_t hash_on(std::uint64_t h, Token token) {
    return (h ^ static_cast<std::uint64_t>(token)) * 1099511628211ULL;
}

inline std::uint64_t hash_text(const Tokens& text) {
    std::uint64_t h = kHashStart;
    for (const Token token : text) h = hash_on(h, token);
    return h;
}

// What the fake model says after a text of this hash, never the end token.
inline Token next_of(std::uint64_t hash) { return static_cast<Token>(hash % (kVocab - 1)); }
inline Token next_token(const Tokens& text) { return next_of(hash_text(text)); }

// What the last token of a text of this hash reads of a mixture's experts.
inline engine::ExpertReads reads_of(std::uint64_t hash) {
    const auto n_misses = static_cast<std::int64_t>(hash % 5);
    return {8 - n_misses, n_misses};
}

}  // namespace luce::tests
