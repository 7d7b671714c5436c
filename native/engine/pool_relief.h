// PoolReliever: the one place that helps at run time where a device has no memory left for a computation. Texts go to
// the host, the pool is made smaller, and the texts come back. What this cannot help restarts with a smaller pool
// (supervisor/engine/oom_recovery.py).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "base/result.h"
#include "engine/admission.h"
#include "engine/decoder.h"
#include "engine/events.h"
#include "memory/manager/kv_cache_manager.h"

namespace luce::engine {

// What helps a device that has no memory left for a computation: a smaller pool. REQUIRES of shrink(): can_shrink(),
// and nothing is kept in the pool.
struct PoolRelief {
    std::function<bool()> can_shrink;
    std::function<Result<void>()> shrink;  // after an error nothing can be computed any more
    // What else computes on the device and was refused memory since the last time: requests go on without it.
    std::function<std::optional<Error>()> take_shortage;
};

class PoolReliever {
public:
    // All must outlive it. Without `relief` it can do nothing.
    PoolReliever(std::optional<PoolRelief> relief, const Decoder& decoder, memory::KvCacheManager& memory,
                 Admission& admission)
        : relief_(std::move(relief)), decoder_(decoder), memory_(memory), admission_(admission) {}

    bool can_help() const;
    std::optional<Error> take_shortage() const;

    // REQUIRES: can_help(), and no lane runs. False: the device cannot be computed with any more. The suspended
    // requests go on, or have failed where a smaller pool could not be had.
    bool relieve(const Error& why, std::vector<Event>& events);

private:
    Result<void> empty_pool();

    std::optional<PoolRelief> relief_;
    const Decoder& decoder_;
    memory::KvCacheManager& memory_;
    Admission& admission_;
};

}  // namespace luce::engine
