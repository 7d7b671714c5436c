#include "engine/pool_relief.h"

#include <string>

#include "base/log.h"

namespace luce::engine {

bool PoolReliever::can_help() const { return relief_ && memory_.is_bounded() && relief_->can_shrink(); }

std::optional<Error> PoolReliever::take_shortage() const { return relief_ ? relief_->take_shortage() : std::nullopt; }

Result<void> PoolReliever::empty_pool() {
    Result<void> left = memory_.leave_device();
    if (left) return left;
    log_warn("texts that ran have to be computed again: " + left.error().text);
    admission_.let_go_of_suspended();
    return memory_.leave_device();
}

bool PoolReliever::relieve(const Error& why, std::vector<Event>& events) {
    const std::int32_t n_before = decoder_.limits().n_pool;
    Result<void> relieved = empty_pool();
    bool is_sound = true;
    if (relieved) {
        relieved = relief_->shrink();
        is_sound = relieved.ok();
    }
    if (!relieved) {
        log_error(why.text + ", and a smaller pool could not be made: " + relieved.error().text);
        admission_.fail_suspended(why, events);
        return is_sound;
    }
    memory_.note_pool();
    events.emplace_back(PoolEvent{decoder_.limits().n_pool});
    log_warn(why.text + ": the pool is " + std::to_string(decoder_.limits().n_pool) + " tokens from now on, not " +
             std::to_string(n_before) + "; requests go on");
    return true;
}

}  // namespace luce::engine
