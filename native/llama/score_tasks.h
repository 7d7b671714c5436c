// ScoreTasks: scores that are found beside what is computed, one task a lane at a time, one after the other since they
// share what they compute with. Must not know how scores are found. One thread only; it starts others.
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

    // REQUIRES: none of this lane is under way. What the task uses must live until it has ended or was forgotten.
    void begin(LaneId lane, Task task);

    // Waits for it. REQUIRES: it was begun.
    std::vector<float> end(LaneId lane);

    void forget(LaneId lane) { under_way_.erase(lane); }

private:
    std::mutex in_use_;
    std::map<LaneId, std::future<std::vector<float>>> under_way_;  // last: those are waited for
};

}  // namespace luce::llama
