// TailPlan: at which positions of a prompt a tail is worth taking, and which tails of one text to keep. Pure.
//
// A tail can only be taken when exactly so much of the text has been computed, so each one cuts a prefill slice short
// and costs a copy of the model's state. They stand where texts depart (marks), and at intervals, so that an edit
// anywhere costs a bounded part of what lies behind it. The further from the end, the fewer: their number grows like
// the logarithm of the text's length.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/token.h"
#include "memory/page_tree.h"

namespace luce::memory {

inline constexpr Position kTailInterval = 2048;

struct PlannedTail {
    Position position = 0;
    TailKind kind = TailKind::interval;
};

// Where to cut the prompt's positions between `begin` (already there) and `end` (its own end), both excluded: in rising
// order. `marks` need not be sorted.
std::vector<PlannedTail> plan_tails(Position begin, Position end, std::span<const Position> marks);

struct StandingTail {
    Position position = 0;
    TailKind kind = TailKind::interval;
    bool is_fixed = false;  // pinned, or where texts have departed already: stays
};

// Which of the tails along one text to give up now that it has grown to `end`: indices into `tails`, which are in
// rising order of position.
std::vector<std::size_t> thin_tails(std::span<const StandingTail> tails, Position end);

}  // namespace luce::memory
