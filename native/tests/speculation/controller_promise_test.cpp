// Tests of the controller's promise on machines and texts made of arithmetic: never slower than plain decoding, as fast
// as the best fixed setting, and finding that out costs little.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "speculation/controller/speculation_controller.h"
#include "tests/speculation/speculation_world.h"

TEST_SUITE("speculation") {

using namespace luce;
using namespace luce::speculation;
using namespace luce::tests;

// The promise, on 56 worlds: four machines (a processor, a GPU, kernels in steps, experts), seven kinds of texts, the
// lanes' number and everything else in turn. Costs on short texts are known beforehand, as in the daemon.
TEST_CASE("never slower than plain decoding, and as fast as the best fixed setting") {
    const std::vector<WorldTraits> machines = [] {
        WorldTraits cpu, gpu, stepped, experts;
        cpu.name = "cpu";
        cpu.draft_lane_share = 0.4;
        cpu.attention = 0.15;
        gpu.name = "gpu";
        gpu.shape = CostShape::flat;
        gpu.plain_s = 0.025;
        gpu.draft_share = 0.2;
        gpu.draft_lane_share = 0.05;
        gpu.attention = 0.03;
        stepped.name = "stepped";
        stepped.shape = CostShape::stepped;
        stepped.plain_s = 0.01;
        stepped.draft_share = 0.3;
        stepped.attention = 0.05;
        experts.name = "experts";
        experts.shape = CostShape::experts;
        experts.plain_s = 0.01;
        experts.draft_share = 0.4;
        experts.draft_lane_share = 0.3;
        experts.attention = 0.05;
        return std::vector<WorldTraits>{cpu, gpu, stepped, experts};
    }();
    const std::vector<std::vector<Kind>> texts = {{Kind::copying},
                                                  {Kind::tools},
                                                  {Kind::code},
                                                  {Kind::prose},
                                                  {Kind::noise},
                                                  {Kind::copying, Kind::prose},
                                                  {Kind::copying, Kind::prose, Kind::code, Kind::noise}};
    std::uint64_t n_worlds = 0;
    double sum_of_fixed = 0, worst_of_plain = 2, worst_of_fixed = 2;
    for (const WorldTraits& machine : machines) {
        for (const std::vector<Kind>& kinds : texts) {
            for (int turn = 0; turn < 2; ++turn) {
                WorldTraits traits = machine;
                traits.kinds = kinds;
                traits.seed = 1000 + n_worlds;
                traits.n_lanes = 1 << ((n_worlds + n_worlds / 8) % 4);
                if (n_worlds % 3 == 0) traits.n_prompt = 4000;
                if (n_worlds % 3 == 1) traits.noise = 0.1;
                if (n_worlds % 5 == 2) traits.judges_all = false;
                if (n_worlds % 5 == 4) traits.are_equal = true;
                ++n_worlds;
                const World world(traits);
                const std::int64_t n_tokens = 4000 * traits.n_lanes, n_start = 200 * traits.n_lanes;
                SpeculationController controller(config_of(traits.n_lanes, traits.are_equal));
                warm_up(controller, world);
                const double gated = Player(world).with_gate(controller, n_tokens, n_start).s_per_token();
                const double plain = Player(world).plain(n_tokens, n_start).s_per_token();
                double best = plain;
                for (int sources = 1; sources <= 3 && !kIsSlow; ++sources) {
                    for (const std::int32_t width : {1, 2, 4, 6, 8, 11, 15}) {
                        Player player(world);
                        const Tally fixed = player.fixed(sources & 1, sources & 2, width, n_tokens, n_start);
                        best = std::min(best, fixed.s_per_token());
                    }
                }
                INFO(machine.name, ", kind ", static_cast<int>(kinds[0]), " of ", kinds.size(), ", ", traits.n_lanes,
                     " lanes, seed ", traits.seed, ": plain ", plain / gated, ", best fixed ", best / gated);
                CHECK(plain / gated >= 0.99);
                CHECK(best / gated >= 0.95);
                sum_of_fixed += best / gated;
                worst_of_plain = std::min(worst_of_plain, plain / gated);
                worst_of_fixed = std::min(worst_of_fixed, best / gated);
            }
        }
    }
    MESSAGE("worst against plain ", worst_of_plain, ", against fixed ", worst_of_fixed);
    if (!kIsSlow) CHECK(sum_of_fixed / static_cast<double>(n_worlds) >= 1);
}

TEST_CASE("the start costs no more than it may") {
    WorldTraits traits;
    traits.kinds = {Kind::noise};
    for (traits.seed = 1; traits.seed <= 20; ++traits.seed) {
        const World world(traits);
        SpeculationController controller(config_of(1));
        const double gated = Player(world).with_gate(controller, 200, 0).seconds;
        const double plain = Player(world).plain(200, 0).seconds;
        CHECK(gated < plain + 30 * traits.plain_s);
    }
}

TEST_CASE("drafts that are wrong cost little where calls of other shapes are dear") {
    double gated = 0, plain = 0;
    for (const std::int32_t n_lanes : {1, 4}) {
        for (std::uint64_t seed = 1; seed <= 8; ++seed) {
            WorldTraits traits;
            traits.seed = seed;
            traits.n_lanes = n_lanes;
            traits.change_share = 1;
            traits.attention = 1;
            traits.n_prompt = 8000;
            traits.n_text = 17;
            traits.kinds = {Kind::prose};
            traits.are_equal = true;
            const World world(traits);
            SpeculationController controller(config_of(n_lanes, true));
            gated += Player(world).with_gate(controller, 500 * n_lanes, 130 * n_lanes).s_per_token();
            plain += Player(world).plain(500 * n_lanes, 130 * n_lanes).s_per_token();
        }
    }
    INFO("against plain ", plain / gated);
    CHECK(plain / gated >= 0.98);
}

// Without memory for states: what such a step was right about is computed again, and that is part of its cost.
TEST_CASE("where drafts that fail are computed again the promise holds") {
    double worst_of_plain = 2, sum_of_fixed = 0;
    int n_worlds = 0;
    for (const std::int32_t n_rollback : {0, 2}) {
        for (const std::int32_t n_lanes : {1, 4}) {
            for (const Kind kind : {Kind::copying, Kind::tools, Kind::code, Kind::prose, Kind::noise}) {
                WorldTraits traits;
                traits.shape = kind == Kind::code ? CostShape::steep : CostShape::flat;
                traits.seed = 40 + static_cast<std::uint64_t>(n_lanes);
                traits.n_lanes = n_lanes;
                traits.n_rollback = n_rollback;
                traits.are_equal = true;
                traits.plain_s = 0.01;
                traits.draft_share = 0.2;
                traits.kinds = {kind};
                const World world(traits);
                SpeculationController controller(config_of(n_lanes, true));
                warm_up(controller, world);
                const std::int64_t n_tokens = 4000 * n_lanes, n_start = 200 * n_lanes;
                const double gated = Player(world).with_gate(controller, n_tokens, n_start).s_per_token();
                const double plain = Player(world).plain(n_tokens, n_start).s_per_token();
                double best = plain;
                for (int sources = 1; sources <= 3 && !kIsSlow; ++sources) {
                    for (const std::int32_t width : {1, 2, 4, 8, 15}) {
                        Player player(world);
                        best = std::min(best,
                                        player.fixed(sources & 1, sources & 2, width, n_tokens, n_start).s_per_token());
                    }
                }
                INFO(n_rollback, " taken back, ", n_lanes, " lanes, kind ", static_cast<int>(kind), ": plain ",
                     plain / gated, ", best fixed ", best / gated);
                CHECK(plain / gated >= 0.985);
                worst_of_plain = std::min(worst_of_plain, plain / gated);
                sum_of_fixed += best / gated;
                ++n_worlds;
            }
        }
    }
    MESSAGE("worst against plain ", worst_of_plain, ", against fixed ", sum_of_fixed / n_worlds, " on average");
    if (!kIsSlow) CHECK(sum_of_fixed / n_worlds >= 0.95);
}

// Nothing but a draft shows that drafts are no longer as dear as they were.
TEST_CASE("drafts that were dear in a bad moment are asked for again") {
    for (const double times_too_dear : {15.0, 30.0}) {
        WorldTraits traits;
        traits.kinds = {Kind::code};
        traits.plain_s = 0.01;
        traits.shape = CostShape::flat;
        const World world(traits);
        SpeculationController lucky(config_of(1)), unlucky(config_of(1));
        for (SpeculationController* controller : {&lucky, &unlucky}) warm_up(*controller, world);
        for (int i = 0; i < 4; ++i) {
            unlucky.observe_warmup_draft(kBlockDraft, 1, kBlock, times_too_dear * world.draft_s(1, kBlock));
        }
        REQUIRE_FALSE(unlucky.can_pay(std::vector<LaneState>{{LaneId{0}, 300, kBlock}}, kBlockDraft));
        const double with_luck = Player(world).with_gate(lucky, 60000, 30000).s_per_token();
        const double without = Player(world).with_gate(unlucky, 60000, 30000).s_per_token();
        INFO(times_too_dear, " times: ", with_luck / without);
        CHECK(with_luck / without >= 0.98);
    }
}

// Known on short texts only, drafts for eight lanes behind long ones cost ten plain steps.
TEST_CASE("a price that is not known is not paid for all lanes at once") {
    double gated = 0, plain = 0;
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
        WorldTraits traits;
        traits.seed = seed;
        traits.n_lanes = 8;
        traits.draft_share = 1.6;
        traits.draft_lane_share = 0.75;
        traits.draft_attention = 0.6;
        traits.attention = 0.09;
        traits.n_prompt = 8000;
        traits.kinds = {Kind::prose};
        const World world(traits);
        SpeculationController controller(config_of(8));
        warm_up(controller, world);
        gated += Player(world).with_gate(controller, 100 * 8, 0).s_per_token();
        plain += Player(world).plain(100 * 8, 0).s_per_token();
    }
    INFO("against plain ", plain / gated);
    CHECK(plain / gated >= 0.96);
}

TEST_CASE("a draft model that goes token by token is asked for as many as pay") {
    for (const Kind kind : {Kind::tools, Kind::code, Kind::prose}) {
        WorldTraits traits;
        traits.shape = CostShape::flat;
        traits.token_share = 0.9;
        traits.draft_share = 1.5;
        traits.kinds = {kind};
        const World world(traits);
        SpeculationController controller(config_of(1));
        const double gated = Player(world).with_gate(controller, 4000, 200).s_per_token();
        double best = 1;
        for (const std::int32_t width : {1, 2, 3, 4, 6, 8, 11, 15}) {
            best = std::min(best, Player(world).fixed(false, true, width, 4000, 200).s_per_token());
        }
        INFO("kind ", static_cast<int>(kind), ": ", best / gated);
        CHECK(best / gated >= 0.93);
    }
}

TEST_CASE("finding out costs little even where all there is are a few short answers") {
    double worst = 2;
    for (const Kind kind : {Kind::prose, Kind::noise}) {
        for (const std::int32_t n_lanes : {1, 4}) {
            for (const bool are_equal : {false, true}) {
                double seconds = 0, plain_s = 0;
                for (std::uint64_t seed = 1; seed <= 12; ++seed) {
                    WorldTraits traits;
                    traits.seed = seed;
                    traits.n_lanes = n_lanes;
                    traits.draft_lane_share = 0.4;
                    traits.noise = 0.15;
                    traits.kinds = {kind};
                    traits.n_text = 20;
                    traits.are_equal = are_equal;
                    const World world(traits);
                    SpeculationController controller(config_of(n_lanes, are_equal));
                    warm_up(controller, world);
                    seconds += Player(world).with_gate(controller, 1200, 0).s_per_token();
                    plain_s += Player(world).plain(1200, 0).s_per_token();
                }
                worst = std::min(worst, plain_s / seconds);
            }
        }
    }
    MESSAGE("worst against plain ", worst);
    CHECK(worst >= 0.982);
}

}  // TEST_SUITE("speculation")
