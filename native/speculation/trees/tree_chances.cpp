#include "speculation/trees/tree_chances.h"

#include <algorithm>
#include <numeric>

namespace luce::speculation {
namespace {

// What is known of a node while its children are tried in turn; the root is at 0, node i at i + 1.
struct Standing {
    std::size_t depth = 0;
    double chance = 1;      // that the way leads here
    double none_right = 1;  // that none of the children tried so far is right, given that it does
    double unclaimed = 1;   // of the source's word, by the children tried so far
    std::size_t n_tried = 0;
};

std::size_t place_of(std::int32_t parent) { return static_cast<std::size_t>(parent + 1); }

double as_claim(float confidence) { return confidence > 0 ? std::min(static_cast<double>(confidence), 1.0) : 0.0; }

// What the source says of the next child if those before it are wrong.
float claim_if_others_are_wrong(const Standing& parent, float confidence) {
    if (parent.n_tried == 0) return confidence;
    return parent.unclaimed > 0 ? static_cast<float>(std::min(as_claim(confidence) / parent.unclaimed, 1.0)) : 0.0F;
}

void count_tried(Standing& parent, float confidence) {
    parent.unclaimed = std::max(parent.unclaimed - as_claim(confidence), 0.0);
    ++parent.n_tried;
}

}  // namespace

std::vector<TreeVerdict> verdicts_of(std::span<const Token> drafted, std::span<const std::int32_t> parents,
                                     std::span<const Token> got) {
    std::vector<TreeVerdict> verdicts;
    std::int32_t at = -1;
    for (const Token token : got) {
        std::int32_t next = -1;
        for (auto i = static_cast<std::size_t>(at + 1); i < drafted.size() && next < 0; ++i) {
            if (parents[i] != at) continue;
            if (drafted[i] == token) next = static_cast<std::int32_t>(i);
            verdicts.push_back({i, next >= 0});
        }
        if (next < 0) break;
        at = next;
    }
    return verdicts;
}

std::vector<float> TreeChances::chances(const AcceptanceEstimator& first, LaneId lane, SourceIndex source,
                                        std::span<const float> confidence,
                                        std::span<const std::int32_t> parents) const {
    std::vector<float> chances;
    std::vector<Standing> standings(1);
    for (std::size_t i = 0; i < confidence.size(); ++i) {
        Standing& parent = standings[place_of(parents[i])];
        const float claim = claim_if_others_are_wrong(parent, confidence[i]);
        const AcceptanceEstimator& acceptance = parent.n_tried == 0 ? first : others_;
        const double here = acceptance.chance_of(lane, source, claim, parent.depth);
        Standing node;
        node.depth = parent.depth + 1;
        node.chance = parent.chance * parent.none_right * here;
        parent.none_right *= 1 - here;
        count_tried(parent, confidence[i]);
        chances.push_back(static_cast<float>(node.chance));
        standings.push_back(node);
    }
    return chances;
}

void TreeChances::observe(AcceptanceEstimator& first, LaneId lane, SourceIndex source,
                          std::span<const float> confidence, std::span<const std::int32_t> parents,
                          std::span<const TreeVerdict> verdicts) {
    Standing parent;
    std::size_t depth = 0;
    std::int32_t at = -1;
    for (const TreeVerdict& verdict : verdicts) {
        if (parents[verdict.node] != at) {  // the way went on
            at = parents[verdict.node];
            parent = {};
            ++depth;
        }
        const float claim = claim_if_others_are_wrong(parent, confidence[verdict.node]);
        AcceptanceEstimator& acceptance = parent.n_tried == 0 ? first : others_;
        acceptance.observe_one(lane, source, claim, depth, verdict.was_right);
        count_tried(parent, confidence[verdict.node]);
    }
}

std::vector<std::size_t> likeliest_nodes(std::span<const float> chances, std::size_t n) {
    std::vector<std::size_t> order(chances.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    // Of equals the one that comes first, which may be the other one's parent.
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return chances[a] > chances[b]; });
    order.resize(std::min(n, order.size()));
    return order;
}

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

}  // namespace luce::speculation
