#include "speculation/controller/speculation_controller.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace luce::speculation {
namespace {

constexpr double kStartGrant = 1;    // plain steps that may go into finding out at first
constexpr double kMostTrials = 4;    // plain steps' worth that is put by for trials
constexpr double kMostSaved = 20;    // plain steps: what copies have saved is not for other texts to lose
constexpr double kMostCarried = 2;   // of these, from one text to the next where n-grams alone draft
constexpr double kStayShare = 0.01;  // of a step's worth: better by less is no reason to change the width
constexpr double kLateShare = 1.0 / 32;
constexpr double kLongShare = 1.0 / 512;

// Everything is compared with the plain call: it is measured again after so many others.
constexpr std::uint64_t kPlainInterval = 128;
constexpr std::uint64_t kFirstInterval = 8;  // for each time that it was measured before
constexpr double kKnown = 0.2;               // the deviation at which a ratio may be told to people

// The first calls of an answer are dearer, whatever they verify: weights have to come back into caches, above all
// behind a prompt. So are those for which graphs are made. They teach nothing, unless there are no others for long.
constexpr std::int32_t kSettling = 4;
constexpr std::int32_t kMostUntaught = 24;
constexpr double kMostBehind = 2;  // plain steps that a call can add to the one behind it
constexpr double kMostOver = 3;    // times what a call should have taken: beyond, others have taken the processor

// What takes much longer than was guessed is taken for an accident unless it comes again. In the warm-up it was alone.
constexpr int kWarmupWeight = 3;

ControllerConfig checked(ControllerConfig config) {
    config.n_lanes = std::max(config.n_lanes, 1);
    config.n_most = std::max(config.n_most, 0);
    return config;
}

// Of what is asked for: n-grams are free and may be longer.
std::int32_t n_longest_asked(const ControllerConfig& config) {
    std::int32_t n_longest = 0;
    for (const SourceTraits& traits : config.sources) {
        if (!traits.is_free) n_longest = std::max(n_longest, std::min(traits.n_most, config.n_most));
    }
    return n_longest;
}

std::span<const float> pick(std::span<const float> from, std::span<const std::size_t> nodes, std::span<float> to) {
    for (std::size_t i = 0; i < nodes.size(); ++i) to[i] = from[nodes[i]];
    return to.first(nodes.size());
}

}  // namespace

SpeculationController::SpeculationController(ControllerConfig config)
    : config_(checked(std::move(config))),
      has_trees_(
          std::any_of(config_.sources.begin(), config_.sources.end(), [](const auto& s) { return s.can_branch; })),
      has_models_(n_longest_asked(config_) > 0),
      n_in_a_row_(static_cast<std::size_t>(config_.n_lanes)),
      call_costs_(1, 0),
      tree_costs_(1, 0),
      acceptance_(static_cast<std::size_t>(config_.n_lanes), config_.sources.size()),
      tree_chances_(static_cast<std::size_t>(config_.n_lanes), config_.sources.size()),
      draft_value_(static_cast<std::size_t>(config_.n_lanes), config_.sources.size(), n_longest_asked(config_)),
      readings_(static_cast<std::size_t>(config_.n_lanes), config_.sources.size()),
      speeds_(static_cast<std::size_t>(config_.n_lanes)),
      long_speeds_(static_cast<std::size_t>(config_.n_lanes)),
      last_drafted_(static_cast<std::size_t>(config_.n_lanes) + 1),
      answer_at_(static_cast<std::size_t>(config_.n_lanes), -1) {
    forget_costs();
}

void SpeculationController::forget_costs() {
    call_costs_ = CostModel(config_.n_lanes, config_.n_most);
    tree_costs_ = CostModel(config_.n_lanes, has_trees_ ? config_.n_most : 0);
    draft_costs_.clear();
    readings_ = ReadingValue(static_cast<std::size_t>(config_.n_lanes), config_.sources.size());
    prospect_ = {};
    for (const SourceTraits& traits : config_.sources) {
        draft_costs_.emplace_back(config_.n_lanes, std::min(traits.n_most, config_.n_most));
    }
}

std::int32_t SpeculationController::n_equal_most(std::span<const LaneState> lanes) const {
    std::int32_t most = config_.n_most;
    for (const LaneState& lane : lanes) most = std::min(most, n_most_of(lane));
    return most;
}

SpeculationController::Situation SpeculationController::begin_step(std::span<const LaneState> lanes) {
    lanes_.assign(lanes.size(), {});
    n_longest_ = 0;
    for (const LaneState& lane : lanes) n_longest_ = std::max(n_longest_, lane.n_text);
    const auto n_lanes = std::min(static_cast<std::int32_t>(lanes.size()), config_.n_lanes);
    const CostCurve& costs = call_costs_.curve(n_lanes, n_longest_);
    const CostCurve& branching = has_trees_ ? tree_costs_.curve(n_lanes, n_longest_) : costs;
    if (!costs.is_known()) return {costs, costs, 0};
    if (!std::exchange(was_granted_, true)) budget_.grant(kStartGrant * costs.plain_s());
    plain_s_ = costs.plain_s();
    n_trusted_ = 0;
    for (const LaneState& lane : lanes) {
        if (is_lane(lane.lane)) n_trusted_ += n_in_a_row_[static_cast<std::size_t>(lane.lane)];
    }
    const Speed& of_late = speed(lanes.size());
    const double rate = std::max(1.0, of_late.tokens / of_late.time) * n_lanes / costs.plain_s();
    return {costs, branching.is_known() ? branching : costs, rate};
}

// Whose proposal it is, if it may be verified.
std::optional<std::size_t> SpeculationController::place_of(std::span<const LaneState> lanes,
                                                           const Proposal& proposal) const {
    if (!is_lane(proposal.lane) || proposal.source >= config_.sources.size() || proposal.confidence.empty()) return {};
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        if (lanes[i].lane == proposal.lane) return n_most_of(lanes[i]) > 0 ? std::optional(i) : std::nullopt;
    }
    return {};
}

// The proposal as it is and without branches. `room`: for the chances of its tokens, of a tree for those of its
// likeliest chain besides.
std::pair<SpeculationController::Weighed, SpeculationController::Weighed> SpeculationController::weigh_one(
    std::size_t index, const Proposal& proposal, std::span<float> room, const Situation& now,
    std::int32_t n_alike) const {
    if (proposal.parents.empty()) {
        acceptance_.chances(proposal.lane, proposal.source, proposal.confidence.first(room.size()), room);
        const Weighed chain{index, room, best_part(room, now.costs, now.rate, n_alike)};
        return {chain, chain};
    }
    const std::vector<float> all =
        tree_chances_.chances(acceptance_, proposal.lane, proposal.source, proposal.confidence, proposal.parents);
    const std::size_t n = room.size() / 2;
    Weighed tree{index, {}, {}, likeliest_nodes(all, n)},
        chain{index, {}, {}, likeliest_chain(all, proposal.parents, n)};
    tree.chances = pick(all, tree.nodes, room.first(n));
    chain.chances = pick(all, chain.nodes, room.subspan(n));
    tree.part = best_part(tree.chances, now.branching, now.rate, n_alike);
    chain.part = best_part(chain.chances, now.costs, now.rate, n_alike);
    return {tree, chain};
}

// Finds each lane's best proposal. `has_answers`: all are there, so sources that were asked have answered.
void SpeculationController::weigh(std::span<const LaneState> lanes, std::span<const Proposal> proposals,
                                  const Situation& now, bool has_answers) {
    std::vector<std::optional<std::size_t>> places;
    std::size_t n_chances = 0;
    std::int32_t n_alike = 0;
    bool has_tree = false;
    for (const Proposal& proposal : proposals) {
        places.push_back(place_of(lanes, proposal));
        if (!places.back()) continue;
        n_chances += 2 * std::min(proposal.confidence.size(), static_cast<std::size_t>(config_.n_most));
        has_tree = has_tree || !proposal.parents.empty();
        ++n_alike;
    }
    chances_.resize(n_chances);
    if (!has_answers) n_alike = std::max(n_alike, n_sharing_);
    n_alike = std::clamp(n_alike, 1, static_cast<std::int32_t>(lanes.size()));
    if (has_answers) n_sharing_ = n_alike;
    std::vector<std::pair<Weighed, Weighed>> answers;
    std::size_t n_used = 0;
    for (std::size_t i = 0; i < proposals.size(); ++i) {
        if (!places[i]) continue;
        const Proposal& proposal = proposals[i];
        const std::size_t n =
            std::min(proposal.confidence.size(), static_cast<std::size_t>(n_most_of(lanes[*places[i]])));
        const std::span<float> room = std::span(chances_).subspan(n_used, proposal.parents.empty() ? n : 2 * n);
        n_used += room.size();
        const auto weighed = weigh_one(i, proposal, room, now, n_alike);
        Lane& lane = lanes_[*places[i]];
        if (!lane.best || weighed.first.part.worth > lane.best->part.worth) lane.best = weighed.first;
        if (!lane.best_chain || weighed.second.part.worth > lane.best_chain->part.worth)
            lane.best_chain = weighed.second;
        if (has_answers && draft_value_.is_asked(proposal.lane, proposal.source)) answers.push_back(weighed);
    }
    if (!has_answers) return;
    tries_branches_ = false;
    takes_trees_ = has_tree && prefers_trees(now);
    for (Lane& lane : lanes_) {
        if (has_tree && !takes_trees_) lane.best = lane.best_chain;
    }
    for (const auto& [tree, chain] : answers) {
        const Weighed& draft = takes_trees_ ? tree : chain;
        const Taken taken = {draft.part.n_right, draft.part.width > 0 ? 1.0 : 0.0,
                             static_cast<double>(draft.part.width)};
        const Proposal& proposal = proposals[draft.proposal];
        draft_value_.observe(proposal.lane, proposal.source, draft.part.worth, taken, draft.chances);
    }
    for (const LaneState& lane : lanes) {
        for (SourceIndex s = 0; is_lane(lane.lane) && s < config_.sources.size(); ++s) {
            if (draft_value_.is_asked(lane.lane, s)) draft_value_.observe(lane.lane, s, 0, {}, {});
        }
    }
}

// Of all lanes' drafts together: a call either has branches or none. What branches cost is found out now and then where
// it may have become less.
bool SpeculationController::prefers_trees(const Situation& now) {
    double with_branches = 0, without = 0, hoped = 0;
    std::int32_t n_hoped = 0;
    for (const Lane& lane : lanes_) {
        if (!lane.best) continue;
        with_branches += lane.best->part.worth;
        without += lane.best_chain->part.worth;
        hoped += std::accumulate(lane.best->chances.begin(), lane.best->chances.end(), 0.0);
        n_hoped += static_cast<std::int32_t>(lane.best->chances.size());
    }
    if (with_branches >= without) return true;
    const double hopeful_s = now.branching.hopeful_s(n_hoped);
    hoped -= now.rate * (hopeful_s - now.branching.plain_s());
    if (hoped <= without || !(hopeful_s < now.branching.expected_s(n_hoped))) return false;
    tries_branches_ = budget_.take((without - (with_branches + hoped) / 2) / now.rate);
    return tries_branches_;
}

void SpeculationController::lay_out(std::span<const LaneState> lanes) {
    std::vector<Chances> best;
    for (const Lane& lane : lanes_) best.push_back(lane.best ? lane.best->chances : Chances{});
    if (config_.wants_equal_widths)
        options_.lay_out_equal(best, n_equal_most(lanes), config_.n_most);
    else
        options_.lay_out(best);
}

// The option worth most; if another one is to be measured, that one.
StepOption SpeculationController::decide(const Situation& now, std::size_t n_lanes) {
    const auto all = options_.all();
    std::int32_t& last = last_drafted_[std::min(n_lanes, last_drafted_.size() - 1)];
    std::size_t best = 0, as_before = all.size();
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (!covers(all[i], now)) continue;
        if (all[i].n_drafted == last) as_before = i;
        if (worth(all[i], now) > worth(all[best], now)) best = i;
    }
    // A call of as many tokens as before can reuse its graph.
    if (as_before < all.size()) {
        const double least = kStayShare * now.rate * now.costs.expected_s(all[best].n_drafted);
        if (worth(all[best], now) - worth(all[as_before], now) < least) best = as_before;
    }
    last = all[best].n_drafted;
    return all[try_cost(now, best)];
}

// The option to run instead of the best one because what it costs should be known.
std::size_t SpeculationController::try_cost(const Situation& now, std::size_t best) {
    const auto all = options_.all();
    // One call in so many: too little to ask the budget, which others may have used up.
    if (best != 0 &&
        now.costs.n_calls_since_plain() >= std::min(kPlainInterval, kFirstInterval * now.costs.n_plain())) {
        return 0;
    }
    std::size_t hoped = best;
    double most = worth(all[best], now);
    for (std::size_t i = 0; i < all.size(); ++i) {
        const double hopeful_s = now.costs.hopeful_s(all[i].n_drafted);
        if (!(hopeful_s < now.costs.expected_s(all[i].n_drafted)) || !covers(all[i], now)) continue;
        const double here = all[i].n_right - now.rate * hopeful_s;
        if (here <= most) continue;
        most = here;
        hoped = i;
    }
    if (hoped == best || tries_branches_) return hoped;  // of branches it is paid for already
    const double lost = worth(all[best], now) - (worth(all[hoped], now) + most) / 2;
    return budget_.take(std::max(lost, 0.0) / now.rate) ? hoped : best;
}

std::vector<Choice> SpeculationController::choose(std::span<const LaneState> lanes,
                                                  std::span<const Proposal> proposals) {
    std::vector<Choice> choices;
    for (const LaneState& lane : lanes) choices.push_back({lane.lane, 0, 0});
    if (lanes.empty() || config_.n_most == 0) return choices;
    if (!config_.is_adaptive) return first_choices(lanes, proposals);
    const Situation both = begin_step(lanes);
    if (!both.costs.is_known()) return choices;
    weigh(lanes, proposals, both, true);
    const Situation now = takes_trees_ ? Situation{both.branching, both.branching, both.rate} : both;
    lay_out(lanes);
    const StepOption chosen = decide(now, lanes.size());
    std::vector<std::int32_t> widths(lanes.size());
    options_.widths(chosen, widths);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        if (widths[i] > 0) {
            std::vector<std::size_t>& nodes = lanes_[i].best->nodes;
            nodes.resize(std::min(nodes.size(), static_cast<std::size_t>(widths[i])));
            std::sort(nodes.begin(), nodes.end());
            choices[i] = {lanes[i].lane, lanes_[i].best->proposal, widths[i], std::move(nodes)};
        }
        if (!is_lane(lanes[i].lane)) continue;
        acceptance_.fade(lanes[i].lane);
        tree_chances_.fade(lanes[i].lane);
    }
    const double step_s = now.costs.expected_s(chosen.n_drafted) + std::exchange(requested_s_, 0);
    const double plain_s = now.costs.plain_s();
    const Speed newest{1 + chosen.n_right / static_cast<double>(lanes.size()), step_s / plain_s};
    speed(lanes.size()).blend(newest, kLateShare);
    long_speeds_[std::min(lanes.size(), long_speeds_.size()) - 1].blend(newest, kLongShare);
    budget_.earn_trials(step_s, kMostTrials * plain_s);
    return choices;
}

std::vector<Choice> SpeculationController::first_choices(std::span<const LaneState> lanes,
                                                         std::span<const Proposal> proposals) const {
    const std::int32_t n_equal = config_.wants_equal_widths ? n_equal_most(lanes) : config_.n_most;
    std::vector<Choice> choices;
    for (const LaneState& lane : lanes) choices.push_back({lane.lane, 0, 0});
    for (std::size_t p = 0; p < proposals.size(); ++p) {
        const std::optional<std::size_t> at = place_of(lanes, proposals[p]);
        if (!at) continue;
        Choice& choice = choices[*at];
        if (choice.width > 0 && proposals[choice.proposal].source <= proposals[p].source) continue;
        const std::size_t length = std::min(proposals[p].confidence.size(), static_cast<std::size_t>(config_.n_most));
        choice.proposal = p;
        choice.width = std::min({static_cast<std::int32_t>(length), n_most_of(lanes[*at]), n_equal});
    }
    return choices;
}

void SpeculationController::learn(const StepCost& step) {
    costs_of(step).observe(step.n_lanes, step.n_drafted(), step.n_longest, step.seconds);
    if (step.n_drafted() == 0 && has_trees_) tree_costs_.observe(step.n_lanes, 0, step.n_longest, step.seconds);
}

// Over what the tokens that they bring are worth: calls of these lanes and no others, with fewer tokens than the one
// that was in vain, and so no dearer. Of what such steps cost their repetition is a part: by that alone it would be
// counted again and again.
double SpeculationController::again_s(const StepCost& step) {
    const std::int32_t n_back = std::clamp(step.n_back, 1, step.n_lanes);
    const CostCurve& theirs = call_costs_.curve(n_back, step.n_longest);
    const double call_s = theirs.is_known() ? std::min(theirs.expected_s(step.n_redone), step.seconds) : step.seconds;
    const CostCurve& all = call_costs_.curve(step.n_lanes, step.n_longest);
    return all.is_known() ? std::max(call_s - all.plain_s() * n_back / step.n_lanes, 0.0) : call_s;
}

// A plain call behind one of another shape is dearer than behind a plain one: graph and inputs are made anew.
// Speculation is what brings that about, so the call before it is charged with the difference, and only plain calls
// behind plain ones say what plain decoding costs.
void SpeculationController::observe_step(const StepCost& given) {
    StepCost step = given;
    if (step.n_lanes < 1 || step.n_lanes > config_.n_lanes || step.n_tokens < step.n_lanes) return;
    if (!(step.seconds > 0 && step.seconds < kLongest_s)) return;
    for (DraftCosts& costs : draft_costs_) costs.pass(step.seconds);
    if (step.n_redone > 0) step.seconds += again_s(step);
    const std::optional<StepCost> before = std::exchange(last_call_, step);
    const bool was_usual = last_is_usual_;
    const CostCurve& costs = costs_of(step).curve(step.n_lanes, step.n_longest);
    const bool was_known = costs.is_known(), is_plain = step.n_drafted() == 0;
    const double plain_s = costs.plain_s();
    if (step.follows_prompt) n_settling_ = kSettling;
    const bool is_settled = n_settling_ == 0 && !step.is_first;
    last_is_usual_ = is_settled || n_untaught_ >= kMostUntaught;
    n_untaught_ = is_settled ? 0 : std::min(n_untaught_ + 1, kMostUntaught);
    n_settling_ = std::max(n_settling_ - 1, 0);
    const bool was_drafted = before && before->n_drafted() > 0;
    const bool is_behind = before && before->n_lanes == step.n_lanes && !step.follows_prompt;
    double saved_s = -std::exchange(drafts_s_, 0);
    if (is_plain && is_behind && was_drafted && was_known) {
        StepCost charged = *before;
        const double more_s = std::clamp(step.seconds - plain_s, 0.0, kMostBehind * plain_s);
        charged.seconds += more_s;
        if (was_usual) learn(charged);
        saved_s -= more_s;
    } else {
        if (was_drafted && was_usual) learn(*before);
        if (is_plain && last_is_usual_ && ((is_behind && !was_drafted) || !was_known)) learn(step);
    }
    if (!was_known) return;  // it may be now, but what a plain call costs was read before
    if (!is_plain) {
        const double took_s = std::min(step.seconds, kMostOver * costs.expected_s(step.n_drafted()));
        saved_s += plain_s * (1 + static_cast<double>(step.n_right) / step.n_lanes) - took_s;
    }
    budget_.book(plain_s, saved_s, kMostSaved * plain_s);
}

void SpeculationController::observe_draft(SourceIndex source, std::int32_t n_lanes, std::int32_t n_tokens,
                                          double seconds, double put_off_s) {
    if (source >= draft_costs_.size()) return;
    draft_costs_[source].observe(n_lanes, n_tokens, n_longest_, seconds);
    if (seconds > 0 && put_off_s >= 0) observe_failed_draft(seconds + put_off_s);
}

void SpeculationController::observe_failed_draft(double seconds) {
    if (!(seconds > 0 && seconds < kLongest_s)) return;
    drafts_s_ += seconds;
    if (const auto trial = std::exchange(trial_, std::nullopt)) {
        budget_.settle(trial->unpaid_s + seconds - trial->expected_s);
    }
}

void SpeculationController::observe_warmup_step(const StepCost& step) {
    for (int i = 0; i < (step.n_drafted() > 0 ? kWarmupWeight : 1); ++i) learn(step);
}

void SpeculationController::observe_warmup_draft(SourceIndex source, std::int32_t n_lanes, std::int32_t n_tokens,
                                                 double seconds) {
    for (int i = 0; i < kWarmupWeight && source < draft_costs_.size(); ++i) {
        draft_costs_[source].observe(n_lanes, n_tokens, 0, seconds);
    }
}

void SpeculationController::observe_verdict(const Proposal& proposal, std::int32_t width, std::int32_t n_accepted) {
    if (!is_lane(proposal.lane) || proposal.source >= config_.sources.size() || width < 1) return;
    const auto n = std::min(static_cast<std::size_t>(width), proposal.confidence.size());
    acceptance_.observe(proposal.lane, proposal.source, proposal.confidence.first(n), n_accepted);
    std::int32_t& n_in_a_row = n_in_a_row_[static_cast<std::size_t>(proposal.lane)];
    n_in_a_row = n_accepted < static_cast<std::int32_t>(n) ? n_accepted : n_in_a_row + n_accepted;
}

void SpeculationController::observe_verdicts(const Proposal& proposal, std::span<const TreeVerdict> verdicts) {
    if (!is_lane(proposal.lane) || proposal.source >= config_.sources.size()) return;
    tree_chances_.observe(acceptance_, proposal.lane, proposal.source, proposal.confidence, proposal.parents, verdicts);
}

// A share of the lanes serves another text now, of which the average speed is expected.
void SpeculationController::begin(LaneId lane) {
    if (!is_lane(lane)) return;
    n_settling_ = kSettling;
    answer_at_[static_cast<std::size_t>(lane)] = -1;
    n_in_a_row_[static_cast<std::size_t>(lane)] = 0;
    if (!has_models_) budget_.carry(kMostCarried * plain_s_);
    acceptance_.begin(lane);
    tree_chances_.begin(lane);
    draft_value_.begin(lane);
    for (std::size_t i = 0; i < speeds_.size(); ++i) speeds_[i].blend(long_speeds_[i], 1.0 / config_.n_lanes);
}

std::optional<double> SpeculationController::relative_cost(std::int32_t n_lanes, std::int32_t n_tokens) {
    if (n_lanes < 1 || n_lanes > config_.n_lanes || n_tokens < n_lanes) return std::nullopt;
    const CostCurve& costs = call_costs_.curve(n_lanes, n_longest_);
    if (!costs.is_known() || costs.deviation(n_tokens - n_lanes) > kKnown) return std::nullopt;
    return costs.expected_s(n_tokens - n_lanes) / costs.plain_s();
}

}  // namespace luce::speculation
