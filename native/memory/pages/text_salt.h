// TextSalt: sets texts of equal tokens apart in memory. From a position on a text has other names there than its
// tokens, so nothing that has another salt, or none, finds its pages: not in the pool, the host or on disk, be it to
// save time or to be spared making them. What stands before the position is common to all. Pure.
#pragma once

#include <cstdint>

#include "base/token.h"

namespace luce::memory {

inline constexpr Token kFirstSaltedName = 1 << 30;  // above every vocabulary's ids

struct TextSalt {
    std::uint64_t value = 0;
    Position from = 0;
    bool operator==(const TextSalt&) const = default;
};

// `names`: those of a text without salt. The first ones behind `from` change, by SHA-256.
Tokens salted(Tokens names, const TextSalt& salt);

}  // namespace luce::memory
