// Who is asked for a draft: those in whom it is expected to bring more than it costs, and now and then one of the
// others.
#include <algorithm>
#include <utility>

#include "speculation/gate_state.h"

namespace luce::speculation {
namespace {

constexpr double kGuessedDraft = 0.3;  // a draft's cost in plain steps before it was measured
constexpr double kLeastGain = 0.02;    // tokens: asking for less is not worth the trouble
constexpr double kFullCredit = 0.95;   // enough of the most credit
constexpr double kBestModel = 0.95;    // a model's drafts are right no more often, token for token
constexpr double kAskGrant = 3;        // plain steps that may go into finding out what they are worth
constexpr double kLikelyGain = 0.15;   // of a plain step a token, where drafts turn out to pay
constexpr std::int32_t kProspectTokens = 32;
// Of plain decoding's speed: where less is to be gained at best, drafts are left alone. A model's texts are seldom the
// best, and it takes time to find out.
constexpr double kLeastProspect = 0.03;
constexpr double kLeastModelProspect = 0.1;

}  // namespace

// At best a lane alone or all of them verify drafts of some width, and copies are right to their end.
bool Gate::State::can_pay(std::int32_t n_lanes, SourceIndex source, const Going& going) const {
    const std::int32_t n_most = std::min(config.n_most, config.sources[source].n_most);
    const bool is_free = config.sources[source].is_free;
    const auto gains = [&](std::int32_t n_drafting, std::int32_t width, double n_right) {
        const std::int32_t n_verifying = config.wants_equal_widths ? n_lanes : n_drafting;
        const double guessed_s = kGuessedDraft * going.costs.plain_s();
        const double asked_s =
            is_free ? 0 : draft_costs[source].hopeful_s(n_drafting, width, n_longest).value_or(guessed_s);
        const double call_s = going.costs.hopeful_s(n_verifying * width) + asked_s;
        const double speed = (1 + n_drafting * n_right / n_lanes) * going.costs.plain_s() / call_s;
        return speed >= 1 + (is_free ? kLeastProspect : kLeastModelProspect);
    };
    double n_right = 0, chance = 1;
    for (std::int32_t width = 1; width <= n_most; ++width) {
        n_right += chance *= is_free ? 1 : kBestModel;
        if (gains(n_lanes, width, n_right) || gains(1, width, n_right)) return true;
    }
    return false;
}

// Looked at now and then: it hardly changes, and looking takes as long as a hundredth of a small model's call.
bool Gate::State::can_pay(std::span<const LaneSituation> lanes, SourceIndex source) {
    const auto n_lanes = std::min(static_cast<std::int32_t>(lanes.size()), config.n_lanes);
    std::int32_t n_text = 0;
    for (const LaneSituation& lane : lanes) n_text = std::max(n_text, lane.n_text);
    const bool is_same = prospect.n_lanes == n_lanes && n_text >= prospect.n_text && n_text < prospect.n_until;
    if (!is_same) {
        const Going now = going(lanes);
        prospect.n_lanes = n_lanes;
        prospect.n_text = n_text;
        prospect.n_until = now.costs.is_known() ? n_text + kProspectTokens : n_text;
        prospect.can_pay.assign(config.sources.size(), true);
        for (SourceIndex s = 0; s < config.sources.size() && now.costs.is_known(); ++s) {
            prospect.can_pay[s] = can_pay(n_lanes, s, now);
        }
    }
    return prospect.can_pay[source];
}

double Gate::State::draft_s(SourceIndex source, std::int32_t n_lanes, std::int32_t n_tokens, const Going& going) const {
    if (n_lanes < 1) return 0;
    return draft_costs[source].cost_s(n_lanes, n_tokens, n_longest).value_or(kGuessedDraft * going.costs.plain_s());
}

bool Gate::State::can_afford(SourceIndex source, std::int32_t n_lanes, std::int32_t n_tokens,
                             const Going& going) const {
    const std::optional<double> worst_s = draft_costs[source].worst_s(n_lanes, n_tokens, n_longest);
    return earnings.covers(worst_s.value_or(kGuessedDraft * going.costs.plain_s()));
}

void Gate::State::join(Party& party, const Wish& wish, const Seat& seat) const {
    ++party.n_lanes;
    party.n_tokens = std::max(party.n_tokens, wish.n_tokens);
    party.n_right += wish.taken.n_right - wish.taken.share * seat.free_right;
    party.n_taking += wish.taken.share;
    party.n_drafted += wish.taken.share * wish.taken.width;
    party.n_beside -= wish.taken.share * seat.free_width;
}

double Gate::State::value(const Party& party, SourceIndex source, const Going& going) const {
    const double draft_cost = going.rate * draft_s(source, party.n_lanes, party.n_tokens, going);
    if (party.n_taking <= 0) return party.n_right - draft_cost;
    // Less than one: that often one does.
    const double often = std::min(party.n_taking, 1.0);
    double n_drafted = party.n_drafted / often + std::max(party.n_beside, 0.0);
    if (config.wants_equal_widths) {
        const double alike = static_cast<double>(seats.size()) * party.n_drafted / party.n_taking;
        n_drafted = std::max<double>(alike, n_free_drafted);
    }
    const double extra_s = going.costs.expected_s(n_drafted) - going.costs.expected_s(n_free_drafted);
    return party.n_right - going.rate * often * extra_s - draft_cost;
}

// What the free proposals alone would make of this step: drafts have to bring more.
void Gate::State::settle_free(std::span<const LaneSituation> lanes, const Going& going) {
    lay_out(lanes);
    StepOption best;
    const auto worth = [&](const StepOption& option) {
        return option.n_right - going.rate * going.costs.expected_s(option.n_drafted);
    };
    for (const StepOption& option : options.all()) {
        if (covers(option, going) && worth(option) > worth(best)) best = option;
    }
    n_free_drafted = best.n_drafted;
    widths.assign(lanes.size(), 0);
    options.widths(best, widths);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        seats[i].free_width = widths[i];
        for (std::int32_t n = 0; n < widths[i]; ++n) {
            seats[i].free_right += static_cast<double>(seats[i].best->chances[static_cast<std::size_t>(n)]);
        }
    }
}

Gate::State::Wish Gate::State::wish(const LaneSituation& lane, const Seat& seat, SourceIndex source,
                                    std::int32_t n_tokens, const Going& going) const {
    const std::int32_t n = std::min(n_tokens, n_most_of(lane, source));
    Wish wish{source, n, draft_worth.expected(lane.lane, source, n), 0};
    Party alone;
    alone.n_beside = n_free_drafted;
    join(alone, wish, seat);
    wish.value = value(alone, source, going);
    return wish;
}

// Numbers of tokens to ask a source for: only where fewer cost less is there a choice.
std::vector<std::int32_t> Gate::State::lengths(const LaneSituation& lane, SourceIndex source) const {
    const std::int32_t n_most = n_most_of(lane, source);
    const DraftCosts& costs = draft_costs[source];
    if (costs.wants_short_draft()) return {std::max(n_most / 3, 1)};
    std::vector<std::int32_t> lengths = {n_most};
    if (costs.is_flat()) return lengths;
    for (std::int32_t n = 1; n < n_most; n += 1 + n / 3) lengths.push_back(n);
    return lengths;
}

Gate::State::Wish Gate::State::best_wish(const LaneSituation& lane, const Seat& seat, SourceIndex source,
                                         const Going& going) const {
    std::optional<Wish> best;
    for (const std::int32_t n : lengths(lane, source)) {
        const Wish other = wish(lane, seat, source, n, going);
        if (!best || other.value > best->value) best = other;
    }
    return *best;
}

// For each lane what it would ask for if it were alone.
void Gate::State::wish_alone(std::span<const LaneSituation> lanes, const Going& going) {
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        if (!is_lane(lanes[i].lane)) continue;
        for (SourceIndex s = 0; s < config.sources.size(); ++s) {
            if (!may_be_asked[s] || n_most_of(lanes[i], s) < 1) continue;
            const Wish other = best_wish(lanes[i], seats[i], s, going);
            if (!seats[i].wish || other.value > seats[i].wish->value) seats[i].wish = other;
        }
    }
}

// Of those who wish for the source, each for so many tokens now, the first `n_kept` are worth most together.
Gate::State::Kept Gate::State::gather(std::span<const LaneSituation> lanes, SourceIndex source, std::int32_t n_tokens,
                                      const Going& going) {
    for (const std::size_t i : order) seats[i].wish = wish(lanes[i], seats[i], source, n_tokens, going);
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const double value_a = seats[a].wish->value, value_b = seats[b].wish->value;
        return value_a != value_b ? value_a > value_b : a < b;
    });
    Kept kept;
    Party party;
    party.n_beside = n_free_drafted;
    for (std::size_t k = 0; k < order.size(); ++k) {
        join(party, *seats[order[k]].wish, seats[order[k]]);
        const double together = value(party, source, going) - kLeastGain * party.n_lanes;
        if (together > kept.value) kept = {together, k + 1, n_tokens};
    }
    return kept;
}

// Of each source's wishes as many, best first, as bring most together: lanes that are drafted at once share the cost.
void Gate::State::keep_worthwhile(std::span<const LaneSituation> lanes, const Going& going) {
    for (SourceIndex s = 0; s < config.sources.size(); ++s) {
        order.clear();
        for (std::size_t i = 0; i < seats.size(); ++i) {
            if (seats[i].wish && seats[i].wish->source == s) order.push_back(i);
        }
        if (order.empty()) continue;
        Kept best;
        for (const std::int32_t n : lengths(lanes[order.front()], s)) {
            const Kept kept = gather(lanes, s, n, going);
            if (kept.value > best.value) best = kept;
        }
        // All of them or none: what a few bring in spends what would pay for all.
        if (!can_afford(s, static_cast<std::int32_t>(best.n_lanes), best.n_tokens, going)) best = {};
        if (best.n_lanes > 0) gather(lanes, s, best.n_tokens, going);
        for (std::size_t k = 0; k < order.size(); ++k) {
            std::optional<Wish>& wish = seats[order[k]].wish;
            if (k < best.n_lanes)
                wish->value = best.value / static_cast<double>(best.n_lanes);
            else
                wish.reset();
        }
    }
}

// An answer goes on for about as long as it has gone on: before that pays for a draft there is nothing to be found out.
bool Gate::State::is_long_enough(const LaneSituation& lane, double cost_s, const Going& going) const {
    const std::int32_t n_answered = lane.n_text - prefill_start_at[static_cast<std::size_t>(lane.lane)];
    return kLikelyGain * n_answered * going.costs.plain_s() >= cost_s;
}

// What has not been asked for long, if it can be afforded.
void Gate::State::try_others(std::span<const LaneSituation> lanes, const Going& going) {
    ++n_turns;
    for (std::size_t turn = 0; turn < lanes.size(); ++turn) {
        const std::size_t i = (turn + n_turns) % lanes.size();
        const LaneSituation& lane = lanes[i];
        if (!is_lane(lane.lane)) continue;
        for (SourceIndex s = 0; s < config.sources.size(); ++s) {
            if (!may_be_asked[s] || n_most_of(lane, s) < 1) continue;
            Seat& seat = seats[i];
            if ((seat.wish && seat.wish->source == s) || !draft_worth.is_due(lane.lane, s, lane.n_text)) continue;
            std::int32_t n_beside = 0;
            for (const Seat& other : seats) n_beside += other.wish && other.wish->source == s ? 1 : 0;
            Wish trial = best_wish(lane, seat, s, going);
            const double alone_s = draft_s(s, 1, trial.n_tokens, going);
            if (!is_long_enough(lane, alone_s, going) || !can_afford(s, n_beside + 1, trial.n_tokens, going)) continue;
            // The draft costs only what a further lane does.
            trial.value += going.rate * (alone_s + draft_s(s, n_beside, trial.n_tokens, going) -
                                         draft_s(s, n_beside + 1, trial.n_tokens, going));
            const double lost = (seat.wish ? seat.wish->value : 0) - trial.value;
            const double lost_s = std::max(lost, 0.0) / going.rate;
            // What is believed to be very dear may have been measured at a bad time: full credit buys any trial, and
            // what it really cost is taken afterwards.
            const double taken_s = std::min(lost_s, kFullCredit * kMostCredit * going.costs.plain_s());
            if (!budget.take(taken_s)) continue;
            seat.wish = trial;
            tried = Tried{s, alone_s, lost_s - taken_s};
        }
    }
}

std::vector<Ask> Gate::State::book_asks(std::span<const LaneSituation> lanes, const Going& going) {
    std::vector<Ask> asks;
    for (SourceIndex s = 0; s < config.sources.size(); ++s) {
        const std::size_t first = asks.size();
        std::int32_t n_tokens = 0;
        for (std::size_t i = 0; i < lanes.size(); ++i) {
            const std::optional<Wish>& wish = seats[i].wish;
            if (!wish || wish->source != s) continue;
            asks.push_back({lanes[i].lane, s, wish->n_tokens});
            n_tokens = std::max(n_tokens, wish->n_tokens);
        }
        const auto n_asked = static_cast<std::int32_t>(asks.size() - first);
        const double cost_s = draft_s(s, n_asked, n_tokens, going);
        asked_s += cost_s;
        for (const Ask& ask : std::span(asks).subspan(first)) {
            const auto at = static_cast<std::size_t>(seat_of_lane[static_cast<std::size_t>(ask.lane)]);
            const double needed = going.rate * cost_s / n_asked + seats[at].free_right;
            draft_worth.ask(ask.lane, s, lanes[at].n_text, ask.n_tokens, needed);
        }
    }
    return asks;
}

std::vector<Ask> Gate::State::asks(std::span<const LaneSituation> lanes, std::span<const Proposal> free_proposals) {
    asked_s = 0;
    tried.reset();
    if (lanes.empty() || config.n_most == 0) return {};
    seat(lanes);
    if (!config.is_on) return first_asks(lanes, free_proposals);
    const Going now = as_decided(going(lanes));
    for (const LaneSituation& lane : lanes) {
        if (!is_lane(lane.lane)) continue;
        std::int32_t& begun = prefill_start_at[static_cast<std::size_t>(lane.lane)];
        if (begun < 0) begun = lane.n_text;
    }
    if (!now.costs.is_known()) return {};
    if (config.wants_equal_widths && n_equal_most(lanes) == 0) return {};
    bool may_any = false;
    for (SourceIndex s = 0; s < config.sources.size(); ++s) {
        may_be_asked[s] = !config.sources[s].is_free && can_pay(lanes, s);
        may_any = may_any || may_be_asked[s];
    }
    if (!may_any) return {};
    if (!std::exchange(was_granted_asks, true)) grant(kAskGrant * now.costs.plain_s());
    weigh(lanes, free_proposals, now, false);
    settle_free(lanes, now);
    wish_alone(lanes, now);
    keep_worthwhile(lanes, now);
    try_others(lanes, now);
    return book_asks(lanes, now);
}

}  // namespace luce::speculation
