// Tests of draft trees: that the most probable nodes are taken, and that the sequences made of them are the tree.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "speculation/trees/draft_tree.h"

TEST_SUITE("speculation") {

using namespace luce;
using namespace luce::speculation;

namespace {

constexpr std::size_t kNoLimit = 1000;
constexpr Token kRoot = 99;

using Places = std::vector<std::vector<Candidate>>;

std::size_t draw(std::mt19937& random, std::size_t n) { return random() % n; }

// Powers of a half now and then, so that paths tie.
Places random_places(std::mt19937& random, std::size_t n_places, std::size_t n_candidates) {
    Places places(n_places);
    for (auto& place : places) {
        const std::size_t n = draw(random, n_candidates + 1);
        for (std::size_t i = 0; i < n; ++i) {
            const bool is_coarse = draw(random, 2) == 0;
            const float probability = is_coarse ? std::ldexp(1.0F, -static_cast<int>(draw(random, 4)))
                                                : static_cast<float>(1 + draw(random, 1000)) / 1000.0F;
            place.push_back({static_cast<Token>(i), probability});
        }
        std::shuffle(place.begin(), place.end(), random);
    }
    return places;
}

// The probability of every path there is, in the order of multiplication of the tree's.
void all_paths(const Places& places, std::size_t depth, double above, std::vector<double>& paths) {
    if (depth == places.size()) return;
    for (const Candidate& candidate : places[depth]) {
        paths.push_back(above * candidate.probability);
        all_paths(places, depth + 1, paths.back(), paths);
    }
}

std::vector<double> probabilities_of(const DraftTree& tree) {
    std::vector<double> probabilities;
    for (const TreeNode& node : tree.nodes().subspan(1)) probabilities.push_back(node.probability);
    return probabilities;
}

std::size_t n_leaves_of(const DraftTree& tree) {
    std::set<NodeIndex> inner;
    for (NodeIndex i = 1; i < tree.nodes().size(); ++i) inner.insert(tree.nodes()[i].parent);
    return tree.nodes().size() - inner.size();
}

// What every tree is, whatever it was made from.
void check_tree(const DraftTree& tree) {
    const auto nodes = tree.nodes();
    REQUIRE(!nodes.empty());
    CHECK(nodes[0].token == kRoot);
    CHECK(nodes[0].probability == 1.0);
    std::set<std::pair<NodeIndex, Token>> siblings;
    for (NodeIndex i = 1; i < nodes.size(); ++i) {
        CHECK(nodes[i].parent < i);
        CHECK(nodes[i].depth == nodes[nodes[i].parent].depth + 1);
        CHECK(nodes[i].probability <= nodes[i - 1].probability);
        CHECK(siblings.emplace(nodes[i].parent, nodes[i].token).second);
        CHECK(tree.child(nodes[i].parent, nodes[i].token) == i);
    }
    CHECK(tree.n_drafted() == nodes.size() - 1);
    CHECK(tree.leaves().size() == n_leaves_of(tree));
    // A node is in exactly the sequences whose path goes through it.
    std::vector<std::set<std::size_t>> seen(nodes.size());
    for (std::size_t leaf = 0; leaf < tree.leaves().size(); ++leaf) {
        const auto path = tree.path_to(tree.leaves()[leaf]);
        CHECK(path.front() == 0);
        for (std::size_t i = 0; i < path.size(); ++i) {
            CHECK(nodes[path[i]].depth == i);
            if (i > 0) CHECK(nodes[path[i]].parent == path[i - 1]);
            seen[path[i]].insert(leaf);
        }
    }
    for (NodeIndex i = 0; i < nodes.size(); ++i) {
        const SequenceRange range = tree.sequences_with(i);
        REQUIRE(!seen[i].empty());
        CHECK(range.first == *seen[i].begin());
        CHECK(range.end == *seen[i].rbegin() + 1);
        CHECK(seen[i].size() == range.end - range.first);
    }
}

}  // namespace

TEST_CASE("the most probable nodes are taken, whatever the draft") {
    std::mt19937 random(1);
    for (int round = 0; round < 600; ++round) {
        const Places places = random_places(random, 1 + draw(random, 4), 1 + draw(random, 4));
        const std::size_t n_most = draw(random, 24);
        std::vector<double> best;
        all_paths(places, 0, 1.0, best);
        std::sort(best.begin(), best.end(), std::greater<>());
        best.resize(std::min(best.size(), n_most));
        const DraftTree tree = DraftTree::best_first(kRoot, places, {n_most, kNoLimit});
        check_tree(tree);
        CHECK(probabilities_of(tree) == best);
        for (const TreeNode& node : tree.nodes().subspan(1)) {
            const auto& place = places[node.depth - 1];
            const auto is_it = [&](const Candidate& candidate) { return candidate.token == node.token; };
            const auto candidate = std::find_if(place.begin(), place.end(), is_it);
            REQUIRE(candidate != place.end());
            CHECK(node.probability == tree.nodes()[node.parent].probability * candidate->probability);
        }
    }
}

TEST_CASE("a smaller tree is the prefix of a larger one") {
    std::mt19937 random(2);
    for (int round = 0; round < 100; ++round) {
        const Places places = random_places(random, 6, 5);
        const std::size_t n_sequences = 1 + draw(random, 6);
        const DraftTree large = DraftTree::best_first(kRoot, places, {30, n_sequences});
        const DraftTree small = DraftTree::best_first(kRoot, places, {draw(random, 30), n_sequences});
        REQUIRE(small.nodes().size() <= large.nodes().size());
        for (NodeIndex i = 0; i < small.nodes().size(); ++i) {
            CHECK(small.nodes()[i].token == large.nodes()[i].token);
            CHECK(small.nodes()[i].parent == large.nodes()[i].parent);
        }
    }
}

TEST_CASE("no tree has more leaves than there are sequences, and one sequence is the chain") {
    std::mt19937 random(3);
    for (int round = 0; round < 200; ++round) {
        const Places places = random_places(random, 6, 5);
        const std::size_t n_sequences = 1 + draw(random, 5);
        const DraftTree tree = DraftTree::best_first(kRoot, places, {20, n_sequences});
        check_tree(tree);
        CHECK(tree.leaves().size() <= n_sequences);
        if (n_sequences > 1) continue;
        Tokens tokens;
        std::vector<float> confidence;
        for (const auto& place : places) {
            if (place.empty()) break;
            const float most = std::max_element(place.begin(), place.end(), [](const auto& a, const auto& b) {
                                   return a.probability < b.probability;
                               })->probability;
            const auto is_it = [&](const Candidate& candidate) { return candidate.probability == most; };
            tokens.push_back(std::find_if(place.begin(), place.end(), is_it)->token);
            confidence.push_back(most);
        }
        const DraftTree chain = DraftTree::chain(kRoot, tokens, confidence);
        check_tree(chain);
        CHECK(probabilities_of(chain) == probabilities_of(tree));
        CHECK(chain.follow(tokens) == tree.follow(tokens));
        CHECK(chain.follow(tokens).size() == tokens.size());
    }
}

TEST_CASE("what is sampled is followed as far as it was drafted") {
    std::mt19937 random(4);
    std::size_t n_followed = 0;
    for (int round = 0; round < 300; ++round) {
        const Places places = random_places(random, 5, 4);
        const DraftTree tree = DraftTree::best_first(kRoot, places, {16, 8});
        Tokens sampled;
        for (int i = 0; i < 6; ++i) sampled.push_back(static_cast<Token>(draw(random, 4)));
        const auto accepted = tree.follow(sampled);
        NodeIndex at = 0;
        for (std::size_t i = 0; i < accepted.size(); ++i) {
            CHECK(tree.nodes()[accepted[i]].parent == at);
            CHECK(tree.nodes()[accepted[i]].token == sampled[i]);
            at = accepted[i];
        }
        for (const TreeNode& node : tree.nodes().subspan(1)) {
            CHECK((node.parent != at || node.token != sampled[accepted.size()]));
        }
        n_followed += accepted.size();
    }
    CHECK(n_followed > 100);
}

TEST_CASE("the expected yield is the root's token and every node's probability") {
    const Places places = {{{1, 0.5F}, {2, 0.25F}}, {{3, 0.5F}}};
    const DraftTree tree = DraftTree::best_first(kRoot, places, {kNoLimit, kNoLimit});
    CHECK(tree.n_drafted() == 4);
    CHECK(tree.expected_tokens() == 1.0 + 0.5 + 0.25 + 0.25 + 0.125);
    CHECK(tree.sequences_with(0) == SequenceRange{0, 2});
    CHECK(tree.follow(Tokens{2, 3, 4}).size() == 2);
    CHECK(tree.follow(Tokens{4}).empty());
}

TEST_CASE("nothing proposed is the root alone") {
    for (const Places& places : {Places{}, Places{{}}, Places{{}, {{1, 1.0F}}}}) {
        const DraftTree tree = DraftTree::best_first(kRoot, places, {8, 8});
        check_tree(tree);
        CHECK(tree.n_drafted() == 0);
        CHECK(tree.leaves().size() == 1);
        CHECK(tree.expected_tokens() == 1.0);
        CHECK(tree.path_to(0) == std::vector<NodeIndex>{0});
    }
    CHECK(DraftTree::best_first(kRoot, Places{{{1, 1.0F}}}, {0, 8}).n_drafted() == 0);
    CHECK(DraftTree::chain(kRoot, {}, {}).n_drafted() == 0);
}

TEST_CASE("what is no probability is left out, and a token stands once at a place") {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const Places places = {{{1, kNan}, {2, -1.0F}, {3, 0.0F}, {4, 0.25F}, {4, 0.5F}, {5, kInfinity}, {-7, 0.125F}}};
    const DraftTree tree = DraftTree::best_first(kRoot, places, {kNoLimit, kNoLimit});
    check_tree(tree);
    CHECK(probabilities_of(tree) == std::vector<double>{1.0, 0.5, 0.125});
    CHECK(tree.child(0, 5) == 1U);
    CHECK(tree.child(0, 4) == 2U);
    CHECK(tree.child(0, -7) == 3U);
    CHECK(!tree.child(0, 1));
    // A chain keeps its tokens: what they are worth is the source's affair.
    const DraftTree chain = DraftTree::chain(kRoot, Tokens{1, 2, 3}, std::vector<float>{kInfinity, kNan, -1.0F});
    check_tree(chain);
    CHECK(probabilities_of(chain) == std::vector<double>{1.0, 0.0, 0.0});
}

TEST_CASE("a path that is too unlikely for its numbers leaves the tree in order") {
    const Places places(400, {{1, 0.1F}, {2, 0.1F}, {3, 0.1F}});
    const DraftTree tree = DraftTree::best_first(kRoot, places, {2000, 64});
    check_tree(tree);
    CHECK(tree.n_drafted() > 100);
    CHECK(tree.leaves().size() <= 64);
}

TEST_CASE("a tree that is there already has the leaves and ways of the one it was made of") {
    std::mt19937 random(13);
    for (int round = 0; round < 100; ++round) {
        Tokens tokens = {5};
        std::vector<std::int32_t> parents = {-1};
        for (int i = 0; i < 1 + static_cast<int>(random() % 20); ++i) {
            parents.push_back(static_cast<std::int32_t>(random() % tokens.size()));
            tokens.push_back(10 + i);
        }
        const auto tree = DraftTree::of(tokens, parents);
        REQUIRE(tree.nodes().size() == tokens.size());
        for (NodeIndex node = 1; node < tokens.size(); ++node) {
            const auto parent = static_cast<NodeIndex>(parents[node]);
            CHECK(tree.child(parent, tokens[node]) == node);
            CHECK(tree.path_to(node).size() == tree.nodes()[node].depth + 1);
            CHECK(tree.sequences_with(parent).first <= tree.sequences_with(node).first);
            CHECK(tree.sequences_with(parent).end >= tree.sequences_with(node).end);
        }
    }
    const auto chain = DraftTree::of(Tokens{1, 2, 3}, {});
    CHECK(chain.leaves().size() == 1);
    CHECK(chain.follow(Tokens{2, 3}).size() == 2);
}

}  // TEST_SUITE("speculation")
