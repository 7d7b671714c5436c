// DraftTree: the tokens of one verification as a tree, and as the sequences that share their prefix which the target
// computes it as. Pure; knows no model and no lane.
//
// A draft of independent positions (block diffusion) gives for each position its likeliest tokens; the paths through
// them are as likely as the product of their tokens. best_first() takes the nodes with the largest products, which are
// closed under taking the parent, because a product never grows along a path. A chain is the tree of one token a place.
//
// Sources: "OPT-Tree" (Wang et al., 2024) for taking the most probable nodes, which makes the expected number of
// accepted tokens the largest that so many nodes can have; Lucebox pull request 430 for the same over a block-diffusion
// draft; "SpecInfer" (Miao et al., 2023) for verifying a tree at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/token.h"

namespace luce::speculation {

using NodeIndex = std::size_t;

// A token that may stand at a place of the block.
struct Candidate {
    Token token = 0;
    float probability = 0.0F;
};

struct TreeNode {
    Token token = 0;
    NodeIndex parent = 0;      // before the node itself; the root is its own
    std::size_t depth = 0;     // of the root: 0
    double probability = 1.0;  // of the whole path up to here; never larger than that of a node before it
};

struct TreeLimits {
    std::size_t n_drafted = 0;    // most nodes besides the root
    std::size_t n_sequences = 1;  // most leaves: the target has only so many sequences. >= 1
};

// Leaf numbers first .. end - 1.
struct SequenceRange {
    std::size_t first = 0;
    std::size_t end = 0;
    bool operator==(const SequenceRange&) const = default;
};

class DraftTree {
public:
    // `places[i]`: what may stand i + 1 tokens after `root`, the last token of the lane's text, in any order. What is
    // no probability (not above 0, NaN) is left out, what is above 1 counts as 1, of a token named twice the likelier
    // is taken. Where the leaves are used up, branches are passed over and what is next likely is taken.
    static DraftTree best_first(Token root, std::span<const std::vector<Candidate>> places, TreeLimits limits);

    // A tree that is there already: `tokens` with the root before all, and for each the index of the one before it (the
    // root's counts for nothing); none: a chain. Its probabilities are not known and count as 1. REQUIRES: a root; as
    // many parents as tokens, or none; each parent before its children.
    static DraftTree of(std::span<const Token> tokens, std::span<const std::int32_t> parents);

    // The tree of one sequence. REQUIRES: as many confidences as tokens
    static DraftTree chain(Token root, std::span<const Token> tokens, std::span<const float> confidence);

    // Node 0 is the root; the others follow in the order in which they were taken, so that the first n nodes are the
    // tree that a limit of n - 1 drafted ones gives.
    std::span<const TreeNode> nodes() const { return nodes_; }
    std::size_t n_drafted() const { return nodes_.size() - 1; }

    // How many tokens a verification yields if the probabilities are right: what the root yields and each node adds.
    double expected_tokens() const;

    // The leaves, numbered depth-first, likelier children first; a tree of the root alone has one, the root.
    std::span<const NodeIndex> leaves() const { return leaves_; }

    // Which of the leaves' sequences contain the node: neighbours, because leaves are numbered depth-first.
    SequenceRange sequences_with(NodeIndex node) const { return ranges_[node]; }

    // From the root to the node, both included: at places depth 0, 1, 2 … of the sequence.
    std::vector<NodeIndex> path_to(NodeIndex node) const;

    std::optional<NodeIndex> child(NodeIndex node, Token token) const;

    // The drafted nodes that the sampled tokens go through: sampled[0] is what followed the root. The tokens accepted
    // are as many; the verification also yields the first sampled token that has no node.
    std::vector<NodeIndex> follow(std::span<const Token> sampled) const;

private:
    explicit DraftTree(std::vector<TreeNode> nodes);

    std::vector<TreeNode> nodes_;
    std::vector<NodeIndex> leaves_;
    std::vector<SequenceRange> ranges_;    // of each node
    std::vector<NodeIndex> first_child_;   // of each node, the likeliest; 0, the root, which is nobody's child: none
    std::vector<NodeIndex> next_sibling_;  // of each node; 0: none
};

}  // namespace luce::speculation
