#include "speculation/trees/draft_tree.h"

#include <algorithm>
#include <cassert>
#include <queue>
#include <unordered_set>
#include <utility>

namespace luce::speculation {

namespace {

// What may stand at a place, likeliest first (of equals the one that came first), each token once.
std::vector<Candidate> in_order(const std::vector<Candidate>& candidates) {
    std::vector<Candidate> sorted;
    for (Candidate candidate : candidates) {
        if (!(candidate.probability > 0.0F)) continue;
        candidate.probability = std::min(candidate.probability, 1.0F);
        sorted.push_back(candidate);
    }
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const Candidate& a, const Candidate& b) { return a.probability > b.probability; });
    std::unordered_set<Token> seen;
    std::erase_if(sorted, [&](const Candidate& candidate) { return !seen.insert(candidate.token).second; });
    return sorted;
}

// A node that could be taken next: the candidate of that rank under a node that has been taken.
struct Offer {
    double probability = 0.0;
    NodeIndex parent = 0;
    std::size_t rank = 0;
};

// Of equally likely ones the deeper is the lesser offer, then the later.
struct IsLess {
    bool operator()(const Offer& a, const Offer& b) const {
        if (a.probability != b.probability) return a.probability < b.probability;
        if (a.parent != b.parent) return a.parent > b.parent;
        return a.rank > b.rank;
    }
};

using Offers = std::priority_queue<Offer, std::vector<Offer>, IsLess>;

}  // namespace

DraftTree DraftTree::best_first(Token root, std::span<const std::vector<Candidate>> places, TreeLimits limits) {
    std::vector<std::vector<Candidate>> candidates;
    for (const auto& place : places) candidates.push_back(in_order(place));
    std::vector<TreeNode> nodes = {{root, 0, 0, 1.0}};
    Offers offers;
    const auto offer = [&](NodeIndex parent, std::size_t rank) {
        const TreeNode& above = nodes[parent];
        if (above.depth >= candidates.size() || rank >= candidates[above.depth].size()) return;
        offers.push({above.probability * candidates[above.depth][rank].probability, parent, rank});
    };
    std::size_t n_leaves = 1;
    offer(0, 0);
    while (nodes.size() <= limits.n_drafted && !offers.empty()) {
        const Offer best = offers.top();
        offers.pop();
        // The likeliest child of a node is taken first and takes its leaf over; every other one adds a leaf.
        if (best.rank > 0) {
            if (n_leaves >= limits.n_sequences) continue;
            ++n_leaves;
        }
        const std::size_t depth = nodes[best.parent].depth;
        nodes.push_back({candidates[depth][best.rank].token, best.parent, depth + 1, best.probability});
        offer(nodes.size() - 1, 0);
        offer(best.parent, best.rank + 1);
    }
    return DraftTree(std::move(nodes));
}

DraftTree DraftTree::of(std::span<const Token> tokens, std::span<const std::int32_t> parents) {
    assert(!tokens.empty() && (parents.empty() || parents.size() == tokens.size()));
    std::vector<TreeNode> nodes = {{tokens[0], 0, 0, 1.0}};
    for (std::size_t i = 1; i < tokens.size(); ++i) {
        const NodeIndex parent = parents.empty() ? i - 1 : static_cast<NodeIndex>(parents[i]);
        assert(parent < i);
        nodes.push_back({tokens[i], parent, nodes[parent].depth + 1, 1.0});
    }
    return DraftTree(std::move(nodes));
}

DraftTree DraftTree::chain(Token root, std::span<const Token> tokens, std::span<const float> confidence) {
    assert(tokens.size() == confidence.size());
    std::vector<TreeNode> nodes = {{root, 0, 0, 1.0}};
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const double probability = confidence[i] > 0.0F ? std::min(static_cast<double>(confidence[i]), 1.0) : 0.0;
        nodes.push_back({tokens[i], i, i + 1, nodes.back().probability * probability});
    }
    return DraftTree(std::move(nodes));
}

DraftTree::DraftTree(std::vector<TreeNode> nodes)
    : nodes_(std::move(nodes)), ranges_(nodes_.size()), first_child_(nodes_.size()), next_sibling_(nodes_.size()) {
    std::vector<NodeIndex> last_child(nodes_.size());
    for (NodeIndex node = 1; node < nodes_.size(); ++node) {
        const NodeIndex parent = nodes_[node].parent;
        (last_child[parent] == 0 ? first_child_[parent] : next_sibling_[last_child[parent]]) = node;
        last_child[parent] = node;
    }
    // Depth-first: down to a leaf, then up until there is a sibling.
    for (NodeIndex node = 0;;) {
        ranges_[node].first = leaves_.size();
        if (first_child_[node] != 0) {
            node = first_child_[node];
            continue;
        }
        leaves_.push_back(node);
        ranges_[node].end = leaves_.size();
        while (node != 0 && next_sibling_[node] == 0) {
            node = nodes_[node].parent;
            ranges_[node].end = leaves_.size();
        }
        if (node == 0) break;
        node = next_sibling_[node];
    }
}

double DraftTree::expected_tokens() const {
    double sum = 0.0;
    for (const TreeNode& node : nodes_) sum += node.probability;
    return sum;
}

std::vector<NodeIndex> DraftTree::path_to(NodeIndex node) const {
    std::vector<NodeIndex> path(nodes_[node].depth + 1);
    for (std::size_t i = path.size(); i-- > 0; node = nodes_[node].parent) path[i] = node;
    return path;
}

std::optional<NodeIndex> DraftTree::child(NodeIndex node, Token token) const {
    for (NodeIndex at = first_child_[node]; at != 0; at = next_sibling_[at]) {
        if (nodes_[at].token == token) return at;
    }
    return std::nullopt;
}

std::vector<NodeIndex> DraftTree::follow(std::span<const Token> sampled) const {
    std::vector<NodeIndex> accepted;
    NodeIndex node = 0;
    for (const Token token : sampled) {
        const auto next = child(node, token);
        if (!next) break;
        accepted.push_back(node = *next);
    }
    return accepted;
}

}  // namespace luce::speculation
