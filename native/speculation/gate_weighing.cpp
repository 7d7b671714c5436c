// What the drafts on the table are worth, and whether their branches are worth what calls with branches cost.
#include <algorithm>
#include <numeric>
#include <utility>

#include "speculation/gate_state.h"

namespace luce::speculation {
namespace {

// A tree's likeliest way from its root, at most n tokens of it.
std::vector<std::size_t> likeliest_chain(std::span<const float> chances, std::span<const std::int32_t> parents,
                                         std::size_t n) {
    std::vector<std::size_t> chain;
    std::int32_t at = -1;
    while (chain.size() < n) {
        std::int32_t next = -1;
        for (auto i = static_cast<std::size_t>(at + 1); i < chances.size(); ++i) {
            const bool is_better = next < 0 || chances[i] > chances[static_cast<std::size_t>(next)];
            if (parents[i] == at && is_better) next = static_cast<std::int32_t>(i);
        }
        if (next < 0) break;
        chain.push_back(static_cast<std::size_t>(next));
        at = next;
    }
    return chain;
}

std::span<const float> pick(std::span<const float> from, std::span<const std::size_t> nodes, std::span<float> to) {
    for (std::size_t i = 0; i < nodes.size(); ++i) to[i] = from[nodes[i]];
    return to.first(nodes.size());
}

}  // namespace

// `room`: for the chances of its tokens, of a tree for those of its likeliest chain besides.
Gate::State::Answered Gate::State::weigh_one(std::size_t index, const Proposal& proposal, std::span<float> room,
                                             const Going& going, std::int32_t n_alike) const {
    if (proposal.parents.empty()) {
        acceptance.chances(proposal.lane, proposal.source, proposal.confidence.first(room.size()), room);
        const Stake stake{index, room, best_part(room, going.costs, going.rate, n_alike)};
        return {index, stake, stake};
    }
    const std::vector<float> all =
        tree_chances.chances(acceptance, proposal.lane, proposal.source, proposal.confidence, proposal.parents);
    const std::size_t n = room.size() / 2;
    Answered answered{index, {index, {}, {}, likeliest_nodes(all, n)}, {index, {}, {}, {}}};
    answered.chain.nodes = likeliest_chain(all, proposal.parents, n);
    answered.stake.chances = pick(all, answered.stake.nodes, room.first(n));
    answered.chain.chances = pick(all, answered.chain.nodes, room.subspan(n));
    answered.stake.part = best_part(answered.stake.chances, going.branching, going.rate, n_alike);
    answered.chain.part = best_part(answered.chain.chances, going.costs, going.rate, n_alike);
    return answered;
}

// Finds each lane's best proposal. `hears_answers`: all are there, so sources that were asked have answered.
void Gate::State::weigh(std::span<const LaneSituation> lanes, std::span<const Proposal> proposals, const Going& going,
                        bool hears_answers) {
    const auto n_weighed = [&](const Proposal& proposal, std::int32_t n_most) {
        const std::size_t n = std::min(proposal.confidence.size(), static_cast<std::size_t>(n_most));
        return proposal.parents.empty() ? n : 2 * n;
    };
    std::size_t n_chances = 0;
    std::int32_t n_staked = 0;
    bool has_tree = false;
    for (const Proposal& proposal : proposals) {
        if (!is_stake(lanes, proposal)) continue;
        n_chances += n_weighed(proposal, config.n_most);
        has_tree = has_tree || !proposal.parents.empty();
        ++n_staked;
    }
    chances.resize(n_chances);
    const auto n_lanes = static_cast<std::int32_t>(lanes.size());
    const std::int32_t n_alike = std::clamp(hears_answers ? n_staked : std::max(n_staked, n_sharing), 1, n_lanes);
    if (hears_answers) n_sharing = n_alike;
    answered.clear();
    std::size_t n_used = 0;
    for (std::size_t i = 0; i < proposals.size(); ++i) {
        const Proposal& proposal = proposals[i];
        if (!is_stake(lanes, proposal)) continue;
        const auto at = static_cast<std::size_t>(seat_of_lane[static_cast<std::size_t>(proposal.lane)]);
        const std::span<float> room = std::span(chances).subspan(n_used, n_weighed(proposal, n_most_of(lanes[at])));
        n_used += room.size();
        const Answered weighed = weigh_one(i, proposal, room, going, n_alike);
        Seat& seat = seats[at];
        if (!seat.best || weighed.stake.part.worth > seat.best->part.worth) seat.best = weighed.stake;
        if (!seat.best_chain || weighed.chain.part.worth > seat.best_chain->part.worth) seat.best_chain = weighed.chain;
        if (hears_answers && draft_worth.is_asked(proposal.lane, proposal.source)) answered.push_back(weighed);
    }
    if (!hears_answers) return;
    tries_branches = false;
    takes_trees = has_tree && prefers_trees(going);
    for (Seat& seat : seats) {
        if (has_tree && !takes_trees) seat.best = seat.best_chain;
    }
    hear(lanes, proposals);
}

// Of all lanes' drafts together: a call either has branches or none. What branches cost is found out now and then where
// it may have become less.
bool Gate::State::prefers_trees(const Going& going) {
    double with_branches = 0, without = 0, hoped = 0;
    std::int32_t n_hoped = 0;
    for (const Seat& seat : seats) {
        if (!seat.best) continue;
        with_branches += seat.best->part.worth;
        without += seat.best_chain->part.worth;
        hoped += std::accumulate(seat.best->chances.begin(), seat.best->chances.end(), 0.0);
        n_hoped += static_cast<std::int32_t>(seat.best->chances.size());
    }
    if (with_branches >= without) return true;
    const double hopeful_s = going.branching.hopeful_s(n_hoped);
    hoped -= going.rate * (hopeful_s - going.branching.plain_s());
    if (hoped <= without || !(hopeful_s < going.branching.expected_s(n_hoped))) return false;
    tries_branches = budget.take((without - (with_branches + hoped) / 2) / going.rate);
    return tries_branches;
}

// What the drafts that were asked for are worth, as they are taken.
void Gate::State::hear(std::span<const LaneSituation> lanes, std::span<const Proposal> proposals) {
    for (const Answered& draft : answered) {
        const Proposal& proposal = proposals[draft.proposal];
        const Stake& stake = takes_trees ? draft.stake : draft.chain;
        const BestPart& part = stake.part;
        const Taken taken = {part.n_right, part.width > 0 ? 1.0 : 0.0, static_cast<double>(part.width)};
        draft_worth.observe(proposal.lane, proposal.source, part.worth, taken, stake.chances);
    }
    for (const LaneSituation& lane : lanes) {
        for (SourceIndex s = 0; is_lane(lane.lane) && s < config.sources.size(); ++s) {
            if (draft_worth.is_asked(lane.lane, s)) draft_worth.observe(lane.lane, s, 0, {}, {});
        }
    }
}

}  // namespace luce::speculation
