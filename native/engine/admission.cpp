#include "engine/admission.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

namespace luce::engine {
namespace {

// Cells that must be free beyond a lane's own before it is taken up while others run: without them it would be
// suspended again within a few tokens.
std::int32_t room_to_run(std::int32_t n_pool, std::int32_t n_lanes) { return std::min(n_pool / 8, 16 * n_lanes); }

}  // namespace

Result<void> Admission::check_room(std::size_t n_more) const {
    // Lanes are filled at the next step: what a free one will take does not count as waiting.
    const std::size_t n_free = lanes_.size() - static_cast<std::size_t>(lanes_.n_requests());
    const std::size_t n_places = static_cast<std::size_t>(n_queue_) + (suspended_.empty() ? n_free : 0);
    if (queue_.size() + n_more < n_places) return {};
    return Error{ErrorCode::queue_full, "all lanes are taken and " + std::to_string(n_queue_) +
                                            " requests are waiting (--queue); try again when one has ended"};
}

std::optional<GenerationStats> Admission::cancel(RequestKey key, double now_s) {
    if (std::optional<WaitingRequest> waiting = queue_.remove(key)) {
        return cancelled_early(waiting->request);
    }
    const auto it = std::find_if(suspended_.begin(), suspended_.end(),
                                 [key](const Suspended& s) { return s.generation->request().key == key; });
    if (it == suspended_.end()) return std::nullopt;
    const GenerationStats stats = it->generation->stats(StopReason::cancel, now_s);
    memory_.let_go(it->memory);
    suspended_.erase(it);
    return stats;
}

// Whether a text of so many tokens can be computed to its end beside what the running lanes have and are about to
// compute: a prompt counts whole from the start. What the texts share is counted twice, so this errs on the safe side.
bool Admission::fits_beside_others(std::int32_t n_text, const Request& request) const {
    if (lanes_.n_busy() == 0) return true;
    const std::int32_t n_pool = decoder_.limits().n_pool;
    std::int64_t n_available = memory_.n_available_cells();
    if (memory_.refusal()) {
        n_available = n_pool;
        for (const auto& lane : lanes_) n_available -= lane ? lane->n_computed() : 0;
    }
    for (const auto& lane : lanes_) {
        if (lane == nullptr) continue;
        n_available -= memory_.n_least_cells(lane->n_pending(), lane->request().memory, lane->n_computed());
    }
    return memory_.n_least_cells(n_text, request.memory, 0) + room_to_run(n_pool, lanes_.n_busy() + 1) <= n_available;
}

// Suspended requests come first: they were admitted earlier. Only a higher priority overtakes them.
std::optional<LaneId> Admission::resume_next() {
    if (suspended_.empty()) return std::nullopt;
    Suspended& first = suspended_.front();
    const std::optional<LaneId> lane = lanes_.find_free();
    if (!lane || !fits_beside_others(first.generation->n_text(), first.generation->request())) return std::nullopt;
    first.generation->begin(memory_.resume(*lane, first.generation->names(), first.memory));
    lanes_.at(*lane) = std::move(first.generation);
    suspended_.pop_front();
    return lane;
}

std::optional<Admission::Admitted> Admission::take_next() {
    if (queue_.is_empty()) return std::nullopt;
    const bool is_overtaking = !suspended_.empty();
    if (is_overtaking && queue_.front().priority <= suspended_.front().generation->request().priority) {
        return std::nullopt;
    }
    const std::optional<LaneId> lane = lanes_.find_free();
    if (!lane || !is_fetched(queue_.first())) return std::nullopt;
    if (!fits_beside_others(static_cast<std::int32_t>(queue_.front().prompt.size()), queue_.front())) {
        return std::nullopt;
    }
    return Admitted{*lane, queue_.pop()};
}

bool Admission::is_fetched(WaitingRequest& waiting) {
    if (!waiting.has_asked) {
        waiting.fetch = memory_.fetch(waiting.request.names(), waiting.request.memory);
        waiting.has_asked = true;
    }
    return waiting.fetch == nullptr || memory::KvCacheManager::is_done(*waiting.fetch);
}

bool Admission::wants_step() const {
    if (!suspended_.empty()) return true;
    if (queue_.is_empty()) return false;
    const std::shared_ptr<memory::KvCacheManager::Fetch>& fetch = queue_.first().fetch;
    return fetch == nullptr || memory::KvCacheManager::is_done(*fetch);
}

void Admission::suspend(LaneId lane, bool is_sound) {
    std::unique_ptr<Generation>& running = lanes_.at(lane);
    Suspended suspended;
    suspended.memory = memory_.suspend(lane, running->names(), running->n_computed(), is_sound);
    suspended.generation = std::move(running);
    const auto later = std::find_if(suspended_.begin(), suspended_.end(), [&](const Suspended& other) {
        return LaneTable::rank(*other.generation) > LaneTable::rank(*suspended.generation);
    });
    suspended_.insert(later, std::move(suspended));
}

void Admission::let_go_of_suspended() {
    for (Suspended& suspended : suspended_) {
        memory_.let_go(suspended.memory);
        suspended.memory.is_held = false;
    }
}

void Admission::fail_suspended(const Error& error, std::vector<Event>& events) {
    for (Suspended& suspended : suspended_) {
        events.emplace_back(FailedEvent{suspended.generation->request().key, error});
        memory_.let_go(suspended.memory);
    }
    suspended_.clear();
}

std::optional<std::string> Admission::check_integrity() const {
    std::set<RequestKey> keys;
    for (const auto& lane : lanes_) {
        if (lane && !keys.insert(lane->request().key).second) return "a request runs in two lanes";
    }
    for (const Suspended& suspended : suspended_) {
        if (!keys.insert(suspended.generation->request().key).second) return "a suspended request runs as well";
    }
    return std::nullopt;
}

}  // namespace luce::engine
