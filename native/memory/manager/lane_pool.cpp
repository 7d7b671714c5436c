#include "memory/manager/lane_pool.h"

#include <algorithm>
#include <limits>

namespace luce::memory {
namespace {

// libllama looks at cells by 256; fewer idle ones cost nothing.
constexpr std::size_t kFewIdlePages = 256 / kPageSize;

// That are set aside before a computation beside running lanes: moving their rows costs it what some two thousand cells
// more would, and a few times only after a text has ended. A prompt's slices let twice as many be moved as they fill,
// so that the next one finds the lowest cells free.
constexpr std::size_t kPagesAStep = 16;

}  // namespace

std::int32_t LanePool::n_available_cells() const {
    if (!has_cells(device_)) return std::numeric_limits<std::int32_t>::max() / 2;
    return cache_.n_available_cells() + (residency_ != nullptr ? n_yieldable_pages() * kPageSize : 0);
}

// Of the device's cells: it may have a few more than the pool was asked to have, and has none while it is parked.
std::int32_t LanePool::n_used_cells() const {
    return has_cells(device_) ? device_.n_cells() - device_.n_free_cells() - cache_.n_idle_cells() : 0;
}

std::int32_t LanePool::n_private_cells(LaneId id, Position n_computed) const {
    if (device_.traits().refusal) return n_computed;
    if (!has_cells(device_)) return 0;
    const Lane& lane = lanes_.at(id);
    std::int32_t n_cells = n_computed - lane.page->end();
    for (const LanePage& held : lane.pages) n_cells += held.is_seen && held.page->n_lanes <= 1 ? kPageSize : 0;
    return n_cells;
}

void LanePool::set_idle_aside(std::size_t n_pages) {
    if (cache_.n_low_idle_pages() <= kFewIdlePages) return;
    cache_.set_idle_aside(lanes_.n_running() > 0 ? std::max(kPagesAStep, n_pages) : cache_.n_low_idle_pages());
}

// An idle text that is kept elsewhere comes back sooner than a step of experts; so those that lose nothing by it leave
// first, before cells come, and they do not keep cells from going.
void LanePool::make_cells(std::int32_t n_cells) {
    if (device_.n_more_cells() == 0 || cache_.make_room_unharmed(n_cells)) return;
    const std::int32_t n_missing = n_cells - device_.n_free_cells();
    device_.resize(PoolLimit::grown(device_.n_cells(), n_missing, device_.n_step_cells(), device_.traits().n_cells));
}

void LanePool::follow_need(std::int32_t n_cells) {
    const std::int32_t n_step = device_.n_step_cells();
    if (n_step == 0) return;
    const std::optional<std::int32_t> fewer = limit_.note_call(n_used_cells() + n_cells, device_.n_cells(), n_step);
    if (!fewer) return;
    const auto first = static_cast<Cell>(*fewer);
    if (!device_.is_seen_from(first) && cache_.clear_from(first)) device_.resize(*fewer);
}

Result<void> LanePool::make_room(std::int32_t n_cells) {
    if (device_.traits().refusal || !has_cells(device_)) return {};
    make_cells(n_cells);
    Result<void> room = cache_.make_room(n_cells);
    if (!room && residency_ != nullptr) {
        const double started_s = clock_.now_s();
        while (!room && room.error().code == ErrorCode::no_room) {
            const Result<bool> yielded = offload_one();
            if (!yielded) return yielded.error();
            if (!yielded.value()) return room;
            room = cache_.make_room(n_cells);
        }
        totals_.stall_s += clock_.now_s() - started_s;
    }
    if (room) cache_.clear_lowest_cells(n_cells);
    return room;
}

std::vector<PageView> LanePool::views_of(const Lane& lane) const {
    std::vector<PageView> views;
    views.reserve(lane.pages.size());
    for (std::size_t i = 0; i < lane.pages.size(); ++i) {
        views.push_back({lane.pages[i].is_seen, lane.pins.holds(i), lane.pages[i].page->score});
    }
    return views;
}

// Asked for with each computation, and the same after most of them, however long the texts: counted only when it may
// have changed.
std::int32_t LanePool::n_yieldable_pages() const {
    const std::uint64_t n_changes = cache_.n_lane_changes();
    if (!yieldable_ || yieldable_->first != n_changes) yieldable_ = {n_changes, count_yieldable_pages()};
    return yieldable_->second;
}

// What is shared would have to be offloaded by all.
std::int32_t LanePool::count_yieldable_pages() const {
    std::int32_t n_pages = 0;
    lanes_.for_each([&](LaneId, const Lane& lane) {
        if (lane.is_lost) return;
        const std::vector<PageView> views = views_of(lane);
        for (std::size_t i = 0; i < views.size(); ++i) {
            const bool is_private = views[i].is_seen && lane.pages[i].page->n_lanes == 1;
            n_pages += is_private && !has_to_stay(views, i, residency_->rules) ? 1 : 0;
        }
    });
    return n_pages;
}

// From the lane that sees most of those that can give something up, so that all come to have the same.
Result<bool> LanePool::offload_one() {
    std::optional<LaneId> largest;
    std::size_t most = 0;
    std::size_t index = 0;
    lanes_.for_each([&](LaneId id, const Lane& lane) {
        const std::size_t n_seen = lane.pages.size() - lane.n_out;
        if (lane.is_lost || n_seen <= most) return;
        const std::optional<std::size_t> first = first_to_go(views_of(lane), residency_->rules);
        if (!first) return;
        largest = id;
        most = n_seen;
        index = *first;
    });
    if (!largest) return false;
    if (Result<void> out = offload(*largest, index); !out) return out.error();
    return true;
}

Result<void> LanePool::offload(LaneId id, std::size_t index) {
    Lane& lane = lanes_.at(id);
    Page& page = *lane.pages[index].page;
    const bool has_copy = page.host != nullptr;
    if (Result<void> out = cache_.offload(page, id); !out) return out;
    if (!has_copy && page.host != nullptr) totals_.n_bytes_out += cache_.page_bytes();
    lane.pages[index].is_seen = false;
    ++lane.n_out;
    ++totals_.n_moved_out;
    return {};
}

// What lies idle in the pool makes way first, a page that is on its way to a lane among it; where even that does not
// do, a page that is in sight.
Result<void> LanePool::place(Page& page) {
    const bool comes = !page.is_resident();
    while (comes && cache_.n_available_cells() < kPageSize) {
        const Result<bool> yielded = offload_one();
        if (!yielded) return yielded.error();
        if (!yielded.value()) break;
    }
    if (Result<void> placed = cache_.place(page); !placed) return placed;
    if (comes) totals_.n_bytes_in += cache_.page_bytes();
    return {};
}

Result<void> LanePool::load(LaneId id, std::size_t index) {
    Lane& lane = lanes_.at(id);
    if (Result<void> placed = place(*lane.pages[index].page); !placed) return placed;
    if (Result<void> back = cache_.load_back(*lane.pages[index].page, id); !back) return back;
    lane.pages[index].is_seen = true;
    --lane.n_out;
    ++totals_.n_moved_in;
    return {};
}

// Of a prefix that is to be put in place: what there is room for beside the lane's next tokens, or its share.
void LanePool::choose_seen(PrefixMatch& prefix_match, std::span<const Token> text, const PinnedRanges& pins) const {
    if (residency_ == nullptr || !has_cells(device_)) return;
    const std::int32_t n_share = device_.traits().n_cells / (lanes_.n_running() + 1);
    const std::int32_t n_cells = std::max(cache_.n_available_cells(), std::min(n_share, n_available_cells()));
    const auto n_text = static_cast<std::int32_t>(text.size());
    const std::int32_t n_new = prefix_match.n_rest + std::min(n_text - prefix_match.n, n_cells / 2) + kPageSize;
    const auto n_most = static_cast<std::size_t>(std::max(0, n_cells - n_new) / kPageSize);
    std::vector<PageView> views;
    for (const Page* page : prefix_match.pages) views.push_back({false, pins.holds(views.size()), page->score});
    if (n_most < views.size()) prefix_match.seen = choose_pages(views, n_most, residency_->rules);
}

std::vector<LanePages> LanePool::pages_of_lanes() const {
    std::vector<LanePages> all;
    lanes_.for_each([&](LaneId id, const Lane& lane) {
        const auto n_pages = static_cast<std::int64_t>(lane.pages.size());
        const auto n_out = static_cast<std::int64_t>(lane.n_out);
        const auto n_disk = std::count_if(lane.pages.begin(), lane.pages.end(),
                                          [this](const LanePage& held) { return cache_.is_on_disk(*held.page); });
        all.push_back({id, n_pages - n_out, n_out, n_disk});
    });
    return all;
}

namespace {

std::optional<std::string> check_lane(const Lane& lane) {
    std::size_t n_out = 0;
    const Page* page = lane.page;
    for (std::size_t i = lane.pages.size(); i-- > 0; page = page->parent) {
        const LanePage& held = lane.pages[i];
        if (held.page != page) return "a lane's pages are not its text's";
        if (held.is_seen && page->n_lanes == 0) return "a lane sees a page that does not know of it";
        if (!held.is_seen && page->n_out == 0) return "a lane has offloaded a page that does not know of it";
        if (!held.is_seen && lane.pins.holds(i)) return "a lane does not see a page that is pinned";
        n_out += held.is_seen ? 0 : 1;
    }
    if (!page->is_root()) return "a lane's pages do not begin at the text's start";
    if (n_out != lane.n_out) return "a lane miscounts the pages that it does not see";
    return std::nullopt;
}

}  // namespace

std::optional<std::string> LanePool::check_integrity() const {
    std::optional<std::string> wrong;
    lanes_.for_each([&](LaneId, const Lane& lane) {
        if (!wrong) wrong = check_lane(lane);
    });
    if (wrong) return wrong;
    if (residency_ != nullptr && n_yieldable_pages() != count_yieldable_pages()) {
        return "the pages that lanes could give up are miscounted";
    }
    return std::nullopt;
}

}  // namespace luce::memory
