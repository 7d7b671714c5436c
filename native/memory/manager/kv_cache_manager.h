// KvCacheManager: what the engine asks of memory. It gives a lane the longest prefix of its text that is known, names
// the pages that the lane fills, takes checkpoints where texts will depart, and keeps slots. Composes the tree, the
// cache, the slots and the disk; knows lanes, but neither requests nor the model.
//
// A lane's life: begin() -> advance() after each computation -> end() or suspend(). Its text is the engine's: given
// with every call, and never shorter than before.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "memory/checkpoints/checkpoint_plan.h"
#include "memory/checkpoints/checkpoint_positions.h"
#include "memory/eviction/eviction_policy.h"
#include "memory/manager/kv_device.h"
#include "memory/pages/page_cache.h"
#include "memory/pages/prefix_match.h"
#include "memory/pages/prefix_tree.h"
#include "memory/residency/pinned_ranges.h"
#include "memory/residency/residency.h"
#include "memory/snapshots/slots.h"
#include "memory/snapshots/snapshot_file.h"

namespace luce::memory {

class DiskStore;
class PageScorer;

// Lanes need not see all of their texts: what the pool cannot hold lies in the host, and comes back when it matters.
struct ResidencyConfig {
    ResidencyRules rules;
    std::int32_t n_least = 0;             // cells without which a lane cannot go on; see least_cells()
    PageScorer* scorer = nullptr;         // must outlive the memory; null: the newest pages stay (LRU)
    std::vector<PositionSpan> pins = {};  // of every text
};

struct MemoryConfig {
    std::string identity;  // of the model and its KV types: texts of other identities are other texts
    std::size_t host_budget = 0;
    std::int32_t n_slots = 0;
    std::int32_t n_vocab = 0;
    bool reuses = true;  // whether begin() looks for a prefix where the request leaves it open
    std::optional<ResidencyConfig> residency = std::nullopt;  // unset: a lane sees all of its text
};

struct SnapshotPoint {
    Position position = 0;
    std::int32_t slot = 0;
};

// What a request says about memory.
struct MemoryRequest {
    std::optional<std::int32_t> restore_slot;
    std::optional<Position> restore_at;  // unset: as far as the slot goes
    std::vector<std::int32_t> chain;     // thin slots that extend restore_slot, in order
    std::vector<SnapshotPoint> snapshots;
    std::vector<Position> marks;
    std::vector<PositionSpan> pins;  // what the lane is to see all the time
    std::optional<bool> reuse;
};

struct PrefillStart {
    Position n = 0;  // positions that need not be computed
    Tier tier = Tier::none;
    Miss miss;
    std::optional<Position> restored;  // where a restore was asked for
    CheckpointBlob logits;             // whose logits are those of position n - 1; null: not known
};

struct SnapshotOutcome {
    SnapshotPoint point;
    std::optional<Error> error;
};

// A suspended text's place; let_go() or resume() ends it.
struct Suspended {
    Slot place;
    bool is_held = false;  // false: what is still there will be used, the rest computed again
    ConversationRef conversation;
    Position n_prompt = 0;
    std::vector<SnapshotPoint> snapshots;  // still to be taken
    std::vector<PlannedCheckpoint> checkpoints;
    PinnedRanges pins;
};

// Where the pages of a running text lie.
struct LanePages {
    LaneId lane{};
    std::int64_t n_resident = 0;  // that the lane sees
    std::int64_t n_host = 0;      // that it does not: in the host, perhaps in the pool for others
    std::int64_t n_disk = 0;      // of all of them, those with a copy there
};

// What bounded residency does; counts since the start, where nothing else is said.
struct ResidencyStatus {
    std::vector<LanePages> lanes;  // that run
    std::uint64_t n_moved_in = 0;
    std::uint64_t n_moved_out = 0;
    std::uint64_t n_bytes_in = 0;   // copied into the pool
    std::uint64_t n_bytes_out = 0;  // and out of it: most that leave have a copy already
    std::uint64_t n_choices = 0;    // made by scores
    std::uint64_t n_wanted = 0;     // pages that were chosen
    std::uint64_t n_found = 0;      // of these, in the pool already
    std::uint64_t n_unmade = 0;     // choices whose moves could not all be made
    double stall_s = 0;             // for which computing waited
};

struct MemoryStatus {
    CacheUsage cache;
    std::optional<ResidencyStatus> residency;  // unset: not bounded
    std::size_t n_tree_pages = 0;
    std::int32_t n_slots_used = 0;
    std::size_t page_bytes = 0;
    std::size_t tail_bytes = 0;
};

class KvCacheManager {
public:
    // All must outlive the memory; `disk` may be null.
    KvCacheManager(KvDevice& device, DiskStore* disk, MemoryConfig config, const Clock& clock,
                   EvictionKind eviction = EvictionKind::learned);
    ~KvCacheManager();

    // Why this model's memory cannot be cut into pages; then every text is computed from its start, and slots refuse.
    const std::optional<std::string>& refusal() const { return device_.traits().refusal; }

    // Whether a lane's text may be larger than the pool.
    bool is_bounded() const { return config_.residency.has_value() && !refusal(); }

    // What a request needs from disk before it can begin well. Null: nothing. Keep it until begin().
    class Fetch;
    std::shared_ptr<Fetch> fetch(std::span<const Token> text, const MemoryRequest& request);
    static bool is_done(const Fetch& fetch);
    static bool has_read(const Fetch& fetch);

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
    std::int32_t n_available_cells() const;
    std::int32_t n_used_cells() const;  // by running lanes

    // Of n tokens that are still to be computed of a request's text, so many need room at once.
    std::int32_t n_least_cells(std::int32_t n_tokens, const MemoryRequest& request, Position n_computed) const;

    // Cells of the lane that no other lane uses: what suspending it would free.
    std::int32_t n_private_cells(LaneId lane, Position n_computed) const;

    // Slots. Errors as PROTOCOL.md has them for the verbs.
    Result<Position> snapshot_lane(std::int32_t slot, LaneId lane, std::span<const Token> text, Position n_computed);
    Result<Position> snapshot_ended(std::int32_t slot, std::uint64_t owner);
    Result<void> thin_ended(std::int32_t slot, std::uint64_t owner, Position begin, Position end);
    std::optional<std::uint64_t> last_ended() const;
    Slots& slots() { return slots_; }

    // A slot as the contents of a file, and back into a slot. Errors: bad_slot, empty_slot, unsupported, out_of_memory,
    // internal; bad_slot, no_room, bad_snapshot.
    Result<SnapshotContents> contents_of(std::int32_t slot);
    Result<Position> adopt(std::int32_t slot, const SnapshotContents& contents);
    TierLimits limits() const;

    // Copies to host and disk while there is time: up to n_bytes. Whether more is left.
    bool work_behind(std::size_t n_bytes) { return cache_.write_behind(n_bytes); }
    bool has_work_behind() const { return cache_.has_unsaved(); }

    // Everything leaves the device. REQUIRES: no lane. Errors: no_room, internal.
    Result<void> leave_device() { return cache_.empty_pool(); }

    // The device has another number of cells since then. Returns whether they have become fewer.
    bool note_pool() { return device_.traits().n_cells < std::exchange(n_pool_, device_.traits().n_cells); }

    // Drop all that no slot and no request holds.
    void clear(bool with_disk);

    MemoryStatus status() const;
    EvictionCosts& eviction_costs() { return policy_.costs(); }
    std::size_t n_conversations() const { return policy_.n_conversations(); }
    std::optional<std::string> check_integrity() const;

private:
    struct LanePage {
        Page* page = nullptr;
        bool is_seen = true;
    };
    // A checkpoint whose file is written once the pages before it have scores.
    struct LateCheckpoint {
        Page* page = nullptr;
        Tokens rest;
        CheckpointBlob data;
    };
    struct Lane {
        Page* page = nullptr;                        // the last full page; its path is the lane's
        std::vector<LanePage> pages;                 // the path, from the first
        std::vector<PlannedCheckpoint> checkpoints;  // still to be taken, in rising order
        std::vector<SnapshotPoint> snapshots;
        Position n_prompt = 0;
        PinnedRanges pins;
        bool is_lost = false;                 // its cells could not be found: nothing more is named or kept
        bool is_watched = false;              // by the scorer
        std::size_t n_out = 0;                // pages that it does not see
        Position chosen_at = -1;              // tokens computed when pages were last asked for, or all were seen
        std::size_t n_scoring = 0;            // pages whose scores are being found; 0: none are
        std::deque<PageMove> moves;           // of the last choice, still to be made
        std::optional<std::size_t> arriving;  // a page that is on its way into the pool for it
        std::optional<LateCheckpoint> late_checkpoint;
        ConversationRef conversation;
    };
    struct Ended {
        std::uint64_t owner = 0;
        Page* page = nullptr;
        Tokens rest;
    };

    Known walk(std::span<const Token> text);
    Result<PrefixMatch> restore(std::span<const Token> text, const MemoryRequest& request, bool needs_logits);
    Position n_most(const Known& known, std::span<const Token> text, const MemoryRequest& request);
    Result<void> attach(LaneId lane, PrefixMatch& prefix_match, std::span<const Token> text, const PinnedRanges& pins);
    void detach(LaneId lane);
    void clear_the_way(const PrefixMatch& prefix_match, std::int32_t n_text);
    void choose_seen(PrefixMatch& prefix_match, std::span<const Token> text, const PinnedRanges& pins) const;
    PinnedRanges pins_of(const MemoryRequest& request) const;
    Result<void> check_pins(const MemoryRequest& request, Position n_prompt) const;
    std::vector<PageView> views_of(const Lane& lane) const;
    std::int32_t n_yieldable_pages() const;
    std::int32_t count_yieldable_pages() const;
    Result<bool> put_one_out();
    Result<void> offload(LaneId id, std::size_t index);
    Result<void> place(Page& page);
    Result<void> load_back(LaneId id, std::size_t index);
    bool outgrows_pool(const Lane& lane, Position n_computed) const;
    bool uses_scores() const { return is_bounded() && config_.residency->scorer != nullptr; }
    bool awaits_choice(const Lane& lane, Position n_computed) const;
    Position next_choice(const Lane& lane, Position n_computed) const;
    void watch_residency(LaneId id, std::span<const Token> text, Position n_computed);
    void ask_for_pages(LaneId id, std::span<const Token> text);
    void choose_pages_of(LaneId id, bool is_turn);
    void plan_moves_of(LaneId id, bool is_turn);
    void make_all_moves(LaneId id);
    void make_next_move(LaneId id);
    Result<bool> begin_scoring(LaneId id, std::span<const Token> text);
    void warn_of_moves(const Error& error);
    void open(LaneId lane, const PrefixMatch& prefix_match, std::span<const Token> text, const MemoryRequest& request,
              ConversationRef conversation);
    PrefillStart to_prefill_start(const PrefixMatch& prefix_match) const;
    bool seal(LaneId id, Lane& lane, std::span<const Token> text);
    Result<Checkpoint*> take_checkpoint(LaneId id, Page& page, std::span<const Token> text, Position n_computed,
                                        Position position, CheckpointKind kind, std::span<const float> logits);
    Result<Slot> place_at(LaneId id, std::span<const Token> text, Position n_computed, Position position,
                          std::span<const float> logits);
    Page& page_at(Page& last, Position position);
    Result<Checkpoint*> checkpoint_within(Page& last, Checkpoint* behind, Page& page, Position n_rest);
    void keep_checkpoint_here(LaneId id, std::span<const Token> text, Position n_computed, CheckpointKind kind,
                              std::span<const float> logits);
    void thin(Page& last, Position end);
    void remember(std::uint64_t owner, Page& page, std::span<const Token> rest);
    void forget_ended(const Ended& ended);
    Result<Slot> find_ended(std::uint64_t owner);
    void touch_disk(Page& last);
    void save_late_checkpoint(Lane& lane);
    bool has_foreign_disk() const;
    bool has_cells() const { return device_.traits().row_bytes > 0; }
    std::optional<std::string> check_lanes() const;
    std::vector<LanePages> pages_of_lanes() const;
    Lane& at(LaneId lane) { return *lanes_.at(lane); }

    KvDevice& device_;
    CheckpointPositions points_;
    DiskStore* disk_;
    MemoryConfig config_;
    std::int32_t n_pool_;  // cells of the device, parked or not
    EvictionPolicy policy_;
    PageTree tree_;
    PageCache cache_;
    Slots slots_;
    const Clock& clock_;
    ResidencyStatus residency_totals_;
    bool has_warned_of_moves_ = false;
    std::map<LaneId, std::optional<Lane>> lanes_;
    // n_yieldable_pages() as of that many n_lane_changes(); unset: a lane has come, gone or been lost since.
    mutable std::optional<std::pair<std::uint64_t, std::int32_t>> yieldable_;
    std::deque<Ended> ended_;
    bool has_warned_of_checkpoints_ = false;
    std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);  // what is read may come after us
};

}  // namespace luce::memory
