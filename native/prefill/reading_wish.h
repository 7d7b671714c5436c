// ReadingWish: how much of its prompt a request wants read. Plain values.
#pragma once

#include <vector>

#include "base/token.h"

namespace luce::prefill {

// Automatic: sparse where many tokens are to be computed, else full.
enum class Reading { full, sparse, automatic };

struct ReadingWish {
    Reading reading = Reading::full;
    double share = 0.2;                // of the tokens that memory does not have, so much is read; 0 < share <= 1
    Position n_from = 16384;           // automatic: from so many of them on
    std::vector<PositionSpan> keep;    // read in any case
    std::vector<PositionSpan> blocks;  // read whole or not at all
};

}  // namespace luce::prefill
