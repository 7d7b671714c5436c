// Lane: what the memory notes of a running text, and Lanes, all that run. Plain state: the classes beside this one work
// on it, each on the fields that its comment names.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "memory/manager/kv_cache_types.h"

namespace luce::memory {

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
    Page* page = nullptr;         // the last full page; its path is the lane's
    std::vector<LanePage> pages;  // the path, from the first
    Position n_prompt = 0;
    PinnedRanges pins;
    bool is_lost = false;   // its cells could not be found: nothing more is named or kept
    std::size_t n_out = 0;  // pages that it does not see: LanePool's
    ConversationRef conversation;
    std::vector<SnapshotPoint> snapshots;

    // CheckpointTaker's.
    std::vector<PlannedCheckpoint> checkpoints;  // still to be taken, in rising order
    std::optional<LateCheckpoint> late_checkpoint;

    // PageSelector's.
    bool is_watched = false;              // by the scorer
    Position chosen_at = -1;              // tokens computed when pages were last asked for, or all were seen
    std::size_t n_scoring = 0;            // pages whose scores are being found; 0: none are
    std::deque<PageMove> moves;           // of the last choice, still to be made
    std::optional<std::size_t> arriving;  // a page that is on its way into the pool for it
};

class Lanes {
public:
    Lane& at(LaneId id) { return *lanes_.at(id); }
    const Lane& at(LaneId id) const { return *lanes_.at(id); }
    bool runs(LaneId id) const {
        const auto it = lanes_.find(id);
        return it != lanes_.end() && it->second.has_value();
    }
    void open(LaneId id, Lane lane) { lanes_[id] = std::move(lane); }
    void close(LaneId id) { lanes_[id].reset(); }
    std::int32_t n_running() const {
        return static_cast<std::int32_t>(
            std::count_if(lanes_.begin(), lanes_.end(), [](const auto& entry) { return entry.second.has_value(); }));
    }

    // visit(id, lane), of those that run.
    template <typename Visit>
    void for_each(const Visit& visit) const {
        for (const auto& [id, lane] : lanes_) {
            if (lane) visit(id, *lane);
        }
    }

private:
    std::map<LaneId, std::optional<Lane>> lanes_;
};

// A purely recurrent model has no rows: its pages are names alone.
inline bool has_cells(const KvDevice& device) { return device.traits().row_bytes > 0; }

inline std::span<const Token> part(std::span<const Token> text, Position begin, Position end) {
    return text.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

}  // namespace luce::memory
