#include "speculation/gate.h"

#include <algorithm>
#include <utility>

#include "speculation/gate_state.h"

namespace luce::speculation {
namespace {

constexpr double kStartGrant = 1;    // plain steps that may go into finding out at first
constexpr double kStayShare = 0.01;  // of a step's worth: better by less is no reason to change the width
// Everything is compared with the plain call: it is measured again after so many others, or sooner if it can be
// afforded and the ratio to it is not known well.
constexpr std::uint64_t kPlainInterval = 128;
constexpr std::uint64_t kFirstInterval = 8;  // for each time that it was measured before
constexpr std::uint64_t kVagueInterval = 16;
constexpr double kVague = 0.04;
constexpr double kKnown = 0.2;  // the deviation at which a ratio may be told to people

// The first calls of an answer are dearer, whatever they verify: weights have to come back into caches, above all
// behind a prompt. So are those for which graphs are made. They teach nothing, unless there are no others for long.
constexpr std::int32_t kSettling = 4;
constexpr std::int32_t kMostUntaught = 24;

constexpr double kMostBehind = 2;     // plain steps that a call can add to the one behind it
constexpr double kMostOver = 3;       // times what a call should have taken: beyond, others have taken the processor
constexpr double kMostDebt = 10;      // plain steps, by drafts that were declined
constexpr double kMostDeclined = 10;  // and what they can earn
constexpr double kMostEarned = 32;    // plain steps: the longest drafts may fail more than once

// What takes much longer than was guessed is taken for an accident unless it comes again. Rehearsed it was alone.
constexpr int kRehearsalWeight = 3;

constexpr double kLongest_s = 1e6;

GateConfig checked(GateConfig config) {
    config.n_lanes = std::max(config.n_lanes, 1);
    config.n_most = std::max(config.n_most, 0);
    return config;
}

}  // namespace

Gate::State::State(GateConfig given)
    : config(checked(std::move(given))),
      has_trees(std::any_of(config.sources.begin(), config.sources.end(), [](const auto& s) { return s.can_branch; })),
      call_costs(config.n_lanes, config.n_most),
      tree_costs(config.n_lanes, has_trees ? config.n_most : 0),
      acceptance(static_cast<std::size_t>(config.n_lanes), config.sources.size()),
      tree_chances(static_cast<std::size_t>(config.n_lanes), config.sources.size()),
      draft_worth(static_cast<std::size_t>(config.n_lanes), config.sources.size(), config.n_most),
      speed_ups(static_cast<std::size_t>(config.n_lanes)),
      last_drafted(static_cast<std::size_t>(config.n_lanes) + 1),
      prefill_start_at(static_cast<std::size_t>(config.n_lanes), -1),
      seat_of_lane(static_cast<std::size_t>(config.n_lanes), -1),
      may_be_asked(config.sources.size(), false) {
    for (const SourceTraits& traits : config.sources) {
        draft_costs.emplace_back(config.n_lanes, std::min(traits.n_most, config.n_most));
    }
}

void Gate::State::seat(std::span<const LaneSituation> lanes) {
    seats.assign(lanes.size(), {});
    std::fill(seat_of_lane.begin(), seat_of_lane.end(), -1);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        if (is_lane(lanes[i].lane))
            seat_of_lane[static_cast<std::size_t>(lanes[i].lane)] = static_cast<std::int32_t>(i);
    }
}

bool Gate::State::is_stake(std::span<const LaneSituation> lanes, const Proposal& proposal) const {
    if (!is_lane(proposal.lane) || proposal.source >= config.sources.size() || proposal.confidence.empty())
        return false;
    const std::int32_t seat = seat_of_lane[static_cast<std::size_t>(proposal.lane)];
    return seat >= 0 && n_most_of(lanes[static_cast<std::size_t>(seat)]) > 0;
}

Gate::State::Going Gate::State::going(std::span<const LaneSituation> lanes) {
    n_longest = 0;
    for (const LaneSituation& lane : lanes) n_longest = std::max(n_longest, lane.n_text);
    const auto n_lanes = std::min(static_cast<std::int32_t>(lanes.size()), config.n_lanes);
    const CostCurve& costs = call_costs.curve(n_lanes, n_longest);
    const double rate = costs.is_known() ? speed_up(lanes.size()).value() * n_lanes / costs.plain_s() : 0;
    if (costs.is_known() && !std::exchange(was_granted, true)) grant(kStartGrant * costs.plain_s());
    const CostCurve& branching = has_trees ? tree_costs.curve(n_lanes, n_longest) : costs;
    return {costs, rate, branching.is_known() ? branching : costs};
}

std::vector<Ask> Gate::State::first_asks(std::span<const LaneSituation> lanes,
                                         std::span<const Proposal> free_proposals) {
    for (const Proposal& proposal : free_proposals) {
        if (!is_stake(lanes, proposal)) continue;
        const auto at = seat_of_lane[static_cast<std::size_t>(proposal.lane)];
        seats[static_cast<std::size_t>(at)].best.emplace();
    }
    std::vector<Ask> asks;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        for (SourceIndex s = 0; is_lane(lanes[i].lane) && !seats[i].best && s < config.sources.size(); ++s) {
            if (config.sources[s].is_free || n_most_of(lanes[i], s) < 1) continue;
            asks.push_back({lanes[i].lane, s, n_most_of(lanes[i], s)});
            break;
        }
    }
    return asks;
}

std::int32_t Gate::State::n_equal_most(std::span<const LaneSituation> lanes) const {
    std::int32_t most = config.n_most;
    for (const LaneSituation& lane : lanes) most = std::min(most, n_most_of(lane));
    return most;
}

void Gate::State::lay_out(std::span<const LaneSituation> lanes) {
    best_chances.clear();
    for (const Seat& seat : seats) best_chances.push_back(seat.best ? seat.best->chances : Chances{});
    if (config.wants_equal_widths)
        options.lay_out_equal(best_chances, n_equal_most(lanes), config.n_most);
    else
        options.lay_out(best_chances);
}

// The option worth most; if another one is to be measured, that one.
StepOption Gate::State::decide(const Going& going, std::size_t n_lanes) {
    const auto worth = [&](const StepOption& option) {
        return option.n_right - going.rate * going.costs.expected_s(option.n_drafted);
    };
    const auto all = options.all();
    std::int32_t& last = last_drafted[std::min(n_lanes, last_drafted.size() - 1)];
    std::size_t best = 0, as_before = all.size();
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (!covers(all[i], going)) continue;
        if (all[i].n_drafted == last) as_before = i;
        if (worth(all[i]) > worth(all[best])) best = i;
    }
    // A call of as many tokens as before can reuse its graph.
    if (as_before < all.size()) {
        const double least = kStayShare * going.rate * going.costs.expected_s(all[best].n_drafted);
        if (worth(all[best]) - worth(all[as_before]) < least) best = as_before;
    }
    last = all[best].n_drafted;
    return all[try_cost(going, best)];
}

// The option to run instead of the best one because what it costs should be known.
std::size_t Gate::State::try_cost(const Going& going, std::size_t best) {
    const auto all = options.all();
    const auto worth = [&](std::size_t i) {
        return all[i].n_right - going.rate * going.costs.expected_s(all[i].n_drafted);
    };
    // One call in so many: too little to ask the budget, which others may have used up.
    const std::uint64_t n_since_plain = going.costs.n_calls_since_plain();
    const std::uint64_t interval = std::min(kPlainInterval, kFirstInterval * going.costs.n_plain());
    if (best != 0 && n_since_plain >= interval) return 0;
    if (best != 0 && n_since_plain >= kVagueInterval && going.costs.deviation(all[best].n_drafted) > kVague) {
        if (budget.take((worth(best) - worth(0)) / going.rate)) return 0;
    }
    std::size_t hoped = best;
    double most = worth(best);
    for (std::size_t i = 0; i < all.size(); ++i) {
        const double hopeful_s = going.costs.hopeful_s(all[i].n_drafted);
        if (!(hopeful_s < going.costs.expected_s(all[i].n_drafted)) || !covers(all[i], going)) continue;
        const double here = all[i].n_right - going.rate * hopeful_s;
        if (here <= most) continue;
        most = here;
        hoped = i;
    }
    if (hoped == best) return best;
    const double lost = worth(best) - (worth(hoped) + most) / 2;
    if (tries_branches) return hoped;  // paid for already
    return budget.take(std::max(lost, 0.0) / going.rate) ? hoped : best;
}

// What would be verified if it could be afforded.
void Gate::State::decline(const Going& going, std::span<Choice> choices) {
    StepOption wanted;
    const auto worth = [&](const StepOption& option) {
        return option.n_right - going.rate * going.costs.expected_s(option.n_drafted);
    };
    for (const StepOption& option : options.all()) {
        if (worth(option) > worth(wanted)) wanted = option;
    }
    if (covers(wanted, going)) return;
    options.widths(wanted, widths);
    const auto n_sharing = std::count_if(widths.begin(), widths.end(), [](auto width) { return width > 0; });
    for (std::size_t i = 0; i < choices.size(); ++i) {
        if (widths[i] == 0 || !seats[i].best->nodes.empty()) continue;
        choices[i].proposal = seats[i].best->proposal;
        choices[i].declined = {
            widths[i],        0,        static_cast<std::int32_t>(choices.size()), static_cast<std::int32_t>(n_sharing),
            wanted.n_drafted, n_longest};
    }
}

std::vector<Choice> Gate::State::choose(std::span<const LaneSituation> lanes, std::span<const Proposal> proposals) {
    std::vector<Choice> choices;
    for (const LaneSituation& lane : lanes) choices.push_back({lane.lane, 0, 0});
    if (lanes.empty() || config.n_most == 0) return choices;
    seat(lanes);
    if (!config.is_on) return first_choices(lanes, proposals);
    const Going both = going(lanes);
    if (!both.costs.is_known()) return choices;
    weigh(lanes, proposals, both, true);
    const Going now = as_decided(both);

    lay_out(lanes);
    const StepOption chosen = decide(now, lanes.size());
    widths.assign(lanes.size(), 0);
    options.widths(chosen, widths);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        if (widths[i] > 0) {
            std::vector<std::size_t>& nodes = seats[i].best->nodes;
            nodes.resize(std::min(nodes.size(), static_cast<std::size_t>(widths[i])));
            std::sort(nodes.begin(), nodes.end());
            choices[i] = {lanes[i].lane, seats[i].best->proposal, widths[i], std::move(nodes)};
        }
        if (!is_lane(lanes[i].lane)) continue;
        acceptance.fade(lanes[i].lane);
        tree_chances.fade(lanes[i].lane);
    }

    if (chosen.n_drafted == 0) decline(now, choices);

    const double step_s = now.costs.expected_s(chosen.n_drafted) + std::exchange(asked_s, 0);
    const double plain_s = now.costs.plain_s();
    speed_up(lanes.size()).observe(1 + chosen.n_right / static_cast<double>(lanes.size()), step_s / plain_s);
    budget.earn(step_s, kMostCredit * plain_s);
    return choices;
}

std::vector<Choice> Gate::State::first_choices(std::span<const LaneSituation> lanes,
                                               std::span<const Proposal> proposals) {
    const std::int32_t n_equal = config.wants_equal_widths ? n_equal_most(lanes) : config.n_most;
    std::vector<Choice> choices;
    for (const LaneSituation& lane : lanes) choices.push_back({lane.lane, 0, 0});
    for (std::size_t p = 0; p < proposals.size(); ++p) {
        if (!is_stake(lanes, proposals[p])) continue;
        const auto at = static_cast<std::size_t>(seat_of_lane[static_cast<std::size_t>(proposals[p].lane)]);
        Choice& choice = choices[at];
        if (choice.width > 0 && proposals[choice.proposal].source <= proposals[p].source) continue;
        const auto length = static_cast<std::int32_t>(
            std::min(proposals[p].confidence.size(), static_cast<std::size_t>(config.n_most)));
        choice.proposal = p;
        choice.width = std::min({length, n_most_of(lanes[at]), n_equal});
    }
    return choices;
}

void Gate::State::observe_verdict(const Proposal& proposal, std::int32_t width, std::int32_t n_accepted) {
    if (!is_lane(proposal.lane) || proposal.source >= config.sources.size() || width < 1) return;
    const auto n = std::min(static_cast<std::size_t>(width), proposal.confidence.size());
    acceptance.observe(proposal.lane, proposal.source, proposal.confidence.first(n), n_accepted);
}

// Over what the tokens that they bring are worth: calls of these lanes and no others, with fewer tokens than the one
// that was in vain, and so no dearer. Of what such steps cost their repetition is a part: by that alone it would be
// counted again and again.
double Gate::State::again_s(const StepCost& step) {
    const std::int32_t n_back = std::clamp(step.n_back, 1, step.n_lanes);
    const CostCurve& theirs = call_costs.curve(n_back, step.n_longest);
    const double call_s = theirs.is_known() ? std::min(theirs.expected_s(step.n_redone), step.seconds) : step.seconds;
    const CostCurve& all = call_costs.curve(step.n_lanes, step.n_longest);
    return all.is_known() ? std::max(call_s - all.plain_s() * n_back / step.n_lanes, 0.0) : call_s;
}

// A plain call behind one of another shape is dearer than behind a plain one: graph and inputs are made anew.
// Speculation is what brings that about, so the call before it is charged with the difference, and only plain calls
// behind plain ones say what plain decoding costs.
void Gate::State::observe_step(StepCost step) {
    if (step.n_redone > 0) step.seconds += again_s(step);
    const std::optional<StepCost> before = std::exchange(last_call, step);
    const bool was_settled = last_is_settled;
    const double asked_for_s = std::exchange(drafts_s, 0);
    const CostCurve& costs = costs_of(step).curve(step.n_lanes, step.n_longest);
    const bool was_known = costs.is_known();
    const double plain_s = costs.plain_s();
    const bool is_plain = step.n_tokens == step.n_lanes;
    if (step.follows_prompt) n_settling = kSettling;
    const bool is_usual = n_settling == 0 && !step.is_first;
    const bool is_settled = is_usual || n_untaught >= kMostUntaught;
    n_untaught = is_usual ? 0 : std::min(n_untaught + 1, kMostUntaught);
    n_settling = std::max(n_settling - 1, 0);
    last_is_settled = is_settled;
    const bool was_drafted = before && before->n_tokens > before->n_lanes;
    const bool is_behind = before && before->n_lanes == step.n_lanes && !step.follows_prompt;
    double saved_s = -asked_for_s;
    if (is_plain && is_behind && was_drafted && was_known) {
        StepCost charged = *before;
        const double more_s = std::clamp(step.seconds - plain_s, 0.0, kMostBehind * plain_s);
        charged.seconds += more_s;
        if (was_settled) learn(charged);
        saved_s -= more_s;
    } else {
        if (was_drafted && was_settled) learn(*before);
        const bool is_typical = before && !was_drafted && is_behind;
        if (is_plain && is_settled && (is_typical || !was_known)) learn(step);
    }
    if (!was_known) return;  // it may be now, but what a plain call costs was read before
    if (!is_plain) {
        const double took_s = std::min(step.seconds, kMostOver * costs.expected_s(step.n_tokens - step.n_lanes));
        saved_s += plain_s * (1 + static_cast<double>(step.n_right) / step.n_lanes) - took_s;
    }
    earnings.book(plain_s, saved_s, kMostEarned * plain_s);
}

Gate::Gate(GateConfig config) : state_(std::make_unique<State>(std::move(config))) {}
Gate::~Gate() = default;

std::vector<Ask> Gate::asks(std::span<const LaneSituation> lanes, std::span<const Proposal> free_proposals) {
    return state_->asks(lanes, free_proposals);
}

bool Gate::can_pay(std::span<const LaneSituation> lanes, SourceIndex source) {
    if (!state_->config.is_on || lanes.empty() || source >= state_->config.sources.size()) return true;
    return state_->can_pay(lanes, source);
}

std::vector<Choice> Gate::choose(std::span<const LaneSituation> lanes, std::span<const Proposal> proposals) {
    return state_->choose(lanes, proposals);
}

bool Gate::takes_trees() const { return !state_->config.is_on || state_->takes_trees; }

void Gate::observe_draft(SourceIndex source, std::int32_t n_lanes, std::int32_t n_tokens, double seconds,
                         double put_off_s) {
    if (source >= state_->draft_costs.size()) return;
    const double spent_s = seconds + put_off_s;
    const bool is_possible = seconds > 0 && put_off_s >= 0 && spent_s < kLongest_s;
    if (is_possible) state_->drafts_s += spent_s;
    state_->draft_costs[source].observe(n_lanes, n_tokens, state_->n_longest, seconds);
    const std::optional<State::Tried> tried = std::exchange(state_->tried, std::nullopt);
    if (!tried || tried->source != source || !is_possible) return;
    state_->budget.settle(tried->untaken_s + spent_s - tried->expected_s);
}

void Gate::observe_failed_draft(double seconds) {
    if (!(seconds > 0 && seconds < kLongest_s)) return;
    state_->drafts_s += seconds;
    if (const auto tried = std::exchange(state_->tried, std::nullopt)) {
        state_->budget.settle(tried->untaken_s + seconds - tried->expected_s);
    }
}

void Gate::observe_rehearsed_step(const StepCost& step) {
    const int weight = step.n_tokens > step.n_lanes ? kRehearsalWeight : 1;
    for (int i = 0; i < weight; ++i) state_->learn(step);
}

void Gate::observe_rehearsed_draft(SourceIndex source, std::int32_t n_lanes, std::int32_t n_tokens, double seconds) {
    if (source >= state_->draft_costs.size()) return;
    for (int i = 0; i < kRehearsalWeight; ++i) state_->draft_costs[source].observe(n_lanes, n_tokens, 0, seconds);
}

void Gate::observe_step(const StepCost& step) {
    if (step.n_lanes < 1 || step.n_lanes > state_->config.n_lanes || step.n_tokens < step.n_lanes) return;
    if (!(step.seconds > 0 && step.seconds < kLongest_s)) return;
    for (DraftCosts& costs : state_->draft_costs) costs.pass(step.seconds);
    state_->observe_step(step);
}

void Gate::observe_verdict(const Proposal& proposal, std::int32_t width, std::int32_t n_accepted) {
    state_->observe_verdict(proposal, width, n_accepted);
}

void Gate::observe_verdicts(const Proposal& proposal, std::span<const TreeVerdict> verdicts) {
    if (!state_->is_lane(proposal.lane) || proposal.source >= state_->config.sources.size()) return;
    state_->tree_chances.observe(state_->acceptance, proposal.lane, proposal.source, proposal.confidence,
                                 proposal.parents, verdicts);
}

void Gate::observe_declined(const DeclinedDraft& draft) {
    const State& state = *state_;
    const bool can_be = draft.n_lanes >= 1 && draft.n_lanes <= state.config.n_lanes && draft.n_sharing >= 1 &&
                        draft.n_drafted >= 1 && draft.n_drafted <= draft.n_lanes * state.config.n_most;
    if (!can_be) return;
    const CostCurve& costs = state_->call_costs.curve(draft.n_lanes, draft.n_longest);
    if (!costs.is_known()) return;
    const double plain_s = costs.plain_s();
    // As is expected, not the worst: nothing is risked by it, and what is never tried is never known better.
    const double call_s = costs.expected_s(draft.n_drafted);
    const double share_s = (call_s - plain_s) / draft.n_sharing;
    const double saved_s = plain_s * std::clamp(draft.n_right, 0, draft.width) / draft.n_lanes - share_s;
    state_->earnings.book_declined(saved_s, -kMostDebt * plain_s, kMostDeclined * plain_s);
}

void Gate::begin(LaneId lane) {
    if (!state_->is_lane(lane)) return;
    state_->n_settling = kSettling;
    state_->prefill_start_at[static_cast<std::size_t>(lane)] = -1;
    state_->acceptance.begin(lane);
    state_->tree_chances.begin(lane);
    state_->draft_worth.begin(lane);
    for (SpeedUp& speed_up : state_->speed_ups) speed_up.forget(1.0 / state_->config.n_lanes);
}

std::optional<double> Gate::relative_cost(std::int32_t n_lanes, std::int32_t n_tokens) const {
    if (n_lanes < 1 || n_lanes > state_->config.n_lanes || n_tokens < n_lanes) return std::nullopt;
    const CostCurve& costs = state_->call_costs.curve(n_lanes, state_->n_longest);
    if (!costs.is_known() || costs.deviation(n_tokens - n_lanes) > kKnown) return std::nullopt;
    return costs.expected_s(n_tokens - n_lanes) / costs.plain_s();
}

}  // namespace luce::speculation
