// SnapshotSlots: makes the numbered snapshots out of running and ended texts, and finds the way back to one. The pins
// are Slots' (snapshots/slots.h).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include "base/result.h"
#include "memory/manager/checkpoint_taker.h"
#include "memory/manager/lane.h"

namespace luce::memory {

class SnapshotSlots {
public:
    // All must outlive it.
    SnapshotSlots(KvDevice& device, PrefixTree& tree, PageCache& cache, Lanes& lanes, CheckpointTaker& checkpoints,
                  Slots& slots, EvictionPolicy& policy)
        : device_(device),
          tree_(tree),
          cache_(cache),
          lanes_(lanes),
          checkpoints_(checkpoints),
          slots_(slots),
          policy_(policy) {}

    // Where the lane's text stood at `position`, as something that can be pinned. Errors: unsupported, no_room,
    // out_of_memory, internal.
    Result<Slot> place_at(LaneId id, std::span<const Token> text, Position n_computed, Position position,
                          std::span<const float> logits);

    // The lane's planned snapshots up to n_computed.
    std::vector<SnapshotOutcome> advance(LaneId id, std::span<const Token> text, Position n_computed,
                                         std::span<const float> logits);

    // Keep in a slot what a lane or an ended request has computed, the second also as a range of keys and values
    // alone. A request's owner is its key. Errors as PROTOCOL.md has them for the verbs.
    Result<Position> snapshot_lane(std::int32_t number, LaneId id, std::span<const Token> text, Position n_computed);
    Result<Position> snapshot_ended(std::int32_t number, std::uint64_t owner);
    Result<void> thin_ended(std::int32_t number, std::uint64_t owner, Position begin, Position end);

    // A request has ended; its text can be kept in a slot for a while yet.
    void remember(std::uint64_t owner, Page& page, std::span<const Token> rest);
    void forget_all_ended();

    // The prefix that a request names by slots: exactly what it says, or an error (as KvCacheManager::begin has them).
    Result<PrefixMatch> restore(std::span<const Token> text, const MemoryRequest& request, bool needs_logits) const;

private:
    struct Ended {
        std::uint64_t owner = 0;
        Page* page = nullptr;
        Tokens rest;
    };
    // What the chain of slots says, as one text, and its last link.
    struct Chain {
        const Slot* last = nullptr;
        std::int32_t number = 0;
        Tokens text;
    };

    void forget(const Ended& ended);
    Result<Slot> find_ended(std::uint64_t owner);
    Result<Checkpoint*> checkpoint_within(Page& last, Checkpoint* behind, Page& page, Position n_rest);
    Result<Chain> chain_of(const MemoryRequest& request) const;
    Error no_state_at(Position position, const char* what) const;
    static Page& page_at(Page& last, Position position);

    KvDevice& device_;
    PrefixTree& tree_;
    PageCache& cache_;
    Lanes& lanes_;
    CheckpointTaker& checkpoints_;
    Slots& slots_;
    EvictionPolicy& policy_;
    std::deque<Ended> ended_;
};

}  // namespace luce::memory
