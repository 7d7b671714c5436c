// The part of Engine that decides who gets a lane: admission, suspension and resumption, and the books about them.
#include <algorithm>
#include <new>
#include <set>
#include <string>

#include "base/log.h"
#include "engine/engine.h"

namespace luce::engine {
namespace {

// Cells that must be free beyond a lane's own before it is taken up while others run: without them it would be
// suspended again within a few tokens.
std::int32_t room_to_run(std::int32_t n_pool, std::int32_t n_lanes) { return std::min(n_pool / 8, 16 * n_lanes); }

}  // namespace

std::int32_t Engine::n_busy() const {
    return static_cast<std::int32_t>(
        std::count_if(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane != nullptr; }));
}

bool Engine::has_decoding_lane() const {
    return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane && !lane->is_prefilling(); });
}

std::optional<LaneId> Engine::free_lane() const {
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
        if (!lanes_[i]) return static_cast<LaneId>(i);
    }
    return std::nullopt;
}

// Whether a text of so many tokens can be computed to its end beside what the running lanes have and are about to
// compute: a prompt counts whole from the start. What the texts share is counted twice, so this errs on the safe side.
bool Engine::fits_beside_others(std::int32_t n_text, const Request& request) const {
    if (n_busy() == 0) return true;
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
    return memory_.n_least_cells(n_text, request.memory, 0) + room_to_run(n_pool, n_busy() + 1) <= n_available;
}

// REQUIRES: n_busy() > 0.
LaneId Engine::lowest_ranked_lane() const {
    std::optional<std::size_t> lowest;
    const auto rank = [this](std::size_t i) {
        return std::pair(-std::int64_t{lanes_[i]->request().priority}, lanes_[i]->arrival());
    };
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
        if (lanes_[i] && (!lowest || rank(i) > rank(*lowest))) lowest = i;
    }
    return static_cast<LaneId>(*lowest);
}

// Suspended requests come first: they were admitted earlier. Only a higher priority overtakes them.
void Engine::admit(std::vector<Event>& events) {
    // Else the suspended lane would be resumed at once, and the same call fail again, for ever.
    if (is_crowded_ && n_busy() > 0) return;
    while (!suspended_.empty()) {
        if (!resume_first()) break;
    }
    while (!queue_.is_empty()) {
        const bool is_overtaking = !suspended_.empty();
        if (is_overtaking && queue_.front().priority <= suspended_.front().generation->request().priority) return;
        const std::optional<LaneId> lane = free_lane();
        if (!lane) return;
        if (!is_fetched(queue_.first())) return;
        if (!fits_beside_others(static_cast<std::int32_t>(queue_.front().prompt.size()), queue_.front())) return;
        begin(*lane, queue_.pop(), events);
    }
}

bool Engine::is_fetched(WaitingRequest& waiting) {
    if (!waiting.has_asked) {
        waiting.fetch = memory_.fetch(waiting.request.prompt, waiting.request.memory);
        waiting.has_asked = true;
    }
    return waiting.fetch == nullptr || memory::KvCacheManager::is_done(*waiting.fetch);
}

bool Engine::wants_step() const {
    if (n_busy() > 0 || !suspended_.empty() || memory_.has_work_behind()) return true;
    if (queue_.is_empty()) return false;
    const std::shared_ptr<memory::KvCacheManager::Fetch>& fetch = queue_.first().fetch;
    return fetch == nullptr || memory::KvCacheManager::is_done(*fetch);
}

void Engine::begin(LaneId lane, WaitingRequest waiting, std::vector<Event>& events) {
    const std::shared_ptr<memory::KvCacheManager::Fetch> fetch = std::move(waiting.fetch);
    const bool generates = waiting.request.n_generate > 0;
    at(lane) = std::make_unique<Generation>(std::move(waiting.request), std::move(waiting.sampler), n_arrivals_++,
                                            clock_.now_s());
    Generation& g = *at(lane);
    const Result<memory::PrefillStart> begun =
        memory_.begin(lane, g.text(), g.request().memory, generates, fetch.get());
    if (!begun) {
        events.emplace_back(FailedEvent{g.request().key, begun.error()});
        forget(lane);
        at(lane).reset();
        return;
    }
    g.begin(begun.value());
    if (speculator_ != nullptr) speculator_->begin(lane, g.text(), g.n_computed());
    totals_.n_reused_tokens += static_cast<std::uint64_t>(g.n_computed());
    const memory::CheckpointBlob& known = begun.value().logits;
    const std::span<const float> logits = known ? std::span<const float>(known->logits) : std::span<const float>{};
    if (g.n_computed() > 0) remember(lane, logits, events);
    if (g.n_pending() > 0) return;
    // All of the prompt is known, and with it what comes next.
    if (!generates) {
        finish(lane, Finish::limit, logits, events);
        return;
    }
    if (const Result<void> recalled = decoder_.recall(logits); !recalled) {
        fail(lane, recalled.error(), events);
        return;
    }
    sample_first(0, lane, events);
}

bool Engine::resume_first() {
    Suspended& first = suspended_.front();
    const std::optional<LaneId> lane = free_lane();
    if (!lane) return false;
    if (!fits_beside_others(first.generation->n_text(), first.generation->request())) return false;
    first.generation->begin(memory_.resume(*lane, first.generation->text(), first.memory));
    at(*lane) = std::move(first.generation);
    if (speculator_ != nullptr) speculator_->begin(*lane, at(*lane)->text(), at(*lane)->n_computed());
    suspended_.pop_front();
    return true;
}

void Engine::suspend(LaneId lane, bool is_sound) {
    Suspended suspended;
    suspended.memory = memory_.suspend(lane, at(lane)->text(), at(lane)->n_computed(), is_sound);
    suspended.generation = std::move(at(lane));
    forget(lane);
    const auto rank = [](const Suspended& s) {
        return std::pair(-std::int64_t{s.generation->request().priority}, s.generation->arrival());
    };
    const auto later = std::find_if(suspended_.begin(), suspended_.end(),
                                    [&](const Suspended& other) { return rank(other) > rank(suspended); });
    suspended_.insert(later, std::move(suspended));
    ++totals_.n_suspensions;
}

EngineStatus Engine::status() const {
    EngineStatus status = totals_;
    status.n_lanes_busy = n_busy();
    status.n_queued = static_cast<std::int32_t>(queue_.size());
    status.n_suspended = static_cast<std::int32_t>(suspended_.size());
    for (const auto& lane : lanes_) status.n_cells_used += lane ? lane->n_computed() : 0;
    if (!memory_.refusal()) status.n_cells_used = memory_.n_used_cells();
    return status;
}

std::optional<std::string> Engine::check_integrity() const {
    std::set<RequestKey> keys;
    for (const auto& lane : lanes_) {
        if (!lane) continue;
        if (!keys.insert(lane->request().key).second) return "a request runs in two lanes";
        if (lane->n_pending() < 1) return "a lane has nothing to compute and is not released";
        if (lane->n_text() > config_.n_ctx) return "a text is longer than the context";
    }
    for (const Suspended& suspended : suspended_) {
        if (!keys.insert(suspended.generation->request().key).second) return "a suspended request runs as well";
    }
    return memory_.check_integrity();
}

}  // namespace luce::engine
