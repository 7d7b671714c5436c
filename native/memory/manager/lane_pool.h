// LanePool: deals the pool out to the lanes: room for what is computed next and, where residency is bounded, which
// pages of its text each lane sees. Knows lanes and pages; which pages matter is PageSelector's to find out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "memory/manager/kv_cache_types.h"
#include "memory/manager/lane.h"
#include "memory/residency/pool_limit.h"

namespace luce::memory {

class LanePool {
public:
    // All must outlive it. `residency`: null where lanes see all of their texts.
    LanePool(KvDevice& device, PageCache& cache, Lanes& lanes, const ResidencyConfig* residency, const Clock& clock)
        : device_(device), cache_(cache), lanes_(lanes), residency_(residency), clock_(clock) {}

    // Cells that are free, or that others can give up.
    std::int32_t n_available_cells() const;
    std::int32_t n_used_cells() const;

    // Cells of the lane that no other lane uses.
    std::int32_t n_private_cells(LaneId id, Position n_computed) const;

    // Before each call, of n_cells tokens: where cells' memory serves something else while they are not used, cells
    // that calls did not need for long may go.
    void follow_need(std::int32_t n_cells);

    // Have at least n free cells. Where residency is bounded, lanes give up pages for it. Errors: no_room, internal.
    Result<void> make_room(std::int32_t n_cells);

    // Pages that no lane sees are set aside, so that computations do not look at them: n_pages or a few more; all of
    // them where no lane runs.
    void set_idle_aside(std::size_t n_pages);

    // Of a prefix that is to be put in place: what there is room for beside the lane's next tokens, or its share.
    void choose_seen(PrefixMatch& prefix_match, std::span<const Token> text, const PinnedRanges& pins) const;

    // A page of the lane's text leaves its sight, and comes back into it.
    Result<void> offload(LaneId id, std::size_t index);
    Result<void> load(LaneId id, std::size_t index);

    // The page comes into the pool, seen by nobody yet; lanes give up pages for it.
    Result<void> place(Page& page);

    // The lane that sees most gives up a page. False: none can.
    Result<bool> offload_one();

    std::vector<PageView> views_of(const Lane& lane) const;

    // A lane has come or gone, or has named a page.
    void note_lanes_changed() { yieldable_.reset(); }

    std::vector<LanePages> pages_of_lanes() const;
    ResidencyStatus& totals() { return totals_; }
    const ResidencyStatus& totals() const { return totals_; }
    std::optional<std::string> check_integrity() const;

private:
    void make_cells(std::int32_t n_cells);
    std::int32_t n_yieldable_pages() const;
    std::int32_t count_yieldable_pages() const;

    KvDevice& device_;
    PageCache& cache_;
    Lanes& lanes_;
    const ResidencyConfig* residency_;
    const Clock& clock_;
    ResidencyStatus totals_;
    PoolLimit limit_;
    // n_yieldable_pages() as of that many n_lane_changes(); unset: see note_lanes_changed().
    mutable std::optional<std::pair<std::uint64_t, std::int32_t>> yieldable_;
};

}  // namespace luce::memory
