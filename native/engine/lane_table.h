// LaneTable: which request runs in which lane. Owns the running requests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/generation.h"

namespace luce::engine {

class LaneTable {
public:
    explicit LaneTable(std::int32_t n_lanes) : lanes_(static_cast<std::size_t>(n_lanes)) {}

    // null: free
    std::unique_ptr<Generation>& at(LaneId lane) { return lanes_[static_cast<std::size_t>(lane)]; }
    const std::unique_ptr<Generation>& operator[](std::size_t i) const { return lanes_[i]; }
    std::size_t size() const { return lanes_.size(); }
    auto begin() const { return lanes_.begin(); }
    auto end() const { return lanes_.end(); }

    std::int32_t n_busy() const {
        return static_cast<std::int32_t>(
            std::count_if(begin(), end(), [](const auto& lane) { return lane != nullptr; }));
    }

    // Those that somebody waits for.
    std::int32_t n_requests() const { return n_busy() - (find_repair() ? 1 : 0); }

    std::optional<LaneId> find_repair() const { return find(kRepairKey); }

    bool has_decoding() const {
        return std::any_of(begin(), end(), [](const auto& lane) { return lane && !lane->is_prefilling(); });
    }

    std::optional<LaneId> find_free() const {
        for (std::size_t i = 0; i < size(); ++i) {
            if (!lanes_[i]) return static_cast<LaneId>(i);
        }
        return std::nullopt;
    }

    std::optional<LaneId> find(RequestKey key) const {
        for (std::size_t i = 0; i < size(); ++i) {
            if (lanes_[i] && lanes_[i]->request().key == key) return static_cast<LaneId>(i);
        }
        return std::nullopt;
    }

    // Of lowest priority, the newest. REQUIRES: n_busy() > 0.
    LaneId lowest_ranked() const {
        std::optional<std::size_t> lowest;
        for (std::size_t i = 0; i < size(); ++i) {
            if (lanes_[i] && (!lowest || rank(*lanes_[i]) > rank(*lanes_[*lowest]))) lowest = i;
        }
        return static_cast<LaneId>(*lowest);
    }

    // What comes first has the lower one: higher priority, then older.
    static std::pair<std::int64_t, std::uint64_t> rank(const Generation& g) {
        if (g.is_repair()) return {std::numeric_limits<std::int64_t>::max(), g.arrival()};
        return {-std::int64_t{g.request().priority}, g.arrival()};
    }

private:
    std::vector<std::unique_ptr<Generation>> lanes_;
};

}  // namespace luce::engine
