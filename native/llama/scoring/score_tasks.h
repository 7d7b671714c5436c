// ScoreTasks: scores that are found beside what is computed, or between two computations, one task a lane at a time,
// one after the other since they share what they compute with. Must not know how scores are found. One thread only; it
// starts others where it works beside.
#pragma once

#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <vector>

#include "base/token.h"

namespace luce::llama {

class ScoreTasks {
public:
    using Task = std::function<std::vector<float>()>;

    // Otherwise each is done in end(), by the thread that calls it.
    explicit ScoreTasks(bool beside = true) : policy_(beside ? std::launch::async : std::launch::deferred) {}

    // REQUIRES: none of this lane is under way. What the task uses must live until it has ended or was forgotten.
    void begin(LaneId lane, Task task);

    // Waits for it. REQUIRES: it was begun.
    std::vector<float> end(LaneId lane);

    void forget(LaneId lane) { under_way_.erase(lane); }

private:
    std::launch policy_;
    std::mutex in_use_;
    std::map<LaneId, std::future<std::vector<float>>> under_way_;  // last: those are waited for
};

}  // namespace luce::llama
