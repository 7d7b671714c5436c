// CheckpointPositions: the state of lanes as it was before their last computation, for models that can take back fewer
// positions than a step computes. One copy a lane, kept until the next one of the same lane.
#pragma once

#include <memory>
#include <vector>

#include "memory/manager/kv_device.h"

namespace luce::memory {

class CheckpointPositions {
public:
    // The device must outlive it.
    explicit CheckpointPositions(KvDevice& device) : device_(device) {}

    // Errors: internal, out_of_memory: the lane is as it was and cannot go back.
    Result<void> keep(LaneId lane);

    // The lane as it was at keep(), when it held positions up to `begin` only. Errors: internal; the lane has to be
    // forgotten then.
    Result<void> go_back(LaneId lane, Position begin);

private:
    std::shared_ptr<Bytes>& at(LaneId lane);

    KvDevice& device_;
    std::vector<std::shared_ptr<Bytes>> points_;  // of each lane; none: nothing was kept
};

}  // namespace luce::memory
