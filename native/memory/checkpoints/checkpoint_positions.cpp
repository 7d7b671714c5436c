#include "memory/checkpoints/checkpoint_positions.h"

#include <new>

namespace luce::memory {

std::shared_ptr<Bytes>& CheckpointPositions::at(LaneId lane) {
    const auto i = static_cast<std::size_t>(lane);
    if (i >= points_.size()) points_.resize(i + 1);
    return points_[i];
}

Result<void> CheckpointPositions::keep(LaneId lane) {
    try {
        std::shared_ptr<Bytes>& point = at(lane);
        // The last one's bytes may still be on their way; then they stay their reader's.
        if (!point || point.use_count() > 1) point = std::make_shared<Bytes>();
        if (Result<void> saved = device_.save_point(lane, *point, point); !saved) {
            point.reset();
            return saved;
        }
        return {};
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory, "no memory for a copy of the lane's state"};
    }
}

Result<void> CheckpointPositions::go_back(LaneId lane, Position begin) {
    const std::shared_ptr<Bytes>& point = at(lane);
    if (!point) return Error{ErrorCode::internal, "the lane's state was not kept"};
    return device_.return_to(lane, begin, *point);
}

}  // namespace luce::memory
