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

// What the running lanes occupy or are about to: a prompt counts whole from the start.
std::int64_t Engine::n_cells_used() const {
    std::int64_t n = 0;
    for (const auto& lane : lanes_) {
        if (lane) n += std::max(lane->n_computed(), lane->n_text());
    }
    return n;
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

bool Engine::fits_beside_others(std::int64_t n_text) const {
    const std::int32_t n_pool = decoder_.limits().n_pool;
    return n_busy() == 0 || n_cells_used() + n_text + room_to_run(n_pool, n_busy() + 1) <= n_pool;
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
void Engine::admit() {
    while (!suspended_.empty()) {
        if (!resume_first()) break;
    }
    while (!queue_.is_empty()) {
        const bool is_overtaking = !suspended_.empty();
        if (is_overtaking && queue_.front().priority <= suspended_.front().generation->request().priority) return;
        const std::optional<LaneId> lane = free_lane();
        if (!lane) return;
        const auto n_prompt = static_cast<std::int64_t>(queue_.front().prompt.size());
        if (!fits_beside_others(n_prompt)) return;
        WaitingRequest next = queue_.pop();
        at(*lane) = std::make_unique<Generation>(std::move(next.request), std::move(next.sampler), n_arrivals_++,
                                                 clock_.now_s());
    }
}

bool Engine::resume_first() {
    Suspended& first = suspended_.front();
    const std::optional<LaneId> lane = free_lane();
    if (!lane) return false;
    if (!fits_beside_others(first.generation->n_text())) return false;
    if (first.state) {
        if (const Result<void> loaded = decoder_.load(*lane, *first.state); !loaded) {
            log_warn("a suspended request's memory could not be put back and is computed again: " +
                     loaded.error().text);
            decoder_.forget(*lane);
            first.generation->mark_lost();
        }
    }
    at(*lane) = std::move(first.generation);
    suspended_.pop_front();
    return true;
}

void Engine::suspend(LaneId lane) {
    Suspended suspended;
    Result<LaneState> state = decoder_.save(lane);
    if (state) {
        suspended.state = std::move(state).value();
    } else {
        log_warn("a suspended request's memory could not be kept and will be computed again: " + state.error().text);
        at(lane)->mark_lost();
    }
    suspended.generation = std::move(at(lane));
    decoder_.forget(lane);
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
    return status;
}

std::optional<std::string> Engine::check_integrity() const {
    std::set<RequestKey> keys;
    std::int64_t n_cells = 0;
    for (const auto& lane : lanes_) {
        if (!lane) continue;
        if (!keys.insert(lane->request().key).second) return "a request runs in two lanes";
        if (lane->n_pending() < 1) return "a lane has nothing to compute and is not released";
        if (lane->n_text() > config_.n_ctx) return "a text is longer than the context";
        n_cells += lane->n_computed();
    }
    if (n_cells > decoder_.limits().n_pool) return "the lanes hold more cells than the pool has";
    for (const Suspended& suspended : suspended_) {
        if (!keys.insert(suspended.generation->request().key).second) return "a suspended request runs as well";
        if (!suspended.state && suspended.generation->n_computed() != 0) return "a lost memory is still counted";
    }
    return std::nullopt;
}

}  // namespace luce::engine
