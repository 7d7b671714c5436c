// Gate::State: what the gate knows and what the running call looks at. gate.cpp learns and chooses by it, gate_asks.cpp
// decides by it who is asked for a draft; nobody else includes this.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "speculation/acceptance.h"
#include "speculation/call_costs.h"
#include "speculation/draft_costs.h"
#include "speculation/draft_worth.h"
#include "speculation/earnings.h"
#include "speculation/gate.h"
#include "speculation/probe_budget.h"
#include "speculation/speed_up.h"
#include "speculation/step_options.h"
#include "speculation/tree_chances.h"

namespace luce::speculation {

inline constexpr double kMostCredit = 4;  // plain steps' worth that is put by for trials

struct Gate::State {
    using Chances = StepOptions::Chances;

    // What a step is decided by.
    struct Going {
        const CostCurve& costs;
        double rate;                 // tokens that a second is worth
        const CostCurve& branching;  // of calls with branches; the same where no source has any
    };
    // A proposal with what it promises.
    struct Stake {
        std::size_t proposal = 0;
        Chances chances;
        BestPart part;
        std::vector<std::size_t> nodes = {};  // of a tree, whose the chances are
    };
    // An ask that may be made.
    struct Wish {
        SourceIndex source = 0;
        std::int32_t n_tokens = 0;
        Taken taken;
        double value = 0;  // tokens, alone: less the draft's cost and what the free ones offer
    };
    // Wishes for the same source, together.
    struct Party {
        std::int32_t n_lanes = 0;
        std::int32_t n_tokens = 0;  // asked of each
        double n_right = 0;         // over what the free ones offer
        double n_taking = 0;        // lanes that will take something
        double n_drafted = 0;       // tokens that these verify
        double n_beside = 0;        // tokens that the other lanes verify
    };
    struct Kept {  // of a party's wishes
        double value = 0;
        std::size_t n_lanes = 0;
        std::int32_t n_tokens = 0;
    };
    struct Tried {  // a draft that was asked for on trial
        SourceIndex source = 0;
        double expected_s = 0;
        double untaken_s = 0;  // of its expected loss, by the budget
    };
    struct Answered {  // a draft that was asked for
        std::size_t proposal = 0;
        Stake stake;
        Stake chain;  // the same where it has no branches
    };
    struct Seat {  // a lane of this step
        std::optional<Stake> best;
        std::optional<Stake> best_chain;  // without branches

        // What it would verify if nobody were asked for a draft, and how much of that is right.
        std::int32_t free_width = 0;
        double free_right = 0;
        std::optional<Wish> wish;
    };

    struct Prospect {  // with so many lanes whose longest text has n_text to n_until tokens
        std::int32_t n_lanes = 0;
        std::int32_t n_text = 0;
        std::int32_t n_until = 0;
        std::vector<bool> can_pay;  // by source
    };

    explicit State(GateConfig given);

    std::vector<Ask> asks(std::span<const LaneSituation> lanes, std::span<const Proposal> free_proposals);
    std::vector<Choice> choose(std::span<const LaneSituation> lanes, std::span<const Proposal> proposals);
    void observe_verdict(const Proposal& proposal, std::int32_t width, std::int32_t n_accepted);

    Answered weigh_one(std::size_t index, const Proposal& proposal, std::span<float> room, const Going& going,
                       std::int32_t n_alike) const;
    bool prefers_trees(const Going& going);

    bool is_lane(LaneId lane) const { return static_cast<std::int32_t>(lane) >= 0 && lane < LaneId{config.n_lanes}; }
    std::int32_t n_most_of(const LaneSituation& lane) const { return std::clamp(lane.n_most, 0, config.n_most); }
    std::int32_t n_most_of(const LaneSituation& lane, SourceIndex source) const {
        return std::min(n_most_of(lane), config.sources[source].n_most);
    }
    std::int32_t n_equal_most(std::span<const LaneSituation> lanes) const;

    void seat(std::span<const LaneSituation> lanes);
    bool is_stake(std::span<const LaneSituation> lanes, const Proposal& proposal) const;
    void weigh(std::span<const LaneSituation> lanes, std::span<const Proposal> proposals, const Going& going,
               bool hears_answers);
    void hear(std::span<const LaneSituation> lanes, std::span<const Proposal> proposals);
    Going going(std::span<const LaneSituation> lanes);
    Going as_decided(const Going& both) const {
        return takes_trees ? Going{both.branching, both.rate, both.branching} : both;
    }

    bool can_pay(std::span<const LaneSituation> lanes, SourceIndex source);
    bool can_pay(std::int32_t n_lanes, SourceIndex source, const Going& going) const;
    void grant(double seconds) {
        budget.grant(seconds);
        earnings.grant(seconds);
    }
    double draft_s(SourceIndex source, std::int32_t n_lanes, std::int32_t n_tokens, const Going& going) const;
    bool can_afford(SourceIndex source, std::int32_t n_lanes, std::int32_t n_tokens, const Going& going) const;
    void settle_free(std::span<const LaneSituation> lanes, const Going& going);
    void join(Party& party, const Wish& wish, const Seat& seat) const;
    double value(const Party& party, SourceIndex source, const Going& going) const;
    Wish wish(const LaneSituation& lane, const Seat& seat, SourceIndex source, std::int32_t n_tokens,
              const Going& going) const;
    std::vector<std::int32_t> lengths(const LaneSituation& lane, SourceIndex source) const;
    Wish best_wish(const LaneSituation& lane, const Seat& seat, SourceIndex source, const Going& going) const;
    void wish_alone(std::span<const LaneSituation> lanes, const Going& going);
    Kept gather(std::span<const LaneSituation> lanes, SourceIndex source, std::int32_t n_tokens, const Going& going);
    void keep_worthwhile(std::span<const LaneSituation> lanes, const Going& going);
    bool is_long_enough(const LaneSituation& lane, double cost_s, const Going& going) const;
    void try_others(std::span<const LaneSituation> lanes, const Going& going);
    std::vector<Ask> book_asks(std::span<const LaneSituation> lanes, const Going& going);
    std::vector<Ask> first_asks(std::span<const LaneSituation> lanes, std::span<const Proposal> free_proposals);

    void observe_step(StepCost step);
    double again_s(const StepCost& step);
    CallCosts& costs_of(const StepCost& step) { return step.has_branches ? tree_costs : call_costs; }
    void learn(const StepCost& step) {
        const std::int32_t n_drafted = step.n_tokens - step.n_lanes;
        costs_of(step).observe(step.n_lanes, n_drafted, step.n_longest, step.seconds);
        if (n_drafted == 0 && has_trees) tree_costs.observe(step.n_lanes, 0, step.n_longest, step.seconds);
    }
    SpeedUp& speed_up(std::size_t n_lanes) { return speed_ups[std::min(n_lanes, speed_ups.size()) - 1]; }
    bool covers(const StepOption& option, const Going& going) const {
        return option.n_drafted == 0 || earnings.covers(going.costs.worst_s(option.n_drafted) - going.costs.plain_s());
    }

    void lay_out(std::span<const LaneSituation> lanes);
    void decline(const Going& going, std::span<Choice> choices);
    StepOption decide(const Going& going, std::size_t n_lanes);
    std::size_t try_cost(const Going& going, std::size_t best);
    std::vector<Choice> first_choices(std::span<const LaneSituation> lanes, std::span<const Proposal> proposals);

    GateConfig config;
    bool has_trees = false;               // a source has branches to offer
    CallCosts call_costs;                 // without branches
    CallCosts tree_costs;                 // with them
    std::vector<DraftCosts> draft_costs;  // by source
    Acceptance acceptance;
    TreeChances tree_chances;
    DraftWorth draft_worth;
    ProbeBudget budget;
    Earnings earnings;
    std::optional<StepCost> last_call;  // measured and not yet learnt from: the one behind it may add to its cost
    bool last_is_settled = true;        // that one teaches something
    std::int32_t n_settling = 0;        // calls to come that do not, because an answer has begun
    std::int32_t n_untaught = 0;        // such calls in a row
    double drafts_s = 0;                // what drafts took since the last call
    std::vector<SpeedUp> speed_ups;     // by lanes of the step
    StepOptions options;
    Prospect prospect;
    bool was_granted = false;
    bool was_granted_asks = false;
    std::optional<Tried> tried;              // in this step, the last one
    double asked_s = 0;                      // what this step's drafts are expected to take
    std::vector<std::int32_t> last_drafted;  // by lanes of the step
    std::vector<std::int32_t>
        prefill_start_at;             // by lane: the text's length when drafts were first thought of; -1: not yet
    bool tries_branches = false;      // in this step, to see what they cost now
    bool takes_trees = false;         // of the step's trees more than their likeliest chains
    std::int32_t n_sharing = 1;       // lanes with a proposal in the last step
    std::int32_t n_free_drafted = 0;  // that all lanes would verify if nobody were asked
    std::int32_t n_longest = 0;       // in the last step
    std::size_t n_turns = 0;

    // Of the running call; members to save allocations.
    std::vector<Seat> seats;                 // as the lanes
    std::vector<std::int32_t> seat_of_lane;  // -1: not in this step
    std::vector<float> chances;
    std::vector<Answered> answered;
    std::vector<std::size_t> order;
    std::vector<Chances> best_chances;
    std::vector<std::int32_t> widths;
    std::vector<bool> may_be_asked;  // by source
};

}  // namespace luce::speculation
