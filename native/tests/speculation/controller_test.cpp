// Tests of the controller: what its parts learn from measurements, and that it survives whatever it is told
// (controller_promise_test.cpp: what it is for).
#include <doctest/doctest.h>
#include <malloc.h>

#include <cmath>
#include <limits>
#include <random>

#include "speculation/controller/acceptance_estimator.h"
#include "speculation/controller/exploration_budget.h"
#include "speculation/controller/speculation_controller.h"
#include "speculation/controller/step_options.h"
#include "tests/speculation/speculation_world.h"

TEST_SUITE("speculation") {

using namespace luce;
using namespace luce::speculation;
using namespace luce::tests;

namespace {

constexpr auto kLane = static_cast<LaneId>(0);

}  // namespace

TEST_CASE("confidence is worth what came true of it") {
    AcceptanceEstimator acceptance(2, 1);
    std::mt19937 random(5);
    const std::vector<float> confidence = {0.95F, 0.95F};
    const auto first = [&](LaneId lane) {
        std::vector<float> chances(2);
        acceptance.chances(lane, 0, confidence, chances);
        CHECK(chances[1] <= chances[0]);
        return static_cast<double>(chances[0]);
    };
    CHECK(first(kLane) == doctest::Approx(0.95));
    for (int i = 0; i < 600; ++i) acceptance.observe(kLane, 0, confidence, random() % 10 < 3 ? 2 : 0);
    CHECK(first(kLane) == doctest::Approx(0.3).epsilon(0.5));
    // Here everything is right: the lane's own offset.
    const auto other = static_cast<LaneId>(1);
    for (int i = 0; i < 20; ++i) acceptance.observe(other, 0, confidence, 2);
    CHECK(first(other) > 0.8);
    CHECK(first(kLane) < 0.6);
    acceptance.begin(other);
    CHECK(first(other) < 0.6);
}

TEST_CASE("the likeliest tokens of all lanes come first") {
    StepOptions options;
    const std::vector<float> sure = {0.9F, 0.8F, 0.7F}, unsure = {0.5F, 0.1F};
    const std::vector<StepOptions::Chances> lanes = {unsure, sure, {}};
    options.lay_out(lanes);
    REQUIRE(options.all().size() == 6);
    CHECK(options.all()[4].n_right == doctest::Approx(0.9 + 0.8 + 0.7 + 0.5));
    std::vector<std::int32_t> widths(3);
    options.widths(options.all()[4], widths);
    CHECK(widths == std::vector<std::int32_t>{1, 3, 0});
    options.lay_out_equal(lanes, 2, 2);
    REQUIRE(options.all().size() == 3);
    CHECK(options.all()[2].n_drafted == 6);
    CHECK(options.all()[2].n_right == doctest::Approx(0.9 + 0.8 + 0.5 + 0.1));
    options.lay_out_equal(lanes, 3, 3);
    options.widths(options.all()[2], widths);
    CHECK(widths == std::vector<std::int32_t>{2, 3, 0});
}

TEST_CASE("several lanes draft in few widths, because each is a call of another shape") {
    StepOptions options;
    const std::vector<float> chances(15, 0.9F);
    const auto widths_of = [&](std::size_t n_lanes, std::int32_t n_most, std::int32_t n_widest) {
        options.lay_out_equal(std::vector<StepOptions::Chances>(n_lanes, chances), n_most, n_widest);
        std::vector<std::int32_t> widths;
        for (const StepOption& option : options.all()) widths.push_back(option.width);
        return widths;
    };
    CHECK(widths_of(2, 15, 15) == std::vector<std::int32_t>{0, 1, 3, 7, 15});
    CHECK(widths_of(8, 6, 15) == std::vector<std::int32_t>{0, 1, 3});
    CHECK(widths_of(2, 4, 4) == std::vector<std::int32_t>{0, 1, 2, 4});
    CHECK(widths_of(1, 5, 15) == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5});
    CHECK(widths_of(2, 0, 15) == std::vector<std::int32_t>{0});
}

TEST_CASE("trials never take more than the budget's share") {
    ExplorationBudget budget;
    double taken_s = 0;
    for (int i = 0; i < 10000; ++i) {
        budget.earn_trials(1, 4);
        if (budget.take(0.7)) taken_s += 0.7;
    }
    CHECK(taken_s > 0);
    CHECK(taken_s <= ExplorationBudget::kTrialShare * 10000);
    CHECK(!budget.take(std::numeric_limits<double>::quiet_NaN()));
}

TEST_CASE("what speculation saves pays for what it loses, and debts for nothing") {
    ExplorationBudget budget;
    CHECK(!budget.covers(0.1));
    budget.grant(1);
    CHECK(budget.covers(1));
    budget.book(1, -3, 10);
    CHECK(!budget.covers(0.1));
    budget.book(1, 50, 10);
    CHECK(budget.covers(10));
    CHECK(!budget.covers(10.1));
}

TEST_CASE("what a call adds to the plain one behind it is part of its own cost") {
    SpeculationController controller(config_of(1));
    for (int i = 0; i < 8; ++i) controller.observe_step({1, 1, 100, 0.01});
    for (int i = 0; i < 60; ++i) {
        controller.observe_step({1, 5, 100, 0.02});
        controller.observe_step({1, 1, 100, 0.02});
        controller.observe_step({1, 1, 100, 0.01});
    }
    const auto cost = controller.relative_cost(1, 5);
    REQUIRE(cost);
    CHECK(*cost == doctest::Approx(3).epsilon(0.1));
}

// Five plain steps for five tokens; without the graph it would have been two.
TEST_CASE("calls for which a graph had to be made do not say what such calls cost") {
    const std::vector<LaneState> lanes = {{kLane, 100, 15}};
    const std::vector<float> confidence(4, 0.99F);
    const std::vector<Proposal> proposals = {{kLane, kNgram, confidence}};
    for (const bool is_first : {true, false}) {
        SpeculationController controller(config_of(1));
        for (int i = 0; i < 8; ++i) controller.observe_step({1, 1, 100, 0.01});
        StepCost step{1, 5, 100, 0.05, 0, 4};
        step.is_first = is_first;
        for (int i = 0; i < 3; ++i) {
            controller.observe_step(step);
            controller.observe_step({1, 1, 100, 0.01});
        }
        CHECK((controller.choose(lanes, proposals)[0].width == 4) == is_first);
    }
}

// One lane is four times as fast with these drafts, eight are 1.2 times as fast: what a second was worth while one was
// left must not keep them from that.
TEST_CASE("what drafts bring a lane alone is not asked of many") {
    SpeculationController controller(config_of(8, true));
    const auto situations = [](std::int32_t n) {
        std::vector<LaneState> lanes;
        for (std::int32_t i = 0; i < n; ++i) lanes.push_back({static_cast<LaneId>(i), 100, 15});
        return lanes;
    };
    const std::vector<float> confidence(7, 0.99F);
    const auto step = [&](std::int32_t n_lanes) {
        const std::vector<LaneState> lanes = situations(n_lanes);
        std::vector<Proposal> proposals;
        for (const LaneState& lane : lanes) proposals.push_back({lane.lane, kNgram, confidence});
        const std::int32_t width = controller.choose(lanes, proposals)[0].width;
        const double plain_s = n_lanes == 1 ? 0.005 : 0.01;
        const double token_s = n_lanes == 1 ? 0.0007 : 0.000825;
        const std::int32_t n_drafted = n_lanes * width;
        controller.observe_step({n_lanes, n_lanes + n_drafted, 100, plain_s + token_s * n_drafted, 0, n_drafted});
        for (const Proposal& proposal : proposals) controller.observe_verdict(proposal, 7, 7);
        return width;
    };
    const auto is_drafting = [&] { return step(8) == 7; };
    for (int i = 0; i < 300; ++i) step(8);
    int n_drafting = 0;
    for (int i = 0; i < 20; ++i) n_drafting += is_drafting() ? 1 : 0;
    REQUIRE(n_drafting >= 18);  // now and then a plain call is measured
    for (int i = 0; i < 60; ++i) step(1);
    n_drafting = 0;
    for (int i = 0; i < 10; ++i) n_drafting += is_drafting() ? 1 : 0;
    CHECK(n_drafting >= 9);
}

// Four tokens were right: the call that computes them again is like the one that found them, and brings a token.
TEST_CASE("what has to be computed again is a part of a step's cost, and counted once") {
    for (const std::int32_t n_redone : {0, 4}) {
        SpeculationController controller(config_of(1));
        for (int i = 0; i < 8; ++i) controller.observe_step({1, 1, 100, 0.01});
        for (int i = 0; i < 60; ++i) {
            controller.observe_step({1, 5, 100, 0.012, n_redone, 3, false, false, n_redone > 0 ? 1 : 0});
            controller.observe_step({1, 1, 100, 0.01});
        }
        REQUIRE(controller.relative_cost(1, 5));
        CHECK(*controller.relative_cost(1, 5) == doctest::Approx(n_redone > 0 ? 1.4 : 1.2).epsilon(0.03));
    }
}

TEST_CASE("what was earned outlives the first calls of another number of lanes") {
    SpeculationController controller(config_of(2));
    for (int i = 0; i < 8; ++i) controller.observe_step({1, 1, 100, 0.01});
    const std::vector<LaneState> lanes = {{kLane, 100, 15}};
    const std::vector<float> confidence(8, 0.99F);
    const std::vector<Proposal> proposals = {{kLane, kNgram, confidence}};
    CHECK(controller.choose(lanes, proposals)[0].width > 0);
    for (int i = 0; i < 4; ++i) controller.observe_step({1, 9, 100, 0.02, 0, 8});
    CHECK(controller.choose(lanes, proposals)[0].width == 8);
    for (int i = 0; i < 4; ++i) controller.observe_step({2, 2, 100, 0.011});
    CHECK(controller.choose(lanes, proposals)[0].width == 8);
}

TEST_CASE("what drafts of a model have lost does not keep copies from being taken that are always right") {
    SpeculationController controller(config_of(1));
    for (int i = 0; i < 8; ++i) controller.observe_warmup_step({1, 1, 100, 0.01});
    controller.observe_warmup_step({1, 9, 100, 0.04});
    const std::vector<LaneState> lanes = {{kLane, 100, 15}};
    const std::vector<float> sure(8, 0.95F), doubtful(8, 0.6F);
    const Proposal copy = {kLane, kNgram, sure}, guess = {kLane, kNgram, doubtful};
    controller.choose(lanes, {});
    for (int i = 0; i < 20; ++i) {
        controller.observe_verdict(copy, 8, 8);
        controller.observe_verdict(guess, 8, i % 2 == 0 ? 4 : 0);
    }
    controller.observe_failed_draft(0.2);  // twenty plain steps
    controller.observe_step({1, 1, 100, 0.01});
    CHECK(controller.choose(lanes, std::vector{guess})[0].width == 0);
    CHECK(controller.choose(lanes, std::vector{copy})[0].width == 8);
}

// A processor that computes six tokens in the time of four: little to gain, and a long copy gains it.
TEST_CASE("a copy that is all but sure is drafted soon where calls cost nearly as much as their tokens") {
    ControllerConfig config = config_of(1);
    config.sources.resize(1);  // n-grams alone
    SpeculationController controller(config);
    const auto call_s = [](std::int32_t n_drafted) { return 0.04 * (1 + 0.6 * n_drafted); };
    for (const std::int32_t width : {0, 0, 0, kBlock, 5, 1}) {
        controller.observe_warmup_step({1, 1 + width, 1, call_s(width)});
    }
    const std::vector<float> confidence(static_cast<std::size_t>(kBlock), 0.98F);
    const Proposal proposal{kLane, kNgram, confidence};
    controller.begin(kLane);
    double seconds = 0;
    std::int32_t n_text = 300;
    while (n_text < 500) {
        const LaneState lane{kLane, n_text, kBlock};
        const std::int32_t width = controller.choose(std::span(&lane, 1), std::span(&proposal, 1)).front().width;
        seconds += call_s(width);
        n_text += 1 + width;
        controller.observe_step({1, 1 + width, n_text, call_s(width), 0, width});
        controller.observe_verdict(proposal, std::max(width, 1), std::max(width, 1));
    }
    CHECK(seconds < 0.7 * 200 * call_s(0));
}

TEST_CASE("the first calls of an answer do not make plain decoding look dear") {
    SpeculationController controller(config_of(1));
    for (int i = 0; i < 8; ++i) controller.observe_step({1, 1, 100, 0.01});
    for (int answer = 0; answer < 30; ++answer) {
        controller.begin(kLane);
        for (int i = 0; i < 3; ++i) controller.observe_step({1, 1, 100, 0.02 - 0.004 * i, 0, 0, i == 0});
        for (int i = 0; i < 6; ++i) controller.observe_step({1, 5, 100, 0.02, 0, 2});
    }
    const auto cost = controller.relative_cost(1, 5);
    REQUIRE(cost);
    CHECK(*cost == doctest::Approx(2).epsilon(0.1));
    // Where answers are never longer, their calls are all there is.
    for (int answer = 0; answer < 100; ++answer) {
        controller.begin(kLane);
        for (int i = 0; i < 3; ++i) controller.observe_step({1, 1, 100, 0.02, 0, 0, i == 0});
        controller.observe_step({1, 5, 100, 0.02, 0, 2});
    }
    CHECK(*controller.relative_cost(1, 5) == doctest::Approx(1).epsilon(0.2));
}

TEST_CASE("without a controller the first source that proposes something is taken as it is") {
    ControllerConfig config = config_of(2);
    config.is_adaptive = false;
    SpeculationController controller(config);
    const auto other = static_cast<LaneId>(1);
    const std::vector<LaneState> lanes = {{kLane, 100, 15}, {other, 100, 3}};
    const std::vector<float> confidence(8, 0.01F);
    const std::vector<Proposal> free = {{kLane, kNgram, confidence}};
    const std::vector<DraftRequest> asks = controller.requests(lanes, free);
    REQUIRE(asks.size() == 1);
    CHECK(asks[0].lane == other);
    CHECK(asks[0].source == kBlockDraft);
    CHECK(asks[0].n_tokens == 3);
    const std::vector<Proposal> all = {{other, kBlockDraft, confidence}, {kLane, kNgram, confidence}};
    const std::vector<Choice> choices = controller.choose(lanes, all);
    CHECK(choices[0].proposal == 1);
    CHECK(choices[0].width == 8);
    CHECK(choices[1].proposal == 0);
    CHECK(choices[1].width == 3);
}

TEST_CASE("nothing is drafted where nothing may be, or before plain steps were measured") {
    ControllerConfig config = config_of(1);
    const std::vector<LaneState> lanes = {{kLane, 100, 15}};
    const std::vector<float> confidence(8, 0.99F);
    const std::vector<Proposal> proposals = {{kLane, kNgram, confidence}};
    SpeculationController controller(config);
    CHECK(controller.requests(lanes, {}).empty());
    CHECK(controller.choose(lanes, proposals)[0].width == 0);
    CHECK(!controller.relative_cost(1, 4));
    for (int i = 0; i < 3; ++i) controller.observe_step({1, 1, 100, 0.01});
    CHECK(controller.requests(std::vector<LaneState>{{kLane, 103, 15}}, {}).size() == 1);
    CHECK(controller.choose(lanes, proposals)[0].width > 0);
    config.n_most = 0;
    SpeculationController none(config);
    for (int i = 0; i < 3; ++i) none.observe_step({1, 1, 100, 0.01});
    CHECK(none.requests(lanes, {}).empty());
    CHECK(none.choose(lanes, proposals)[0].width == 0);
}

TEST_CASE("whatever the controller is told, it asks and chooses within what there is") {
    std::mt19937 random(11);
    const auto below = [&](unsigned n) { return static_cast<std::int32_t>(random() % n); };
    const std::vector<double> seconds = {0,    -1,     0.01,
                                         1e9,  1e-300, std::numeric_limits<double>::infinity(),
                                         0.02, 1e-3,   std::numeric_limits<double>::quiet_NaN()};
    const std::vector<float> claims = {0.0F,
                                       1.0F,
                                       0.5F,
                                       0.9F,
                                       -3.0F,
                                       7.0F,
                                       1e30F,
                                       std::numeric_limits<float>::quiet_NaN(),
                                       std::numeric_limits<float>::infinity()};
    for (int world = 0; world < 12; ++world) {
        ControllerConfig config = config_of(1 + world % 6, world % 2 == 1);
        config.is_adaptive = world % 4 != 3;
        config.n_most = 1 + below(15);
        config.sources.push_back({"third", 1 + below(30), false});
        SpeculationController controller(config);
        for (int step = 0; step < 1500; ++step) {
            std::vector<LaneState> lanes;
            for (std::int32_t lane = 0; lane < config.n_lanes; ++lane) {
                if (below(4) > 0) lanes.push_back({static_cast<LaneId>(lane), below(9000) - 5, below(20) - 2});
            }
            std::vector<std::vector<float>> confidences(lanes.size() * 2 + 2);
            std::vector<Proposal> proposals;
            for (std::size_t i = 0; i < confidences.size(); ++i) {
                for (std::int32_t n = below(20); n > 0; --n) confidences[i].push_back(claims[random() % claims.size()]);
                proposals.push_back(
                    {static_cast<LaneId>(below(9) - 1), static_cast<SourceIndex>(below(5)), confidences[i]});
            }
            std::vector<Proposal> free;
            for (const Proposal& proposal : proposals) {
                if (proposal.source == kNgram) free.push_back(proposal);
            }
            const auto situation = [&](LaneId lane) {
                return std::find_if(lanes.begin(), lanes.end(), [&](const auto& other) { return other.lane == lane; });
            };
            std::vector<LaneId> asked;
            for (const DraftRequest& ask : controller.requests(lanes, free)) {
                const auto lane = situation(ask.lane);
                REQUIRE(lane != lanes.end());
                REQUIRE(ask.source < config.sources.size());
                CHECK(!config.sources[ask.source].is_free);
                CHECK(ask.n_tokens >= 1);
                CHECK(ask.n_tokens <= std::min({lane->n_most, config.n_most, config.sources[ask.source].n_most}));
                CHECK(std::find(asked.begin(), asked.end(), ask.lane) == asked.end());
                asked.push_back(ask.lane);
            }
            const std::vector<Choice> choices = controller.choose(lanes, proposals);
            REQUIRE(choices.size() == lanes.size());
            for (std::size_t i = 0; i < choices.size(); ++i) {
                CHECK(choices[i].lane == lanes[i].lane);
                CHECK(choices[i].width >= 0);
                if (choices[i].width == 0) continue;
                REQUIRE(choices[i].proposal < proposals.size());
                const Proposal& proposal = proposals[choices[i].proposal];
                CHECK(proposal.lane == lanes[i].lane);
                CHECK(choices[i].width <= static_cast<std::int32_t>(proposal.confidence.size()));
                CHECK(choices[i].width <= std::min(lanes[i].n_most, config.n_most));
                for (const LaneState& lane : lanes) {
                    if (config.wants_equal_widths) CHECK(choices[i].width <= std::max(lane.n_most, 0));
                }
                controller.observe_verdict(proposal, below(20) - 2, below(20) - 2);
            }
            controller.observe_draft(static_cast<SourceIndex>(below(5)), below(9) - 1, below(60) - 2,
                                     seconds[random() % seconds.size()]);
            controller.observe_step({below(9) - 1, below(60) - 2, below(9000) - 5, seconds[random() % seconds.size()]});
            if (const auto cost = controller.relative_cost(below(9) - 1, below(60) - 2)) CHECK(std::isfinite(*cost));
            if (below(50) == 0) controller.begin(static_cast<LaneId>(below(9) - 1));
        }
    }
}

TEST_CASE("a lane's next text starts without the last one's luck") {
    WorldTraits traits;
    traits.shape = CostShape::flat;
    traits.kinds = {Kind::noise};
    const World world(traits);
    SpeculationController controller(config_of(1));
    Player(world).with_gate(controller, 3000, 0);
    // Nothing was ever right here, and it was asked a while ago only; a new text is asked about soon.
    controller.begin(kLane);
    bool was_asked = false;
    for (std::int32_t i = 0; i < 400 && !was_asked; ++i) {
        const std::vector<LaneState> lanes = {{kLane, 100 + std::min(i, 16), kBlock}};
        was_asked = !controller.requests(lanes, {}).empty();
        controller.choose(lanes, {});
    }
    CHECK(was_asked);
}

TEST_CASE("what a source is worth is found out the later in an answer the dearer its drafts are") {
    const auto first_asked = [](double draft_s) {
        SpeculationController controller(config_of(1));
        controller.observe_warmup_draft(kBlockDraft, 1, kBlock, draft_s);
        for (int i = 0; i < 3; ++i) controller.observe_warmup_step({1, 1, 100, 0.01});
        for (int i = 0; i < 2000; ++i) {  // enough is put by
            controller.choose(std::vector<LaneState>{{kLane, 100, kBlock}}, {});
            controller.observe_step({1, 1, 100, 0.01});
        }
        controller.begin(kLane);
        std::int32_t n_answered = 0;
        while (n_answered < 400 &&
               controller.requests(std::vector<LaneState>{{kLane, 500 + n_answered, kBlock}}, {}).empty())
            ++n_answered;
        return n_answered;
    };
    const std::int32_t cheap = first_asked(0.001), dear = first_asked(0.02);
    CHECK(cheap <= 1);
    CHECK(dear > 8);
    CHECK(dear < 24);
}

TEST_CASE("memory does not grow with steps") {
    SpeculationController controller(config_of(2));
    const std::vector<LaneState> lanes = {{kLane, 100, 4}, {static_cast<LaneId>(1), 2000, 4}};
    const std::vector<float> confidence = {0.9F, 0.8F, 0.7F, 0.2F};
    const std::vector<Proposal> proposals = {{kLane, kNgram, confidence}};
    const auto run = [&](int n_steps) {
        for (int i = 0; i < n_steps; ++i) {
            const std::vector<DraftRequest> asks = controller.requests(lanes, proposals);
            if (!asks.empty()) controller.observe_draft(kBlockDraft, static_cast<std::int32_t>(asks.size()), 4, 0.004);
            const std::vector<Choice> choices = controller.choose(lanes, proposals);
            controller.observe_step(
                {2, 2 + choices[0].width + choices[1].width, 100 + i % 3000, 0.01 + 0.001 * choices[0].width});
            if (choices[0].width > 0)
                controller.observe_verdict(proposals[0], choices[0].width, i % (choices[0].width + 1));
            if (i % 1000 == 0) controller.begin(kLane);
        }
    };
    run(20000);
    const std::size_t before = mallinfo2().uordblks;
    run(kIsSlow ? 20000 : 1000000);
    CHECK(mallinfo2().uordblks <= before + 1024);
}

}  // TEST_SUITE("speculation")
