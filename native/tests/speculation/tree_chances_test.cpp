// Tests of what a drafted tree's tokens are worth: that chances are those of a tree, that they become true, and that
// the controller takes the likeliest of them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "speculation/controller/speculation_controller.h"
#include "speculation/trees/tree_chances.h"
#include "speculation/trees/tree_drafts.h"

TEST_SUITE("speculation") {

using namespace luce;
using namespace luce::speculation;

namespace {

constexpr LaneId kLane{0};

struct Tree {
    Tokens tokens;
    std::vector<std::int32_t> parents;
    std::vector<float> confidence;

    Proposal proposal() const { return {kLane, 0, confidence, parents}; }
};

Tree random_tree(std::mt19937& random, int n) {
    Tree tree;
    for (int i = 0; i < n; ++i) {
        tree.tokens.push_back(static_cast<Token>(i));  // no token twice
        tree.parents.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(i + 1)) - 1);
        tree.confidence.push_back(static_cast<float>(random() % 101) / 100.0F);
    }
    return tree;
}

// Two tokens at each of two places: 0 or 1, and then 2 or 3 behind 0, 4 or 5 behind 1.
Tree two_places() { return {{0, 1, 2, 3, 4, 5}, {-1, -1, 0, 0, 1, 1}, {0.8F, 0.1F, 0.8F, 0.1F, 0.8F, 0.1F}}; }

}  // namespace

TEST_CASE("verdicts are told of the children on the way, up to the right one") {
    const Tree tree = two_places();
    const auto verdicts = [&](const Tokens& got) {
        std::vector<std::pair<std::size_t, bool>> told;
        for (const TreeVerdict& verdict : verdicts_of(tree.tokens, tree.parents, got)) {
            told.emplace_back(verdict.node, verdict.was_right);
        }
        return told;
    };
    using Told = std::vector<std::pair<std::size_t, bool>>;
    CHECK(verdicts({0, 2, 9}) == Told{{0, true}, {2, true}});
    CHECK(verdicts({1, 5}) == Told{{0, false}, {1, true}, {4, false}, {5, true}});
    CHECK(verdicts({1, 9}) == Told{{0, false}, {1, true}, {4, false}, {5, false}});
    CHECK(verdicts({9, 2}) == Told{{0, false}, {1, false}});
    CHECK(verdicts({0}) == Told{{0, true}});
    CHECK(verdicts({}).empty());
}

TEST_CASE("a tree without branches has the chances of the chain, and is learnt from as the chain is") {
    std::mt19937 random(3);
    AcceptanceEstimator of_chains(1, 1);
    AcceptanceEstimator of_first(1, 1);
    TreeChances trees(1, 1);
    for (int round = 0; round < 50; ++round) {
        Tree tree;
        for (std::int32_t i = 0; i < 8; ++i) {
            tree.tokens.push_back(i);
            tree.parents.push_back(i - 1);
            tree.confidence.push_back(static_cast<float>(random() % 101) / 100.0F);
        }
        std::vector<float> of_chain(tree.tokens.size());
        of_chains.chances(kLane, 0, tree.confidence, of_chain);
        const std::vector<float> of_tree = trees.chances(of_first, kLane, 0, tree.confidence, tree.parents);
        for (std::size_t i = 0; i < of_chain.size(); ++i) CHECK(of_tree[i] == doctest::Approx(of_chain[i]));

        const auto n_right = static_cast<std::int32_t>(random() % 9);
        Tokens got(tree.tokens.begin(), tree.tokens.begin() + n_right);
        got.push_back(99);
        of_chains.observe(kLane, 0, tree.confidence, n_right);
        trees.observe(of_first, kLane, 0, tree.confidence, tree.parents, verdicts_of(tree.tokens, tree.parents, got));
    }
}

TEST_CASE("the children of a token are never likelier together than the token") {
    std::mt19937 random(5);
    AcceptanceEstimator acceptance(1, 1);
    TreeChances trees(1, 1);
    for (int round = 0; round < 300; ++round) {
        const Tree tree = random_tree(random, 1 + static_cast<int>(random() % 24));
        const auto chances = trees.chances(acceptance, kLane, 0, tree.confidence, tree.parents);
        REQUIRE(chances.size() == tree.tokens.size());
        std::vector<double> of_children(chances.size() + 1);
        for (std::size_t i = 0; i < chances.size(); ++i) {
            CHECK(chances[i] >= 0);
            of_children[static_cast<std::size_t>(tree.parents[i] + 1)] += static_cast<double>(chances[i]);
        }
        CHECK(of_children[0] <= 1 + 1e-6);
        for (std::size_t i = 0; i < chances.size(); ++i) {
            CHECK(of_children[i + 1] <= static_cast<double>(chances[i]) + 1e-6);
        }
        Tokens got;
        for (int i = 0; i < 6; ++i) got.push_back(static_cast<Token>(random() % 24));
        trees.observe(acceptance, kLane, 0, tree.confidence, tree.parents, verdicts_of(tree.tokens, tree.parents, got));

        const std::size_t n = random() % (chances.size() + 1);
        std::vector<std::size_t> nodes = likeliest_nodes(chances, n);
        REQUIRE(nodes.size() == n);
        std::vector<bool> is_in(chances.size());
        for (const std::size_t node : nodes) {
            CHECK((tree.parents[node] < 0 || is_in[static_cast<std::size_t>(tree.parents[node])]));
            is_in[node] = true;
        }
    }
}

TEST_CASE("chances become what comes true, whatever the source says") {
    std::mt19937 random(7);
    std::uniform_real_distribution<double> uniform;
    AcceptanceEstimator acceptance(1, 1);
    TreeChances trees(1, 1);
    const Tree tree = two_places();
    // The first is right in 3 of 10 places, the second in 6.
    for (int i = 0; i < 2000; ++i) {
        Tokens got;
        for (int place = 0; place < 2; ++place) {
            const double draw = uniform(random);
            if (draw >= 0.9) {
                got.push_back(9);
                break;
            }
            const Token second = draw < 0.3 ? 0 : 1;
            got.push_back(place == 0 ? second : 2 + 2 * got[0] + second);
        }
        trees.observe(acceptance, kLane, 0, tree.confidence, tree.parents, verdicts_of(tree.tokens, tree.parents, got));
    }
    const auto chances = trees.chances(acceptance, kLane, 0, tree.confidence, tree.parents);
    const std::vector<double> truth = {0.3, 0.6, 0.09, 0.18, 0.18, 0.36};
    for (std::size_t i = 0; i < truth.size(); ++i) CHECK(std::abs(static_cast<double>(chances[i]) - truth[i]) < 0.1);
    const std::vector<std::size_t> likeliest = likeliest_nodes(chances, 3);
    CHECK(likeliest == std::vector<std::size_t>{1, 5, 0});
}

TEST_CASE("a draft is the best tree within what was asked, and says so in its confidences") {
    const Tokens text = {7, 8};
    const std::vector<std::vector<Candidate>> places = {{{1, 0.6F}, {2, 0.29F}}, {{3, 0.5F}, {4, 0.4F}}, {{5, 0.9F}}};
    DraftAsk ask{kLane, text, 5, 3, 3};
    const Draft draft = tree_draft(ask, places);
    CHECK(draft.tokens == Tokens{1, 3, 2, 5, 4});  // 0.6, 0.3, 0.29, 0.27, 0.24
    CHECK(draft.parents == std::vector<std::int32_t>{-1, 0, -1, 1, 0});
    const std::vector<float> confidence = {0.6F, 0.5F, 0.29F, 0.9F, 0.4F};
    for (std::size_t i = 0; i < confidence.size(); ++i) CHECK(draft.confidence[i] == doctest::Approx(confidence[i]));
    ask.n_leaves = 1;
    CHECK(tree_draft(ask, places).parents == std::vector<std::int32_t>{-1, 0, 1});
    ask.n_most = 2;
    CHECK(tree_draft(ask, places).tokens == Tokens{1, 3});
}

// Calls cost little more for more tokens, so a token that comes true six times in ten pays.
TEST_CASE("the controller takes the likeliest tokens of a tree, none without its parent") {
    ControllerConfig config;
    config.n_most = 6;
    config.sources = {{"trees", 6, false, true}};
    SpeculationController controller(config);
    const Tree tree = two_places();
    std::int32_t n_trees = 0;
    std::int32_t n_second = 0;
    for (int step = 0; step < 600; ++step) {
        const LaneState lane{kLane, 100 + step, 6};
        std::vector<Proposal> proposals;
        for (const DraftRequest& ask : controller.requests(std::span(&lane, 1), {})) {
            controller.observe_draft(ask.source, 1, ask.n_tokens, 0.0001);
            proposals.push_back(tree.proposal());
        }
        const std::vector<Choice> choices = controller.choose(std::span(&lane, 1), proposals);
        REQUIRE(choices.size() == 1);
        const Choice& choice = choices[0];
        const std::vector<TreeVerdict> verdicts = verdicts_of(tree.tokens, tree.parents, Tokens{1, 5});
        const auto is_right = [&](const TreeVerdict& verdict) {
            const auto& nodes = choice.nodes;
            return verdict.was_right && std::find(nodes.begin(), nodes.end(), verdict.node) != nodes.end();
        };
        const auto n_right = static_cast<std::int32_t>(std::count_if(verdicts.begin(), verdicts.end(), is_right));
        controller.observe_step({1, 1 + choice.width, lane.n_text, 0.01 + 0.0001 * choice.width, 0, n_right});
        if (!proposals.empty()) controller.observe_verdicts(proposals[0], verdicts);
        if (choice.width == 0) continue;
        ++n_trees;
        REQUIRE(choice.nodes.size() == static_cast<std::size_t>(choice.width));
        std::vector<bool> is_in(tree.tokens.size());
        for (std::size_t i = 0; i < choice.nodes.size(); ++i) {
            const std::size_t node = choice.nodes[i];
            CHECK((i == 0 || choice.nodes[i - 1] < node));
            CHECK((tree.parents[node] < 0 || is_in[static_cast<std::size_t>(tree.parents[node])]));
            is_in[node] = true;
        }
        n_second += is_in[1] ? 1 : 0;
    }
    CHECK(n_trees > 400);
    CHECK(10 * n_second > 9 * n_trees);
}

// The likelier of two tokens is right in half of all places, the other one in four of ten. `branch_share`: of a plain
// step, that a call with branches costs more.
struct TreeRun {
    double s_per_token = 0;
    std::int32_t n_branched = 0;  // of the last 500 steps
    std::int32_t n_chained = 0;
};

Tokens tokens_that_came(std::mt19937& random) {
    std::uniform_real_distribution<double> uniform;
    Tokens got;
    for (int place = 0; place < 2 && (got.empty() || got.back() < 9); ++place) {
        const double draw = uniform(random);
        const Token second = draw < 0.5 ? 0 : 1;
        got.push_back(draw >= 0.9 ? 9 : place == 0 ? second : 2 + 2 * got[0] + second);
    }
    return got;
}

TreeRun run_with_trees(double branch_share) {
    ControllerConfig config;
    config.n_most = 6;
    config.sources = {{"trees", 6, false, true}};
    SpeculationController controller(config);
    const Tree tree = two_places();
    std::mt19937 random(11);
    TreeRun run;
    double seconds = 0;
    std::int32_t n_tokens = 0, n_text = 100;
    for (int step = 0; step < 2000; ++step) {
        const LaneState lane{kLane, n_text, 6};
        std::vector<Proposal> proposals;
        double step_s = 0;
        for (const DraftRequest& ask : controller.requests(std::span(&lane, 1), {})) {
            controller.observe_draft(ask.source, 1, ask.n_tokens, 0.0005);
            step_s += 0.0005;
            proposals.push_back(tree.proposal());
        }
        const std::vector<Choice> choices = controller.choose(std::span(&lane, 1), proposals);
        const std::vector<std::size_t>& nodes = choices[0].nodes;
        bool has_branches = false;
        for (std::size_t i = 0; i < nodes.size(); ++i) {
            const std::int32_t parent = tree.parents[nodes[i]];
            has_branches = has_branches || parent != (i == 0 ? -1 : static_cast<std::int32_t>(nodes[i - 1]));
        }
        const std::vector<TreeVerdict> verdicts = verdicts_of(tree.tokens, tree.parents, tokens_that_came(random));
        std::int32_t n_right = 0;
        for (const TreeVerdict& verdict : verdicts) {
            const bool is_taken = std::find(nodes.begin(), nodes.end(), verdict.node) != nodes.end();
            n_right += verdict.was_right && is_taken ? 1 : 0;
        }
        const double call_s = 0.01 + 0.0003 * choices[0].width + (has_branches ? 0.01 * branch_share : 0);
        controller.observe_step({1, 1 + choices[0].width, n_text, call_s, 0, n_right, false, has_branches});
        if (!proposals.empty()) controller.observe_verdicts(proposals[0], verdicts);
        n_text += 1 + n_right;
        if (step < 500) continue;
        seconds += step_s + call_s;
        n_tokens += 1 + n_right;
        if (step < 1500) continue;
        run.n_branched += has_branches ? 1 : 0;
        run.n_chained += !has_branches && choices[0].width > 0 ? 1 : 0;
    }
    run.s_per_token = seconds / n_tokens;
    return run;
}

TEST_CASE("where branches cost too much the likeliest chain is verified") {
    const TreeRun cheap = run_with_trees(0), dear = run_with_trees(1.5);
    CHECK(cheap.n_branched > 450);
    CHECK(dear.n_chained > 450);
    // Half of the first places are right and a quarter of the second: 1.75 tokens a call of two drafted ones.
    CHECK(dear.s_per_token < 1.05 * (0.0106 + 0.0005) / 1.75);
    CHECK(cheap.s_per_token < dear.s_per_token);
}

TEST_CASE("a controller that is switched off takes trees as they are") {
    SpeculationController controller(ControllerConfig{1, 6, false, false, {{"trees", 6, false, true}}});
    const Tree tree = two_places();
    const LaneState lane{kLane, 10, 6};
    const std::vector<Proposal> proposals = {tree.proposal()};
    const std::vector<Choice> choices = controller.choose(std::span(&lane, 1), proposals);
    CHECK(choices.at(0).width == 6);
    CHECK(controller.takes_trees());  // else the log would say that branches do not pay
}

TEST_CASE("what is odd in a tree's verdict is left out") {
    SpeculationController controller(ControllerConfig{1, 4, true, false, {{"trees", 4, false, true}}});
    const Tree tree = two_places();
    const std::vector<TreeVerdict> verdicts = {{0, true}};
    controller.observe_verdicts({LaneId{7}, 0, tree.confidence, tree.parents}, verdicts);
    controller.observe_verdicts({LaneId{-1}, 0, tree.confidence, tree.parents}, verdicts);
    controller.observe_verdicts({kLane, 3, tree.confidence, tree.parents}, verdicts);
    controller.observe_verdicts({kLane, 0, tree.confidence, tree.parents}, {});
    const LaneState lane{kLane, 10, 4};
    CHECK(controller.choose(std::span(&lane, 1), {}).size() == 1);
}

}  // TEST_SUITE("speculation")
