// The part of Engine that helps itself where a device has no memory left for a computation: all texts go to the host,
// the pool is made smaller, and the texts come back.
#include <algorithm>
#include <string>

#include "base/log.h"
#include "engine/engine.h"

namespace luce::engine {

// Whether the call has been dealt with: its requests go on, or have failed.
bool Engine::relieve(const PlannedCall& call, const Error& why, std::vector<Event>& events) {
    if (!config_.pool_relief || !memory_.is_bounded() || !config_.pool_relief->can_shrink()) return false;
    const std::int32_t n_before = decoder_.limits().n_pool;
    const auto is_called = [&](LaneId lane) {
        return std::any_of(call.begin(), call.end(), [&](const PlannedSlice& planned) { return planned.lane == lane; });
    };
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
        const auto lane = static_cast<LaneId>(i);
        if (lanes_[i]) suspend(lane, !is_called(lane));
    }
    Result<void> relieved = memory_.leave_device();
    if (!relieved) {
        log_warn("texts that ran have to be computed again: " + relieved.error().text);
        for (Suspended& suspended : suspended_) {
            memory_.let_go(suspended.memory);
            suspended.memory.is_held = false;
        }
        relieved = memory_.leave_device();
    }
    if (relieved) {
        relieved = config_.pool_relief->shrink();
        if (!relieved) n_failed_calls_ = kMaxFailedCalls;
    }
    if (!relieved) {
        log_error(why.text + ", and a smaller pool could not be made: " + relieved.error().text);
        fail_suspended(why, events);
        return true;
    }
    memory_.note_pool();
    events.emplace_back(PoolEvent{decoder_.limits().n_pool});
    log_warn(why.text + ": the pool is " + std::to_string(decoder_.limits().n_pool) + " tokens from now on, not " +
             std::to_string(n_before) + "; requests go on");
    return true;
}

// A draft that lacks memory drafts no more, and a scorer says nothing: requests need neither, but are the poorer for
// it.
void Engine::relieve_others(std::vector<Event>& events) {
    if (!config_.pool_relief) return;
    if (const std::optional<Error> shortage = config_.pool_relief->take_shortage()) relieve({}, *shortage, events);
}

void Engine::fail_suspended(const Error& error, std::vector<Event>& events) {
    for (Suspended& suspended : suspended_) {
        events.emplace_back(FailedEvent{suspended.generation->request().key, error});
        memory_.let_go(suspended.memory);
    }
    suspended_.clear();
}

}  // namespace luce::engine
