// Admission: who gets a lane next. Owns the requests that have none: those that wait, and those that were suspended and
// go on later. Knows room and rank; must not know how a request is computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "engine/decoder.h"
#include "engine/events.h"
#include "engine/generation.h"
#include "engine/lane_table.h"
#include "engine/waiting_queue.h"
#include "memory/manager/kv_cache_manager.h"

namespace luce::engine {

class Admission {
public:
    // All must outlive it. n_queue: most requests that wait beyond what the free lanes take.
    Admission(LaneTable& lanes, memory::KvCacheManager& memory, const Decoder& decoder, std::int32_t n_queue)
        : lanes_(lanes), memory_(memory), decoder_(decoder), n_queue_(n_queue) {}

    bool is_empty() const { return queue_.is_empty() && suspended_.empty(); }
    std::size_t n_waiting() const { return queue_.size(); }
    std::size_t n_suspended() const { return suspended_.size(); }

    // Whether someone could go on now, as far as the disk is concerned.
    bool wants_step() const;

    // `n_more` requests are to be pushed that are not yet. Errors: queue_full.
    Result<void> check_room(std::size_t n_more = 0) const;
    void push(WaitingRequest waiting) { queue_.push(std::move(waiting)); }

    // The stats of one that had no lane, and ends now.
    std::optional<GenerationStats> cancel(RequestKey key, double now_s);

    // Not while the device has no room for more lanes than run: else the one that was suspended would be resumed at
    // once, and the same call fail again, for ever.
    bool is_open() const { return !is_crowded_ || lanes_.n_requests() == 0; }

    // A suspended request goes on in the lane that is returned; none: there is none, or no room.
    std::optional<LaneId> resume_next();

    // The next request that waits and the lane for it, which it has to fill; none: nobody may begin.
    struct Admitted {
        LaneId lane{};
        WaitingRequest waiting;
    };
    std::optional<Admitted> take_next();

    // The lane's request gives it up and goes on later. is_sound: see KvCacheManager::suspend().
    void suspend(LaneId lane, bool is_sound);

    // The device had no room for the lanes of late: no more of them until one has ended.
    void note_crowded() { is_crowded_ = true; }
    void note_ended() { is_crowded_ = false; }

    // What suspended requests had in memory is computed again; or they fail.
    void let_go_of_suspended();
    void fail_suspended(const Error& error, std::vector<Event>& events);

    std::optional<std::string> check_integrity() const;

private:
    struct Suspended {
        std::unique_ptr<Generation> generation;
        memory::Suspended memory;
    };

    bool fits_beside_others(std::int32_t n_text, const Request& request) const;
    bool is_fetched(WaitingRequest& waiting);

    LaneTable& lanes_;
    memory::KvCacheManager& memory_;
    const Decoder& decoder_;
    std::int32_t n_queue_;
    WaitingQueue queue_;
    std::list<Suspended> suspended_;  // highest priority first, then oldest
    bool is_crowded_ = false;
};

}  // namespace luce::engine
