// The part of PageCache that serves lanes who do not see all of their text: its pages stay, in the host or in the pool,
// for as long as the lane runs.
#include <cassert>
#include <utility>

#include "memory/pages/page_cache.h"

namespace luce::memory {

Result<void> PageCache::enter_out(Page& page) {
    assert(page.is_kept());
    if (Result<void> pinned = pin(page); !pinned) {
        return Error{ErrorCode::no_room,
                     "--host-cache cannot hold what running requests have put out of the pool; give it more"};
    }
    ++page.n_out;
    update(page);
    return {};
}

Result<void> PageCache::offload(Page& page, LaneId lane) {
    assert(page.is_resident() && page.n_lanes > 0);
    if (Result<void> entered = enter_out(page); !entered) return entered;
    device_.hide(lane, page.cells);
    ++n_lane_changes_;
    if (--page.n_lanes > 0) return {};
    ++n_idle_;
    Result<void> evicted = evict(page);
    if (evicted) return evicted;
    device_.show(lane, page.cells);
    enter(page);
    leave_out(page, {});
    return evicted;
}

Result<void> PageCache::load_back(Page& page, LaneId lane) {
    assert(page.n_out > 0);
    if (Result<void> placed = place(page); !placed) return placed;
    device_.show(lane, page.cells);
    enter(page);
    leave_out(page, {});
    return {};
}

void PageCache::leave_out(Page& page, const ConversationRef& owner) {
    assert(page.n_out > 0);
    --page.n_out;
    own(page, owner);
    unpin(page);
}

void PageCache::set_keys(Page& page, PageKeys keys) {
    if (page.keys != nullptr) usage_.keys_bytes -= page.keys->size();
    page.keys = std::move(keys);
    if (page.keys != nullptr) usage_.keys_bytes += page.keys->size();
}

}  // namespace luce::memory
