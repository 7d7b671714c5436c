// What the engine tells the memory of a request, and what it is told back: plain values. Knows no pages' contents and
// none of the classes that work with these.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "memory/checkpoints/checkpoint_plan.h"
#include "memory/eviction/eviction_policy.h"
#include "memory/manager/kv_device.h"
#include "memory/pages/page_cache.h"
#include "memory/pages/prefix_match.h"
#include "memory/pages/text_salt.h"
#include "memory/residency/pinned_ranges.h"
#include "memory/residency/residency.h"
#include "memory/snapshots/slots.h"

namespace luce::memory {

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
    bool has_other_ids = false;  // as in TierLimits
    bool reuses = true;          // whether begin() looks for a prefix where the request leaves it open
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
    std::optional<Position> turn;    // where the user's last message ends
    std::vector<PositionSpan> pins;  // what the lane is to see all the time
    std::optional<bool> reuse;
    std::optional<Position> n_reuse_most;  // positions that may be taken from memory; unset: all
    std::optional<TextSalt> salt;          // of the text as it comes: its names have it already
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
    Position n_computed = 0;               // it goes on from here at the most
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
    std::size_t n_aside_pages = 0;
    std::int32_t n_spanned_cells = 0;  // by a computation
    std::size_t page_bytes = 0;
    std::size_t tail_bytes = 0;
};

}  // namespace luce::memory
