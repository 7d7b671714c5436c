#include "memory/checkpoints/checkpoint_plan.h"

#include <algorithm>
#include <bit>
#include <map>

namespace luce::memory {
namespace {

constexpr std::size_t kFirstMarks = 12;           // of a prompt, always taken: the next conversation departs at one
constexpr std::size_t kRecentMarks = 3;           // and of its last: the next turn does
constexpr std::size_t kCheckpointsPerOctave = 2;  // of distance from the end

// Distances up to one interval are octave 0, up to two 1, up to four 2, …
int octave_of(Position distance) {
    return std::bit_width(static_cast<std::uint32_t>(std::max<Position>(0, distance - 1) / kCheckpointInterval));
}

// At most kCheckpointsPerOctave of the positions (rising) in each octave, those furthest from the end: they are the
// ones that stay representative while the text grows.
std::vector<std::size_t> spread(std::span<const Position> positions, Position end) {
    std::map<int, std::size_t> n_taken;
    std::vector<std::size_t> chosen;
    for (std::size_t i = 0; i < positions.size(); ++i) {
        if (n_taken[octave_of(end - positions[i])]++ < kCheckpointsPerOctave) chosen.push_back(i);
    }
    return chosen;
}

}  // namespace

std::vector<PlannedCheckpoint> plan_checkpoints(Position begin, Position end, std::span<const Position> marks,
                                                std::optional<Position> turn) {
    std::vector<Position> inside;
    for (const Position mark : marks) {
        if (mark > begin && mark < end) inside.push_back(mark);
    }
    std::sort(inside.begin(), inside.end());
    inside.erase(std::unique(inside.begin(), inside.end()), inside.end());

    std::map<Position, CheckpointKind> chosen;
    const std::size_t n_first = std::min(kFirstMarks, inside.size());
    for (std::size_t i = 0; i < n_first; ++i) chosen[inside[i]] = CheckpointKind::mark;
    const std::size_t n_recent = std::min(kRecentMarks, inside.size());
    for (std::size_t i = inside.size() - n_recent; i < inside.size(); ++i) chosen[inside[i]] = CheckpointKind::mark;
    for (const std::size_t i : spread(inside, end)) chosen[inside[i]] = CheckpointKind::mark;
    if (turn && *turn > begin && *turn < end) chosen[*turn] = CheckpointKind::turn;

    std::vector<Position> grid;
    for (Position at = (begin / kCheckpointInterval + 1) * kCheckpointInterval; at < end; at += kCheckpointInterval)
        grid.push_back(at);
    for (const std::size_t i : spread(grid, end)) {
        const auto near = chosen.lower_bound(grid[i] - kCheckpointInterval / 2);
        const bool is_covered = near != chosen.end() && near->first <= grid[i] + kCheckpointInterval / 2;
        if (!is_covered && end - grid[i] > kCheckpointInterval / 2) chosen.emplace(grid[i], CheckpointKind::interval);
    }
    std::vector<PlannedCheckpoint> planned;
    for (const auto& [position, kind] : chosen) planned.push_back({position, kind});
    return planned;
}

std::vector<std::size_t> thin_checkpoints(std::span<const ExistingCheckpoint> checkpoints, Position end) {
    std::vector<std::size_t> loose;
    std::vector<Position> positions;
    std::size_t n_recent = 0;
    for (std::size_t i = checkpoints.size(); i-- > 0;) {
        if (checkpoints[i].is_fixed) continue;
        // The last turn's marks and ends are where the next one departs.
        if (checkpoints[i].kind != CheckpointKind::interval && n_recent < kRecentMarks + 1) {
            ++n_recent;
            continue;
        }
        loose.push_back(i);
    }
    std::reverse(loose.begin(), loose.end());
    for (const std::size_t i : loose) positions.push_back(checkpoints[i].position);
    const std::vector<std::size_t> kept = spread(positions, end);
    std::vector<std::size_t> given_up;
    for (std::size_t i = 0; i < loose.size(); ++i) {
        if (!std::binary_search(kept.begin(), kept.end(), i)) given_up.push_back(loose[i]);
    }
    return given_up;
}

}  // namespace luce::memory
