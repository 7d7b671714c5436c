// TailPlan: at which positions of a prompt a checkpoint is worth taking, and which checkpoints of one text to keep.
// Pure.
//
// A checkpoint can only be taken when exactly so much of the text has been computed, so each one cuts a prefill slice
// short and costs a copy of the model's state. They stand where texts depart (marks), and at intervals, so that an edit
// anywhere costs a bounded part of what lies behind it. The further from the end, the fewer: their number grows like
// the logarithm of the text's length.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/token.h"
#include "memory/pages/prefix_tree.h"

namespace luce::memory {

inline constexpr Position kCheckpointInterval = 2048;

struct PlannedCheckpoint {
    Position position = 0;
    CheckpointKind kind = CheckpointKind::interval;
};

// Where to cut the prompt's positions between `begin` (already there) and `end` (its own end), both excluded: in rising
// order. `marks` need not be sorted. `turn`: where the user's last message ends, if that is said.
std::vector<PlannedCheckpoint> plan_checkpoints(Position begin, Position end, std::span<const Position> marks,
                                                std::optional<Position> turn = std::nullopt);

struct ExistingCheckpoint {
    Position position = 0;
    CheckpointKind kind = CheckpointKind::interval;
    bool is_fixed = false;  // pinned, where texts have departed already, or the user's turn: stays
};

// Which of the checkpoints along one text to give up now that it has grown to `end`: indices into `checkpoints`, which
// are in rising order of position.
std::vector<std::size_t> thin_checkpoints(std::span<const ExistingCheckpoint> checkpoints, Position end);

}  // namespace luce::memory
