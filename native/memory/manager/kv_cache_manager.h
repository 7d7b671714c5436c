// KvCacheManager: what the engine asks of memory. It gives a lane the longest prefix of its text that is known, names
// the pages that the lane fills, takes checkpoints where texts will depart, and keeps slots. Composes the classes of
// this folder, each with one job; knows lanes, but neither requests' lives nor the model.
//
// A lane's life: begin() -> advance() after each computation -> end() or suspend(). Its text is the engine's: given
// with every call, and never shorter than before.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "memory/checkpoints/checkpoint_positions.h"
#include "memory/eviction/eviction_policy.h"
#include "memory/manager/checkpoint_taker.h"
#include "memory/manager/disk_exchange.h"
#include "memory/manager/kv_cache_types.h"
#include "memory/manager/kv_device.h"
#include "memory/manager/lane.h"
#include "memory/manager/lane_pins.h"
#include "memory/manager/lane_pool.h"
#include "memory/manager/page_selector.h"
#include "memory/manager/prefix_fetcher.h"
#include "memory/manager/prefix_placer.h"
#include "memory/manager/snapshot_slots.h"
#include "memory/manager/snapshot_transfer.h"
#include "memory/manager/text_board.h"

namespace luce::memory {

class KvCacheManager {
public:
    // All must outlive the memory; `disk` may be null.
    KvCacheManager(KvDevice& device, DiskStore* disk, MemoryConfig config, const Clock& clock,
                   EvictionKind eviction = EvictionKind::learned);

    // Why this model's memory cannot be cut into pages; then every text is computed from its start, and slots refuse.
    const std::optional<std::string>& refusal() const { return device_.traits().refusal; }

    // Whether a lane's text may be larger than the pool.
    bool is_bounded() const { return residency() != nullptr; }

    // What a request needs from disk before it can begin well. Null: nothing. Keep it until begin().
    using Fetch = PrefixFetch;
    std::shared_ptr<Fetch> fetch(std::span<const Token> text, const MemoryRequest& request);
    static bool is_done(const Fetch& fetch) { return fetch.is_done(); }

    // From where a request could go on, without reading anything.
    Reach reach(std::span<const Token> text) { return refusal() ? Reach{} : fetcher_.reach(text); }

    // How much of the text need not be computed. Only what is in memory counts: fetch() first.
    Position n_known(std::span<const Token> text, const MemoryRequest& request);

    // Errors: unsupported, bad_args.
    Result<void> check(const MemoryRequest& request, Position n_prompt) const;

    // Fill an empty lane. Errors, of requests that name a slot only: bad_slot, empty_slot, prefix_mismatch,
    // unsupported, no_room, internal; the lane is empty then.
    Result<PrefillStart> begin(LaneId lane, std::span<const Token> text, const MemoryRequest& request,
                               bool needs_logits, const Fetch* fetched = nullptr);

    // How many tokens the lane's next computation may hold: up to the next place where a checkpoint has to be taken.
    Position n_until_cut(LaneId lane, Position n_computed) const;

    // The lane has computed its text up to n_computed. `logits`: of the last position, or none.
    std::vector<SnapshotOutcome> advance(LaneId lane, std::span<const Token> text, Position n_computed,
                                         std::span<const float> logits);

    // Drafted tokens from `begin` on were wrong: the lane's last computation holds good up to there only. At most
    // n_rollback() of them. Errors: internal; the lane has to be given up then.
    Result<void> drop(LaneId lane, Position begin) { return device_.drop(lane, begin); }
    std::int32_t n_rollback() const { return refusal() ? 0 : device_.traits().n_rollback; }

    // Where more may be taken back: keep the lane's state before the computation, and put it back. What was right of
    // the computed tokens has to be computed again. Errors: internal, out_of_memory; after a failed go_back() the lane
    // has to be given up.
    bool can_go_back() const { return !refusal() && device_.traits().has_state(); }
    Result<void> keep(LaneId lane) { return points_.keep(lane); }
    Result<void> go_back(LaneId lane, Position n_computed) { return points_.go_back(lane, n_computed); }

    // The lane's request has ended, or was cancelled; `owner` names it for snapshot_ended(). A failed one (is_valid
    // false) leaves nothing behind but the pages it had filled.
    void end(LaneId lane, std::uint64_t owner, std::span<const Token> text, Position n_computed,
             std::span<const float> logits, bool is_valid);

    // `is_sound`: false after a computation that has failed: of a state that it may have changed nothing is kept.
    Suspended suspend(LaneId lane, std::span<const Token> text, Position n_computed, bool is_sound = true);
    PrefillStart resume(LaneId lane, std::span<const Token> text, const Suspended& suspended);
    void let_go(const Suspended& suspended);

    // Room for n more cells, and how much there could be. Where residency is bounded, lanes give up pages for it.
    Result<void> make_room(std::int32_t n_cells);
    std::int32_t n_available_cells() const { return pool_.n_available_cells(); }
    std::int32_t n_used_cells() const { return pool_.n_used_cells(); }  // by running lanes

    // Of n tokens that are still to be computed of a request's text, so many need room at once.
    std::int32_t n_least_cells(std::int32_t n_tokens, const MemoryRequest& request, Position n_computed) const {
        return pins_.n_least_cells(n_tokens, request, n_computed);
    }

    // Cells of the lane that no other lane uses: what suspending it would free.
    std::int32_t n_private_cells(LaneId lane, Position n_computed) const {
        return pool_.n_private_cells(lane, n_computed);
    }

    // Numbered snapshots: how they are made, and what they pin.
    SnapshotSlots& snapshots() { return snapshots_; }
    Slots& slots() { return slots_; }

    // A slot as the contents of a file, and back into a slot. Errors: bad_slot, empty_slot, unsupported, out_of_memory,
    // internal; bad_slot, no_room, bad_snapshot.
    Result<SnapshotContents> contents_of(std::int32_t slot) { return transfer_.contents_of(slot); }
    Result<Position> adopt(std::int32_t slot, const SnapshotContents& contents) {
        return transfer_.adopt(slot, contents);
    }
    TierLimits limits() const { return transfer_.limits(); }

    // Copies to host and disk ahead of need, a page at a time: its bytes, or 0. Whether lanes run makes a difference
    // (page_cache.h).
    bool has_to_copy(bool is_idle) const { return cache_.has_to_copy(is_idle); }
    std::size_t copy_next(bool is_idle) { return cache_.copy_next(is_idle); }
    std::size_t copy_owed() { return cache_.copy_owed(); }

    // Everything leaves the device. REQUIRES: no lane. Errors: no_room, internal.
    Result<void> leave_device() { return cache_.empty_pool(); }

    // The device has another number of cells since then. Returns whether they have become fewer.
    bool note_pool() { return device_.traits().n_cells < std::exchange(n_pool_, device_.traits().n_cells); }

    // Drop all that no slot and no request holds.
    void clear(bool with_disk);

    // What people see of the remembered texts, and ask to be kept or forgotten.
    TextBoard& texts() { return texts_; }

    // Files that come from elsewhere, or go there.
    DiskExchange& exchange() { return exchange_; }

    // Whether changes of pages are kept for a reader, and those that it has not read.
    void watch_pages(bool on);
    PageJournal& page_journal() { return tree_.journal(); }

    MemoryStatus status() const;
    EvictionCosts& eviction_costs() { return policy_.costs(); }
    std::size_t n_conversations() const { return policy_.n_conversations(); }
    std::optional<std::string> check_integrity() const;

private:
    const ResidencyConfig* residency() const { return config_.residency && !refusal() ? &*config_.residency : nullptr; }
    bool reuses(const MemoryRequest& request) const {
        return request.reuse.value_or(config_.reuses) && request.n_reuse_most != 0;
    }
    Position n_most(const Known& known, std::span<const Token> text, const MemoryRequest& request);
    void open(LaneId lane, const PrefixMatch& prefix_match, std::span<const Token> text, const MemoryRequest& request,
              ConversationRef conversation);
    void detach(LaneId lane);
    bool seal(LaneId id, Lane& lane, std::span<const Token> text);

    KvDevice& device_;
    DiskStore* disk_;
    CheckpointPositions points_;
    MemoryConfig config_;
    std::int32_t n_pool_;  // cells of the device, parked or not
    EvictionPolicy policy_;
    PrefixTree tree_;
    PageCache cache_;
    Slots slots_;
    Lanes lanes_;
    LanePins pins_;
    LanePool pool_;
    PageSelector selector_;
    CheckpointTaker checkpoints_;
    PrefixFetcher fetcher_;
    PrefixPlacer placer_;
    SnapshotSlots snapshots_;
    SnapshotTransfer transfer_;
    TextBoard texts_;
    DiskExchange exchange_;
};

}  // namespace luce::memory
