// Gate: decides step by step whether, from which source and how far to speculate, so that tokens come as fast as they
// can and never slower than without. Pure: it is told what was proposed, what was accepted and what it cost in time.
//
// The rule: a step that verifies T tokens in all lanes together costs C(T) seconds; a drafted token is accepted with
// probability p (given that those before it were). With r the tokens a second that the last steps of as many lanes
// brought (at least plain decoding's), a step is worth
//     (n_lanes + sum of the products of p) - r * C(T)
// (of a tree: the products along the way to each token, which are taken likeliest first)
// and the gate takes the width that is worth most, none included. A draft is asked for when what it is expected to add
// to that is more than r times what it costs. So all steps together, good drafts and bad ones, bring the most tokens a
// second; each step's own ratio would not. C and the drafts' costs are measured on this machine while it runs and kept
// current as contexts grow and lanes come and go; those of short texts may be told before anything is served, else the
// gate decodes plainly until a few plain steps were measured. p is learnt for each source from its confidence and for
// each lane from what was accepted of late. Where even drafts that are right would bring next to nothing nobody is
// asked (can_pay). What has not been tried for long is tried again now and then, from a budget of less than one percent
// of the time; at first from that of a plain step, and of three more where a model may be worth asking. In an answer
// nothing is tried before as many tokens have come as would pay for it: most texts go on for about as long as they
// have.
//
// What is believed may be wrong, so there is an account besides of what speculation has really saved (Earnings): a step
// may risk, should nothing of its draft be right, what lies there and no more. It begins with a few plain steps' worth
// and gets less than one percent of the time, so little can be lost however wrong drafts are; after failures only short
// ones can be afforded, until their success pays for longer ones. What is declined for want of earnings is held against
// what comes instead and booked as if it had been verified, within bounds: so drafts that have become right are
// noticed.
//
// A plain call behind one of another shape is dearer: the call before it pays for that, and only plain calls behind
// plain ones say what plain decoding costs. Nor do the first calls of an answer say what calls cost: they are dearer,
// and where all later ones verify, they would be what everything is compared with; nor those for which a graph is made.
// Each width of each set of lanes may need one, so several lanes whose widths are equal draft in few of them.
//
// Sources: adaptive draft lengths as in Lucebox pull request 430 (commit-EMA gate); the objective is that of
// "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput" (Liu et al., 2024), as a rate
// (Dinkelbach, 1967).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/token.h"
#include "speculation/draft_source.h"
#include "speculation/tree_chances.h"

namespace luce::speculation {

struct GateConfig {
    std::int32_t n_lanes = 1;
    std::int32_t n_most = 0;  // drafted tokens a lane, whatever the source; 0: never speculate
    bool is_on = true;        // off: always the first source that proposes something, as long as it goes
    // Lanes of different lengths take a pass over the weights each (models with recurrent state): choose one width for
    // all lanes of a step, or none. Lanes with shorter drafts, or none, get choices as long as these; the caller fills
    // all lanes up to the widest choice. No width is beyond the smallest n_most of the step's lanes.
    bool wants_equal_widths = false;
    std::vector<SourceTraits> sources;
};

// A lane that decodes in this step.
struct LaneSituation {
    LaneId lane{};
    std::int32_t n_text = 0;
    std::int32_t n_most = 0;  // drafted tokens that it could take (room in the context, the request's limit); 0: none
};

struct Ask {
    LaneId lane{};
    SourceIndex source = 0;
    std::int32_t n_tokens = 0;
};

// What lies on the table: a draft by its confidences.
struct Proposal {
    LaneId lane{};
    SourceIndex source = 0;
    std::span<const float> confidence;
    std::span<const std::int32_t> parents = {};  // of a tree, as in Draft
};

// A draft that the gate cannot afford, in a step of so many lanes.
struct DeclinedDraft {
    std::int32_t width = 0;
    std::int32_t n_right = 0;    // of these tokens; to be found out
    std::int32_t n_lanes = 0;    // of the step
    std::int32_t n_sharing = 0;  // of them with a draft, which share what the call would have cost
    std::int32_t n_drafted = 0;  // in all lanes, filling included
    std::int32_t n_longest = 0;  // the longest text among them
};

// What a lane verifies: the first `width` tokens of proposals[proposal]; width 0: it decodes plainly.
struct Choice {
    LaneId lane{};
    std::size_t proposal = 0;
    std::int32_t width = 0;
    // Of a tree: which tokens instead, if others than the first: as many, in rising order, none without its parent.
    std::vector<std::size_t> nodes = {};
    // Width 0 for want of earnings: what would have been verified of the proposal. Whoever holds it against what comes
    // instead should say so (observe_declined).
    std::optional<DeclinedDraft> declined = {};
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
};

class Gate {
public:
    explicit Gate(GateConfig config);
    ~Gate();

    // Before anything is served: what a call took that was made to find it out, and what drafts did.
    void observe_rehearsed_step(const StepCost& step);
    void observe_rehearsed_draft(SourceIndex source, std::int32_t n_lanes, std::int32_t n_tokens, double seconds);

    // Whether drafts of the source could make such a step faster by more than a little, were they all right. If not,
    // nobody need look for any, and none is asked for.
    bool can_pay(std::span<const LaneSituation> lanes, SourceIndex source);

    // Which lanes to ask a source that is not free, given what the free ones have proposed. At most one a lane.
    std::vector<Ask> asks(std::span<const LaneSituation> lanes, std::span<const Proposal> free_proposals);

    // One choice for each lane, in their order, from all proposals (none or several a lane).
    std::vector<Choice> choose(std::span<const LaneSituation> lanes, std::span<const Proposal> proposals);

    // Of the last step's trees more was taken than their likeliest chains; false also where there were none. Switched
    // off it takes what is proposed.
    bool takes_trees() const;

    // A source drafted for n_lanes of the lanes of the last asks(), n_tokens in all, in so much time. Before that it
    // made up in put_off_s for what it had put off: time that has been spent, but no part of what a draft costs.
    void observe_draft(SourceIndex source, std::int32_t n_lanes, std::int32_t n_tokens, double seconds,
                       double put_off_s = 0);

    // Drafts that did not come took so much time.
    void observe_failed_draft(double seconds);

    // Impossible seconds are left out.
    void observe_step(const StepCost& step);

    // Of the first `width` tokens of the proposal n_accepted were right (a request that ends early counts the tokens it
    // took, with width cut to them). Proposals that were not chosen may be judged, too, by the tokens that came
    // instead, with width cut to their number: then a source that is not used is known to have become right the sooner.
    void observe_verdict(const Proposal& proposal, std::int32_t width, std::int32_t n_accepted);

    // The same of a tree, as verdicts_of() makes them, whatever part of it was verified.
    void observe_verdicts(const Proposal& proposal, std::span<const TreeVerdict> verdicts);

    void observe_declined(const DeclinedDraft& draft);

    // The lane serves another text now.
    void begin(LaneId lane);

    // For status and logs: what a call of n_tokens costs relative to a plain step of as many lanes; unset: not known.
    std::optional<double> relative_cost(std::int32_t n_lanes, std::int32_t n_tokens) const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace luce::speculation
