#include "engine/scheduler.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <iterator>
#include <limits>
#include <tuple>

namespace luce::engine {
namespace {

// Oldest and most important first: the order in which lanes keep their place.
bool outranks(const LaneView& a, const LaneView& b) {
    return std::tuple(-std::int64_t{a.priority}, a.arrival) < std::tuple(-std::int64_t{b.priority}, b.arrival);
}

bool is_served_before(const LaneView& a, const LaneView& b) {
    return std::tuple(-std::int64_t{a.priority}, a.due, a.arrival) <
           std::tuple(-std::int64_t{b.priority}, b.due, b.arrival);
}

// Suspend from the bottom of the ranking until the others' memory and one more token each fit.
std::vector<LaneView> keep_what_fits(std::span<const LaneView> lanes, std::int32_t n_pool,
                                     std::vector<LaneId>& suspended) {
    std::vector<LaneView> kept(lanes.begin(), lanes.end());
    std::sort(kept.begin(), kept.end(), outranks);
    std::int64_t needed = 0;
    for (const LaneView& lane : kept) needed += lane.n_cells + 1;
    while (kept.size() > 1 && needed > n_pool) {
        needed -= kept.back().n_cells + 1;
        suspended.push_back(kept.back().lane);
        kept.pop_back();
    }
    return kept;
}

// Drafts are a bet: all of them are dropped before a lane has to make room for one, and before a prompt has to wait for
// the next step with all of its tokens.
bool fits_with_drafts(std::span<const LaneView> lanes, const StepBudget& budget) {
    std::int64_t n_cells = 0;
    std::int64_t n_tokens = 0;
    bool has_prompt = false;
    for (const LaneView& lane : lanes) {
        n_cells += lane.n_cells + 1;
        has_prompt = has_prompt || lane.is_prefilling;
        if (lane.is_prefilling) continue;
        n_cells += lane.n_draft;
        n_tokens += 1 + lane.n_draft;
    }
    if (has_prompt && !budget.separate_prefill) ++n_tokens;
    return n_cells <= budget.n_pool && n_tokens <= budget.n_call;
}

// Of several devices that compute a prompt's slices one after the other each is idle for a slice, at its beginning or
// at its end. So the less is left of it, the narrower they are; narrower ones than these cost more than that.
constexpr std::int32_t kLeastStaged = 512;
constexpr std::int32_t kSlicesAStage = 4;

std::int32_t staged(std::int64_t n_pending, std::int32_t n_stages) {
    if (n_stages < 2) return std::numeric_limits<std::int32_t>::max();
    const std::int64_t n = std::clamp<std::int64_t>(n_pending / (kSlicesAStage * n_stages), kLeastStaged, 1 << 20);
    return static_cast<std::int32_t>(std::bit_ceil(static_cast<std::uint32_t>(n)));
}

struct PlannedPrefill {
    PlannedCall text;
    std::vector<PlannedCall> alone;  // one each
};

// n_free: cells. An image that must be computed whole and a slice that is not timed may exceed the budget, never the
// cells or n_call.
PlannedPrefill plan_prefill(std::vector<LaneView> lanes, std::int32_t budget, std::int32_t n_free,
                            std::int32_t n_call) {
    std::sort(lanes.begin(), lanes.end(), is_served_before);
    PlannedPrefill planned;
    for (const LaneView& lane : lanes) {
        const std::int32_t n_most = std::min(n_free, lane.is_whole || lane.is_untimed ? n_call : budget);
        if (budget <= 0 || n_most <= 0) break;
        const std::int32_t n_wanted = std::min(lane.n_pending, lane.n_slice);
        if (lane.is_whole && n_wanted > n_most) continue;
        const PlannedSlice slice{lane.lane, std::min(n_wanted, n_most), true};
        if (lane.is_alone) {
            planned.alone.push_back({slice});
        } else {
            planned.text.push_back(slice);
        }
        budget -= slice.n_tokens;
        n_free -= slice.n_tokens;
    }
    return planned;
}

}  // namespace

StepPlan plan_step(std::span<const LaneView> lanes, const StepBudget& budget) {
    StepPlan plan;
    if (lanes.empty()) return plan;
    const std::vector<LaneView> kept = keep_what_fits(lanes, budget.n_pool, plan.suspend);

    PlannedCall decoding;
    std::vector<LaneView> prefilling;
    std::int64_t n_used = 0;
    std::int64_t n_to_read = 0;
    std::int32_t n_decoding = 0;
    const bool with_drafts = fits_with_drafts(kept, budget);
    for (const LaneView& lane : kept) {
        assert(lane.n_pending >= 1 && lane.n_slice >= 1);
        n_used += lane.n_cells;
        if (lane.is_waiting) continue;
        if (lane.is_prefilling) {
            prefilling.push_back(lane);
            n_to_read += lane.n_pending;
        } else {
            decoding.push_back({lane.lane, 1 + (with_drafts ? lane.n_draft : 0), false});
            n_used += decoding.back().n_tokens;
            n_decoding += decoding.back().n_tokens;
        }
    }
    const auto n_free = static_cast<std::int32_t>(std::max<std::int64_t>(0, budget.n_pool - n_used));
    std::int32_t n_prefill = std::min({budget.n_prefill, n_free, staged(n_to_read, budget.n_stages)});
    n_prefill = std::min(n_prefill, budget.separate_prefill ? budget.n_call : budget.n_call - n_decoding);
    PlannedPrefill prefill = plan_prefill(std::move(prefilling), n_prefill, n_free, budget.n_call);

    if (budget.separate_prefill) {
        if (!decoding.empty()) plan.calls.push_back(std::move(decoding));
        if (!prefill.text.empty()) plan.calls.push_back(std::move(prefill.text));
    } else {
        decoding.insert(decoding.end(), prefill.text.begin(), prefill.text.end());
        if (!decoding.empty()) plan.calls.push_back(std::move(decoding));
    }
    std::move(prefill.alone.begin(), prefill.alone.end(), std::back_inserter(plan.calls));
    return plan;
}

}  // namespace luce::engine
