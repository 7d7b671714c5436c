// Contexts that are told apart by what costs depend on: up to a thousand tokens, and each doubling of that.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace luce::speculation {

inline constexpr std::int32_t kFirstOctave = 1024;  // tokens
inline constexpr std::size_t kContexts = 8;         // the last one is open

inline std::size_t context_octave(std::int32_t n_tokens) {
    const auto octaves = static_cast<std::uint32_t>(std::max(n_tokens, 0) / kFirstOctave);
    return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(octaves)), kContexts - 1);
}

}  // namespace luce::speculation
