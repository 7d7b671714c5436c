// The scheduler: the state of the lanes -> what the next step computes. Pure; knows neither tokens nor the model.
//
// A lane's text is what it has to know: prompt and answer so far. What of it is not yet computed is pending. A lane
// with one pending token that has finished its prompt decodes; any other is prefilling. A step serves
//   - every decoding lane with its one token, always, and the tokens drafted after it where there is room for them and
//     for some of a prompt's, and
//   - up to a budget of pending prompt tokens: highest priority first, then whoever has the least left to read
//   (shortest
//     remaining time first; Schrage, 1968), where what was read of prompts since a lane came counts as read of its own:
//     a short prompt waits for one slice of a long one and not for its end, and no stream of them makes that one wait
//     for ever.
// When the pool cannot hold what the step adds, the youngest lane of the lowest priority is suspended.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"

namespace luce::engine {

struct LaneView {
    LaneId lane{};
    std::int32_t n_cells = 0;    // that the lane occupies and shares with no other
    std::int32_t n_pending = 0;  // tokens still to be computed, >= 1
    std::int32_t n_slice = 0;    // of them, most that the next slice may have, >= 1
    std::int32_t n_draft = 0;    // of a decoding lane: tokens that were drafted to come after the pending one
    bool is_prefilling = false;
    std::int32_t priority = 0;
    std::uint64_t arrival = 0;  // order of admission; smaller is older
    std::uint64_t due = 0;      // of a prompt: tokens read of all prompts before it came, and what it has left itself
    bool is_alone = false;      // the next slice is a call of its own
    bool is_whole = false;      // it has n_slice tokens or has to wait: an image whose positions see all of it
    bool is_untimed = false;    // the next slice may exceed the step's budget of prompt tokens
    bool is_waiting = false;    // for an image that is still being encoded
};

struct StepBudget {
    std::int32_t n_pool = 0;     // cells for what the lanes do not share
    std::int32_t n_prefill = 0;  // most prompt tokens of this step
    std::int32_t n_call = 0;     // most tokens of one decode call
    bool separate_prefill = false;
    std::int32_t n_stages = 1;  // as DecoderLimits
};

struct PlannedSlice {
    LaneId lane{};
    std::int32_t n_tokens = 0;
    bool is_prefill = false;
};

using PlannedCall = std::vector<PlannedSlice>;

struct StepPlan {
    std::vector<LaneId> suspend;     // before anything is computed
    std::vector<PlannedCall> calls;  // one decode call each, in this order
};

// REQUIRES: each lane alone fits the pool.
StepPlan plan_step(std::span<const LaneView> lanes, const StepBudget& budget);

}  // namespace luce::engine
