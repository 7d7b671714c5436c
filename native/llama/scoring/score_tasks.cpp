#include "llama/scoring/score_tasks.h"

#include <cassert>
#include <system_error>
#include <utility>

namespace luce::llama {

void ScoreTasks::begin(LaneId lane, Task task) {
    assert(!under_way_.contains(lane));
    const auto find = [this, task = std::move(task)] {
        const std::lock_guard lock(in_use_);
        return task();
    };
    try {
        under_way_[lane] = std::async(policy_, find);
    } catch (const std::system_error&) {
        under_way_[lane] = std::async(std::launch::deferred, find);  // no thread to be had: when it is asked for
    }
}

std::vector<float> ScoreTasks::end(LaneId lane) {
    const auto found = under_way_.find(lane);
    assert(found != under_way_.end());
    std::future<std::vector<float>> scores = std::move(found->second);
    under_way_.erase(found);
    return scores.get();
}

}  // namespace luce::llama
