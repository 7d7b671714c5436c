// Token, Position, PositionSpan, LaneId: what every part counts in. A token is an id of the model's vocabulary, always
// >= 0 inside the program (the wire's -1 sentinel stays on the wire); a position is an index into one text, from 0.
#pragma once

#include <cstdint>
#include <vector>

namespace luce {

using Token = std::int32_t;
using Position = std::int32_t;
using Tokens = std::vector<Token>;

// Positions of one text, or a stretch of it.
struct PositionSpan {
    Position begin = 0;
    Position end = 0;  // one past the last
    bool operator==(const PositionSpan&) const = default;
};

// A running sequence's number, 0 <= lane < n_lanes.
enum class LaneId : std::int32_t {};

}  // namespace luce
