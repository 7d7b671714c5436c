// SpeculationController: decides step by step whether, from which source and how far to speculate, so that tokens come
// as fast as they can and never slower than without. Pure: it is told what was proposed, what was accepted and what it
// cost in time; it must not know models, texts or the clock.
//
// The rule: a step that verifies n drafted tokens in all lanes together costs C(n) seconds; a drafted token is accepted
// with probability p (given that those before it were). With r the tokens a second that the last steps of as many lanes
// brought (at least plain decoding's), a step is worth
//     (n_lanes + sum of the products of p) - r * C(n)
// and the width that is worth most is taken, none included. A draft is asked for when what it is expected to add to
// that is more than r times what it costs. So all steps together bring the most tokens a second, which each step's own
// ratio would not (Dinkelbach, 1967). CostModel and DraftCosts say what things cost, AcceptanceEstimator how likely
// tokens are right, DraftValue what a source's drafts bring; ExplorationBudget bounds what may be lost while any of
// that is wrong.
//
// What calls of other shapes add to the calls behind them is theirs: a plain call behind a verifying one is dearer. The
// first calls of an answer and those for which a graph is made say nothing of what calls cost. Each width of each set
// of lanes may need a graph, so several lanes whose widths are equal draft in few of them. In an answer nothing is
// tried before as many tokens have come as would pay for it: most texts go on for about as long as they have.
//
// Sources: adaptive draft lengths as in Lucebox pull request 430 (commit-EMA controller); the objective is that of
// "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput" (Liu et al., 2024).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/token.h"
#include "speculation/controller/acceptance_estimator.h"
#include "speculation/controller/cost_model.h"
#include "speculation/controller/draft_value.h"
#include "speculation/controller/exploration_budget.h"
#include "speculation/controller/reading_value.h"
#include "speculation/controller/step_options.h"
#include "speculation/draft_source.h"
#include "speculation/trees/tree_chances.h"

namespace luce::speculation {

struct ControllerConfig {
    std::int32_t n_lanes = 1;
    std::int32_t n_most = 0;  // drafted tokens a lane, whatever the source; 0: never speculate
    bool is_adaptive = true;  // else always the first source that proposes something, as long as it goes
    // Lanes of different lengths take a pass over the weights each (models with recurrent state): choose one width for
    // all lanes of a step, or none. Lanes with shorter drafts, or none, get choices as long as these; the caller fills
    // all lanes up to the widest choice. No width is beyond the smallest n_most of the step's lanes.
    bool wants_equal_widths = false;
    std::vector<SourceTraits> sources;
};

// A lane that decodes in this step.
struct LaneState {
    LaneId lane{};
    std::int32_t n_text = 0;
    std::int32_t n_most = 0;  // drafted tokens that it could take (room in the context, the request's limit); 0: none
};

struct DraftRequest {
    LaneId lane{};
    SourceIndex source = 0;
    std::int32_t n_tokens = 0;
};

// A draft that may be verified, by its confidences.
struct Proposal {
    LaneId lane{};
    SourceIndex source = 0;
    std::span<const float> confidence;
    std::span<const std::int32_t> parents = {};  // of a tree, as in Draft
};

// What a lane verifies: the first `width` tokens of proposals[proposal]; width 0: it decodes plainly.
struct Choice {
    LaneId lane{};
    std::size_t proposal = 0;
    std::int32_t width = 0;
    // Of a tree: which tokens instead, if others than the first: as many, in rising order, none without its parent.
    std::vector<std::size_t> nodes = {};
};

// What a call took that served decoding lanes and nothing else.
struct StepCost {
    std::int32_t n_lanes = 0;
    std::int32_t n_tokens = 0;   // in all, filling included; a plain step: n_lanes
    std::int32_t n_longest = 0;  // the longest text among them
    double seconds = 0;
    std::int32_t n_redone = 0;    // tokens that it got right and that are computed again, because lanes had to go back
    std::int32_t n_right = 0;     // drafted tokens that were right, in all lanes
    bool follows_prompt = false;  // the call before it served a prompt: that makes it dearer, whatever it does itself
    bool has_branches = false;    // it verified trees
    std::int32_t n_back = 0;      // lanes that had to: calls of theirs compute it again, and bring each a token
    bool is_first = false;        // of its kind: it took longer than such calls do (a graph had to be made)

    std::int32_t n_drafted() const { return n_tokens - n_lanes; }
};

class SpeculationController {
public:
    explicit SpeculationController(ControllerConfig config);

    // Before anything is served: what a call took that was made to find it out, and what drafts did.
    void observe_warmup_step(const StepCost& step);
    void observe_warmup_draft(SourceIndex source, std::int32_t n_lanes, std::int32_t n_tokens, double seconds);

    // As if none of what was measured before anything was served had been.
    void forget_costs();

    // Whether drafts of the source could make such a step faster by more than a little, were they all right. If not,
    // nobody need look for any, and none is requested.
    bool can_pay(std::span<const LaneState> lanes, SourceIndex source);

    // Which lanes to ask a source that is not free, given what the free ones have proposed. At most one a lane.
    std::vector<DraftRequest> requests(std::span<const LaneState> lanes, std::span<const Proposal> free_proposals);

    // One choice for each lane, in their order, from all proposals (none or several a lane).
    std::vector<Choice> choose(std::span<const LaneState> lanes, std::span<const Proposal> proposals);

    // Of the last step's trees more was taken than their likeliest chains; false also where there were none. Not
    // adaptive it takes what is proposed.
    bool takes_trees() const { return !config_.is_adaptive || takes_trees_; }

    // A source drafted for n_lanes of the lanes of the last requests(), n_tokens in all, in so much time. Before that
    // it made up in put_off_s for what it had put off: time that has been spent, but no part of what a draft costs.
    void observe_draft(SourceIndex source, std::int32_t n_lanes, std::int32_t n_tokens, double seconds,
                       double put_off_s = 0);
    void observe_failed_draft(double seconds);  // drafts that did not come took so much time
    void observe_step(const StepCost& step);    // impossible seconds are left out

    // Of the first `width` tokens of the proposal n_accepted were right (a request that ends early counts the tokens it
    // took, with width cut to them). Proposals that were not chosen may be judged, too, by the tokens that came
    // instead, with width cut to their number: then a source that is not used is known to have become right the sooner.
    void observe_verdict(const Proposal& proposal, std::int32_t width, std::int32_t n_accepted);
    // The same of a tree, as verdicts_of() makes them, whatever part of it was verified.
    void observe_verdicts(const Proposal& proposal, std::span<const TreeVerdict> verdicts);

    // The lane serves another text now, which the sources read.
    void begin(LaneId lane);
    // Whether the source should read n_tokens of the lane's text that come now: that takes time, which only an answer
    // that is likely to be long enough earns back. If not it is not asked for drafts of this text.
    bool should_read(LaneId lane, SourceIndex source, std::int32_t n_tokens);
    void observe_reading(SourceIndex source, std::int32_t n_tokens, double seconds) {
        if (source < config_.sources.size()) readings_.observe(source, n_tokens, seconds);
    }
    void observe_answer(std::int32_t n_tokens) { readings_.observe_answer(n_tokens); }  // it had so many

    // For status and logs: what a call of n_tokens costs relative to a plain step of as many lanes; unset: not known.
    std::optional<double> relative_cost(std::int32_t n_lanes, std::int32_t n_tokens);

private:
    using Chances = StepOptions::Chances;

    // Of the tokens that are expected to be right: a step that pays with no more than these needs no budget. Less where
    // a model drafts, too: what copies take is not left to its drafts.
    static constexpr double kCountedOn = 0.8;
    static constexpr double kCountedOnBesideModels = 0.6;
    // Of the tokens that were right in a row in the same text: without a budget copies go no further. What is right on
    // average is not so in each text, and a short one never earns back what one long draft has lost.
    static constexpr double kTrusted = 0.5;

    // What this step is decided by.
    struct Situation {
        const CostCurve& costs;
        const CostCurve& branching;  // of calls with branches; the same where no source has any
        double rate = 0;             // tokens that a second is worth
    };
    // A proposal with what it promises.
    struct Weighed {
        std::size_t proposal = 0;
        Chances chances;
        BestPart part;
        std::vector<std::size_t> nodes = {};  // of a tree, whose the chances are
    };
    struct Lane {  // of this step
        std::optional<Weighed> best;
        std::optional<Weighed> best_chain;  // without branches
        // What it would verify if nobody were asked for a draft, and how much of that is right.
        std::int32_t free_width = 0;
        double free_right = 0;
        std::int32_t n_requested = 0;  // tokens; 0: none
    };
    // Lanes that are asked for a draft together.
    struct Group {
        SourceIndex source = 0;
        std::int32_t n_tokens = 0;
        std::vector<std::size_t> members = {};  // of lanes_
        double value = 0;                       // tokens: what they bring less what all of it costs
    };
    // How fast the last steps were, in tokens and time of plain steps.
    struct Speed {
        double tokens = 1;
        double time = 1;
        void blend(const Speed& newest, double share) {
            tokens += share * (newest.tokens - tokens);
            time += share * (newest.time - time);
        }
    };
    struct Prospect {  // can_pay() for so many lanes whose longest text has n_text to n_until tokens
        std::int32_t n_lanes = 0;
        std::int32_t n_text = 0;
        std::int32_t n_until = 0;
        std::vector<bool> can_pay;  // by source
    };
    struct Trial {  // a draft that was asked for to see what it is worth
        SourceIndex source = 0;
        double expected_s = 0;
        double unpaid_s = 0;
    };

    bool is_lane(LaneId lane) const { return static_cast<std::int32_t>(lane) >= 0 && lane < LaneId{config_.n_lanes}; }
    std::int32_t n_most_of(const LaneState& lane) const { return std::clamp(lane.n_most, 0, config_.n_most); }
    std::int32_t n_most_of(const LaneState& lane, SourceIndex source) const {
        const bool is_unread = is_lane(lane.lane) && readings_.is_unread(lane.lane, source);
        return is_unread ? 0 : std::min(n_most_of(lane), config_.sources[source].n_most);
    }
    std::int32_t n_equal_most(std::span<const LaneState> lanes) const;
    Situation begin_step(std::span<const LaneState> lanes);
    std::optional<std::size_t> place_of(std::span<const LaneState> lanes, const Proposal& proposal) const;

    // Whom to ask (draft_requests.cpp).
    bool could_pay(SourceIndex source, std::int32_t n_lanes, const Situation& now) const;
    double draft_s(SourceIndex source, std::size_t n_lanes, std::int32_t n_tokens, const Situation& now) const;
    bool can_afford(SourceIndex source, std::size_t n_lanes, std::int32_t n_tokens, const Situation& now) const;
    double first_trials_s(SourceIndex source, std::size_t n_lanes, const Situation& now) const;
    bool is_price_known(SourceIndex source, std::size_t n_lanes, std::int32_t n_tokens) const;
    void settle_free(std::span<const LaneState> lanes, const Situation& now);
    std::vector<std::int32_t> lengths(SourceIndex source, std::int32_t n_most) const;
    double group_value(std::span<const LaneState> lanes, const Group& group, const Situation& now) const;
    Group best_group(std::span<const LaneState> lanes, SourceIndex source, const Situation& now) const;
    void try_others(std::span<const LaneState> lanes, Group& group, const Situation& now);
    std::vector<DraftRequest> book(std::span<const LaneState> lanes, const Group& group, const Situation& now);
    std::vector<DraftRequest> first_requests(std::span<const LaneState> lanes, std::span<const Proposal> free) const;

    // What a token of an answer gains by the source's drafts.
    double gain_s(SourceIndex source);

    // How far to verify.
    std::pair<Weighed, Weighed> weigh_one(std::size_t index, const Proposal& proposal, std::span<float> room,
                                          const Situation& now, std::int32_t n_alike) const;
    void weigh(std::span<const LaneState> lanes, std::span<const Proposal> proposals, const Situation& now,
               bool has_answers);
    bool prefers_trees(const Situation& now);
    void lay_out(std::span<const LaneState> lanes);
    double worth(const StepOption& option, const Situation& now) const {
        return option.n_right - now.rate * now.costs.expected_s(option.n_drafted);
    }
    // What one source lost must not keep another from what it is all but sure of: a debt lasts for hundreds of tokens.
    bool covers(const StepOption& option, const Situation& now) const {
        if (option.n_drafted == 0) return true;
        const double risk_s = now.costs.worst_s(option.n_drafted) - now.costs.plain_s();
        const bool is_trusted = has_models_ || option.n_drafted <= kTrusted * n_trusted_;
        const double counted_on = has_models_ ? kCountedOnBesideModels : kCountedOn;
        return (is_trusted && risk_s <= counted_on * option.n_right / now.rate) || budget_.covers(risk_s);
    }
    StepOption decide(const Situation& now, std::size_t n_lanes);
    std::size_t try_cost(const Situation& now, std::size_t best);
    std::vector<Choice> first_choices(std::span<const LaneState> lanes, std::span<const Proposal> proposals) const;

    // What it cost.
    CostModel& costs_of(const StepCost& step) { return step.has_branches ? tree_costs_ : call_costs_; }
    void learn(const StepCost& step);
    double again_s(const StepCost& step);
    Speed& speed(std::size_t n_lanes) { return speeds_[std::min(n_lanes, speeds_.size()) - 1]; }

    ControllerConfig config_;
    bool has_trees_;                        // a source has branches to offer
    bool has_models_;                       // a source that is not free
    std::vector<std::int32_t> n_in_a_row_;  // by lane: drafted tokens of its text that were right of late
    std::int32_t n_trusted_ = 0;            // of this step's lanes together
    double plain_s_ = 0;                    // a plain call of the last step's lanes
    CostModel call_costs_;                  // without branches
    CostModel tree_costs_;                  // with them
    std::vector<DraftCosts> draft_costs_;   // by source
    AcceptanceEstimator acceptance_;
    TreeChances tree_chances_;
    DraftValue draft_value_;
    ReadingValue readings_;
    ExplorationBudget budget_;
    std::vector<Speed> speeds_;       // by lanes of the step
    std::vector<Speed> long_speeds_;  // of all texts
    StepOptions options_;
    Prospect prospect_;
    bool was_granted_ = false;
    bool was_granted_drafts_ = false;
    std::optional<StepCost> last_call_;       // measured and not yet learnt from: the one behind it may add to its cost
    bool last_is_usual_ = true;               // that one teaches something
    std::int32_t n_settling_ = 0;             // calls to come that do not, because an answer has begun
    std::int32_t n_untaught_ = 0;             // such calls in a row
    double drafts_s_ = 0;                     // what drafts took since the last call
    std::optional<Trial> trial_;              // in this step
    double requested_s_ = 0;                  // what this step's drafts are expected to take
    std::vector<std::int32_t> last_drafted_;  // by lanes of the step
    std::vector<std::int32_t> answer_at_;     // by lane: where its answer begins in the text; -1: not known yet
    bool tries_branches_ = false;             // in this step, to see what they cost now
    bool takes_trees_ = false;
    std::int32_t n_sharing_ = 1;       // lanes with a proposal in the last step
    std::int32_t n_free_drafted_ = 0;  // that all lanes would verify if nobody were asked
    std::int32_t n_longest_ = 0;       // in the last step
    std::size_t n_turns_ = 0;
    std::vector<Lane> lanes_;     // of this step
    std::vector<float> chances_;  // of the proposals
};

}  // namespace luce::speculation
