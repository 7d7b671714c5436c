// The part of SpeculationController that decides who is asked for a draft: those in whom it is expected to bring more
// than it costs, and now and then one of the others.
#include <algorithm>
#include <utility>

#include "speculation/controller/speculation_controller.h"

namespace luce::speculation {
namespace {

constexpr double kGuessedDraft = 0.3;  // a draft's cost in plain steps before it was measured
constexpr double kLeastGain = 0.02;    // tokens a lane: asking for less is not worth the trouble
constexpr double kMostTrial = 3.8;     // plain steps: buys any trial; what it really cost is taken afterwards
constexpr double kKnownPrice = 1.25;   // the worst of it in what is expected
constexpr double kBestModel = 0.95;    // a model's drafts are right no more often, token for token
// What may go into finding out what drafts are worth at first: so many of them, and plain steps at the most.
constexpr double kFirstTrials = 4;
constexpr double kDraftGrant = 3;
constexpr double kLikelyGain = 0.15;  // of a plain step a token, where drafts turn out to pay
constexpr double kLikelyAsks = 2;     // drafts that this counts for beside those that were asked for
constexpr std::int32_t kProspectTokens = 32;
// Of plain decoding's speed: where less is to be gained at best, drafts are left alone. A model's texts are seldom the
// best, and it takes time to find out.
constexpr double kLeastProspect = 0.03;
constexpr double kLeastModelProspect = 0.1;

}  // namespace

// At best a lane alone or all of them verify drafts of some width, and copies are right to their end.
bool SpeculationController::could_pay(SourceIndex source, std::int32_t n_lanes, const Situation& now) const {
    const bool is_free = config_.sources[source].is_free;
    const double plain_s = now.costs.plain_s();
    const auto gains = [&](std::int32_t n_drafting, std::int32_t width, double n_right) {
        const std::int32_t n_verifying = config_.wants_equal_widths ? n_lanes : n_drafting;
        double call_s = now.costs.hopeful_s(n_verifying * width);
        if (!is_free) {
            call_s += draft_costs_[source].hopeful_s(n_drafting, width, n_longest_).value_or(kGuessedDraft * plain_s);
        }
        const double speed = (1 + n_drafting * n_right / n_lanes) * plain_s / call_s;
        return speed >= 1 + (is_free ? kLeastProspect : kLeastModelProspect);
    };
    double n_right = 0, chance = 1;
    for (std::int32_t width = 1; width <= std::min(config_.n_most, config_.sources[source].n_most); ++width) {
        n_right += chance *= is_free ? 1 : kBestModel;
        if (gains(n_lanes, width, n_right) || gains(1, width, n_right)) return true;
    }
    return false;
}

// Looked at now and then: it hardly changes, and looking takes as long as a hundredth of a small model's call.
bool SpeculationController::can_pay(std::span<const LaneState> lanes, SourceIndex source) {
    if (!config_.is_adaptive || lanes.empty() || source >= config_.sources.size()) return true;
    const auto n_lanes = std::min(static_cast<std::int32_t>(lanes.size()), config_.n_lanes);
    std::int32_t n_text = 0;
    for (const LaneState& lane : lanes) n_text = std::max(n_text, lane.n_text);
    if (prospect_.n_lanes != n_lanes || n_text < prospect_.n_text || n_text >= prospect_.n_until) {
        const std::vector<Lane> kept = std::move(lanes_);
        const Situation now = begin_step(lanes);
        lanes_ = kept;
        prospect_ = {n_lanes, n_text, now.costs.is_known() ? n_text + kProspectTokens : n_text, {}};
        for (SourceIndex s = 0; s < config_.sources.size(); ++s) {
            prospect_.can_pay.push_back(!now.costs.is_known() || could_pay(s, n_lanes, now));
        }
    }
    return prospect_.can_pay[source];
}

double SpeculationController::draft_s(SourceIndex source, std::size_t n_lanes, std::int32_t n_tokens,
                                      const Situation& now) const {
    if (n_lanes == 0) return 0;
    const auto n = static_cast<std::int32_t>(n_lanes);
    return draft_costs_[source].cost_s(n, n_tokens, n_longest_).value_or(kGuessedDraft * now.costs.plain_s());
}

bool SpeculationController::can_afford(SourceIndex source, std::size_t n_lanes, std::int32_t n_tokens,
                                       const Situation& now) const {
    const auto n = static_cast<std::int32_t>(n_lanes);
    const std::optional<double> worst_s = draft_costs_[source].worst_s(n, n_tokens, n_longest_);
    return budget_.covers(worst_s.value_or(kGuessedDraft * now.costs.plain_s()));
}

bool SpeculationController::is_price_known(SourceIndex source, std::size_t n_lanes, std::int32_t n_tokens) const {
    const auto n = static_cast<std::int32_t>(n_lanes);
    const std::optional<double> worst_s = draft_costs_[source].worst_s(n, n_tokens, n_longest_);
    return worst_s && *worst_s <= kKnownPrice * *draft_costs_[source].cost_s(n, n_tokens, n_longest_);
}

// What the free proposals alone would make of this step: drafts have to bring more.
void SpeculationController::settle_free(std::span<const LaneState> lanes, const Situation& now) {
    lay_out(lanes);
    StepOption best;
    for (const StepOption& option : options_.all()) {
        if (covers(option, now) && worth(option, now) > worth(best, now)) best = option;
    }
    n_free_drafted_ = best.n_drafted;
    std::vector<std::int32_t> widths(lanes.size());
    options_.widths(best, widths);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        lanes_[i].free_width = widths[i];
        for (std::size_t n = 0; n < static_cast<std::size_t>(widths[i]); ++n) {
            lanes_[i].free_right += static_cast<double>(lanes_[i].best->chances[n]);
        }
    }
}

// Numbers of tokens to ask a source for: only where fewer cost less is there a choice.
std::vector<std::int32_t> SpeculationController::lengths(SourceIndex source, std::int32_t n_most) const {
    if (draft_costs_[source].wants_short_draft(n_longest_)) return {std::max(n_most / 3, 1)};
    std::vector<std::int32_t> lengths = {n_most};
    if (draft_costs_[source].is_flat()) return lengths;
    for (std::int32_t n = 1; n < n_most; n += 1 + n / 3) lengths.push_back(n);
    return lengths;
}

// What the members bring over what the free proposals do, less what drafting and verifying it costs.
double SpeculationController::group_value(std::span<const LaneState> lanes, const Group& group,
                                          const Situation& now) const {
    double n_right = 0, n_taking = 0, n_drafted = 0, n_beside = n_free_drafted_;
    for (const std::size_t i : group.members) {
        const std::int32_t n = std::min(group.n_tokens, n_most_of(lanes[i], group.source));
        const Taken taken = draft_value_.expected(lanes[i].lane, group.source, n);
        n_right += taken.n_right - taken.share * lanes_[i].free_right;
        n_taking += taken.share;
        n_drafted += taken.share * taken.width;
        n_beside -= taken.share * lanes_[i].free_width;
    }
    const double value = n_right - now.rate * draft_s(group.source, group.members.size(), group.n_tokens, now);
    if (n_taking <= 0) return value;
    const double often = std::min(n_taking, 1.0);  // less than one: that often one does
    double n_verified = n_drafted / often + std::max(n_beside, 0.0);
    if (config_.wants_equal_widths) {
        const double alike = static_cast<double>(lanes.size()) * n_drafted / n_taking;
        n_verified = std::max<double>(alike, n_free_drafted_);
    }
    const double extra_s = now.costs.expected_s(n_verified) - now.costs.expected_s(n_free_drafted_);
    return value - now.rate * often * extra_s;
}

// As many lanes, the best first, as bring most together: lanes that are drafted at once share the cost.
SpeculationController::Group SpeculationController::best_group(std::span<const LaneState> lanes, SourceIndex source,
                                                               const Situation& now) const {
    std::int32_t n_most = 0;
    for (const LaneState& lane : lanes) n_most = std::max(n_most, n_most_of(lane, source));
    Group best{source, 0, {}, 0};
    for (const std::int32_t n_tokens : lengths(source, n_most)) {
        std::vector<std::pair<double, std::size_t>> order;
        for (std::size_t i = 0; i < lanes.size(); ++i) {
            if (!is_lane(lanes[i].lane) || n_most_of(lanes[i], source) < 1) continue;
            order.push_back({-group_value(lanes, {source, n_tokens, {i}}, now), i});
        }
        std::sort(order.begin(), order.end());
        Group group{source, n_tokens};
        for (const auto& [loss, i] : order) {
            group.members.push_back(i);
            group.value = group_value(lanes, group, now) - kLeastGain * static_cast<double>(group.members.size());
            if (group.value > best.value) best = group;
        }
    }
    // All of them or none: what a few bring in spends what would pay for all.
    if (!can_afford(source, best.members.size(), best.n_tokens, now)) return {source, 0, {}, 0};
    return best;
}

// Adds lanes that have not been asked for long, if they can be afforded; where the price for several is not known, one.
// An answer goes on for about as long as it has gone on: before that pays for a draft there is nothing to be found out.
void SpeculationController::try_others(std::span<const LaneState> lanes, Group& group, const Situation& now) {
    const SourceIndex s = group.source;
    for (std::size_t turn = 0; turn < lanes.size(); ++turn) {
        const std::size_t i = (turn + n_turns_) % lanes.size();
        const LaneState& lane = lanes[i];
        if (!is_lane(lane.lane) || n_most_of(lane, s) < 1 || !draft_value_.is_due(lane.lane, s, lane.n_text)) continue;
        if (std::find(group.members.begin(), group.members.end(), i) != group.members.end()) continue;
        Group alone{s, 0, {i}, 0};
        for (const std::int32_t n : lengths(s, n_most_of(lane, s))) {
            const double value = group_value(lanes, {s, n, {i}}, now);
            if (alone.n_tokens == 0 || value > alone.value) alone = {s, n, {i}, value};
        }
        const std::size_t n_beside = group.members.size();
        const double alone_s = draft_s(s, 1, alone.n_tokens, now);
        const std::int32_t n_answered = lane.n_text - answer_at_[static_cast<std::size_t>(lane.lane)];
        if (kLikelyGain * n_answered * now.costs.plain_s() < alone_s) continue;
        if (!can_afford(s, n_beside + 1, alone.n_tokens, now)) continue;
        if (trial_ && !is_price_known(s, n_beside + 1, alone.n_tokens)) return;
        // The draft costs only what a further lane does.
        const double further_s =
            draft_s(s, n_beside + 1, alone.n_tokens, now) - draft_s(s, n_beside, alone.n_tokens, now);
        const double lost = now.rate * (further_s - alone_s) - alone.value;
        const double lost_s = std::max(lost, 0.0) / now.rate;
        // What is believed to be very dear may have been measured at a bad time.
        const double paid_s = std::min(lost_s, kMostTrial * now.costs.plain_s());
        if (!budget_.take(paid_s)) continue;
        group.members.push_back(i);
        group.n_tokens = std::max(group.n_tokens, alone.n_tokens);
        trial_ = Trial{s, alone_s, lost_s - paid_s};
    }
}

std::vector<DraftRequest> SpeculationController::book(std::span<const LaneState> lanes, const Group& group,
                                                      const Situation& now) {
    std::vector<DraftRequest> requests;
    requested_s_ += draft_s(group.source, group.members.size(), group.n_tokens, now);
    for (const std::size_t i : group.members) {
        const std::int32_t n = std::min(group.n_tokens, n_most_of(lanes[i], group.source));
        const double needed =
            now.rate * requested_s_ / static_cast<double>(group.members.size()) + lanes_[i].free_right;
        draft_value_.ask(lanes[i].lane, group.source, lanes[i].n_text, n, needed);
        requests.push_back({lanes[i].lane, group.source, n});
    }
    std::sort(requests.begin(), requests.end(), [](const auto& a, const auto& b) { return a.lane < b.lane; });
    return requests;
}

// Where a draft is cheap a few of them tell enough.
double SpeculationController::first_trials_s(SourceIndex source, std::size_t n_lanes, const Situation& now) const {
    const std::int32_t n_tokens = config_.sources[source].n_most;
    const auto draft_s = draft_costs_[source].cost_s(static_cast<std::int32_t>(n_lanes), n_tokens, n_longest_);
    const double most_s = kDraftGrant * now.costs.plain_s();
    return std::min(most_s, kFirstTrials * draft_s.value_or(most_s));
}

// By what drafts have brought in the average text; before there were many, what is likely.
double SpeculationController::gain_s(SourceIndex source) {
    const CostCurve& costs = call_costs_.curve(1, n_longest_);
    const Taken taken = draft_value_.average(source);
    const double n_asks = draft_value_.n_asks(source), plain_s = costs.plain_s();
    const double step_s = costs.expected_s(taken.share * taken.width) + draft_s(source, 1, 1, {costs, costs, 0});
    const double measured_s = std::max(plain_s - step_s / (1 + taken.n_right), 0.0);
    return (n_asks * measured_s + kLikelyAsks * kLikelyGain * plain_s) / (n_asks + kLikelyAsks);
}

bool SpeculationController::should_read(LaneId lane, SourceIndex source, std::int32_t n_tokens) {
    if (!config_.is_adaptive || !is_lane(lane) || source >= config_.sources.size()) return true;
    const bool is_known = call_costs_.curve(1, n_longest_).is_known();
    return readings_.should_read(lane, source, n_tokens, is_known ? gain_s(source) : kLongest_s);
}

std::vector<DraftRequest> SpeculationController::first_requests(std::span<const LaneState> lanes,
                                                                std::span<const Proposal> free) const {
    std::vector<bool> has_draft(lanes.size());
    for (const Proposal& proposal : free) {
        if (const auto at = place_of(lanes, proposal)) has_draft[*at] = true;
    }
    std::vector<DraftRequest> requests;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        for (SourceIndex s = 0; is_lane(lanes[i].lane) && !has_draft[i] && s < config_.sources.size(); ++s) {
            if (config_.sources[s].is_free || n_most_of(lanes[i], s) < 1) continue;
            requests.push_back({lanes[i].lane, s, n_most_of(lanes[i], s)});
            break;
        }
    }
    return requests;
}

// One source a step: drafting with two would be dearer than what the second adds.
std::vector<DraftRequest> SpeculationController::requests(std::span<const LaneState> lanes,
                                                          std::span<const Proposal> free_proposals) {
    requested_s_ = 0;
    trial_.reset();
    if (lanes.empty() || config_.n_most == 0) return {};
    if (!config_.is_adaptive) return first_requests(lanes, free_proposals);
    const Situation both = begin_step(lanes);
    const Situation now = takes_trees_ ? Situation{both.branching, both.branching, both.rate} : both;
    for (const LaneState& lane : lanes) {
        if (!is_lane(lane.lane)) continue;
        std::int32_t& begun = answer_at_[static_cast<std::size_t>(lane.lane)];
        if (begun < 0) begun = lane.n_text;
    }
    if (!now.costs.is_known()) return {};
    if (config_.wants_equal_widths && n_equal_most(lanes) == 0) return {};
    std::vector<SourceIndex> models;
    for (SourceIndex s = 0; s < config_.sources.size(); ++s) {
        if (!config_.sources[s].is_free && can_pay(lanes, s)) models.push_back(s);
    }
    if (models.empty()) return {};
    if (!std::exchange(was_granted_drafts_, true)) budget_.grant(first_trials_s(models.front(), lanes.size(), now));
    weigh(lanes, free_proposals, now, false);
    settle_free(lanes, now);
    ++n_turns_;
    Group best{models[n_turns_ % models.size()]};
    for (const SourceIndex s : models) {
        if (Group group = best_group(lanes, s, now); group.value > best.value) best = std::move(group);
    }
    try_others(lanes, best, now);
    return book(lanes, best, now);
}

}  // namespace luce::speculation
