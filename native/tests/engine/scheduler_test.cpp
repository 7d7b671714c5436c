// Tests of the pure parts of the engine: the step plan and the size of slices.
#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <set>

#include "engine/scheduler.h"
#include "engine/slice_sizer.h"

TEST_SUITE("engine") {

using namespace luce;
using namespace luce::engine;

namespace {

LaneView decoding(int lane, int n_computed, std::uint64_t arrival, int priority = 0) {
    return {static_cast<LaneId>(lane), n_computed, 1, 1, 0, false, priority, arrival, 0};
}

LaneView prefilling(int lane, int n_computed, int n_pending, std::uint64_t arrival, std::uint64_t n_read_before = 0,
                    int priority = 0) {
    const std::uint64_t due = n_read_before + static_cast<std::uint64_t>(n_pending);
    return {static_cast<LaneId>(lane), n_computed, n_pending, n_pending, 0, true, priority, arrival, due};
}

int n_tokens(const StepPlan& plan) {
    int n = 0;
    for (const PlannedCall& call : plan.calls) {
        for (const PlannedSlice& slice : call) n += slice.n_tokens;
    }
    return n;
}

}  // namespace

TEST_CASE("no lanes: nothing to do") { CHECK(plan_step({}, {100, 10, 10, false}).calls.empty()); }

TEST_CASE("decoding lanes come every step, prefill gets what is left of the call") {
    const std::vector<LaneView> lanes = {decoding(0, 5, 0), prefilling(1, 0, 100, 1), decoding(2, 7, 2)};
    const StepPlan mixed = plan_step(lanes, {1000, 64, 64, false});
    REQUIRE(mixed.calls.size() == 1);
    REQUIRE(mixed.calls[0].size() == 3);
    CHECK(mixed.calls[0][2].is_prefill);
    CHECK(mixed.calls[0][2].n_tokens == 62);

    const StepPlan separate = plan_step(lanes, {1000, 64, 64, true});
    REQUIRE(separate.calls.size() == 2);
    CHECK(separate.calls[0].size() == 2);
    CHECK(separate.calls[1][0].n_tokens == 64);
}

TEST_CASE("of a prompt that several devices compute one after the other the slices get narrower towards its end") {
    const auto first_slice = [](int n_pending, int n_stages) {
        const std::vector<LaneView> lanes = {prefilling(0, 0, n_pending, 0)};
        return plan_step(lanes, {100000, 2048, 2048, false, n_stages}).calls.at(0).at(0).n_tokens;
    };
    CHECK(first_slice(32768, 1) == 2048);
    CHECK(first_slice(1000, 1) == 1000);
    CHECK(first_slice(32768, 2) == 2048);
    CHECK(first_slice(8192, 2) == 1024);
    CHECK(first_slice(8192, 4) == 512);
    CHECK(first_slice(4096, 2) == 512);
    CHECK(first_slice(300, 2) == 300);
}

TEST_CASE("an image is a call of its own, one that must be whole waits for room, and one that waits gets nothing") {
    std::vector<LaneView> lanes = {decoding(0, 5, 0), prefilling(1, 0, 40, 1), prefilling(2, 0, 100, 2)};
    lanes[1].is_alone = true;
    const StepPlan beside = plan_step(lanes, {1000, 64, 64, false});
    REQUIRE(beside.calls.size() == 2);
    CHECK(beside.calls[0].size() == 2);
    CHECK(beside.calls[0][1].n_tokens == 64 - 1 - 40);
    REQUIRE(beside.calls[1].size() == 1);
    CHECK(beside.calls[1][0].n_tokens == 40);

    lanes[1].is_whole = true;  // whatever the budget
    CHECK(plan_step(lanes, {1000, 10, 64, false}).calls.back()[0].n_tokens == 40);
    CHECK(n_tokens(plan_step(lanes, {5 + 1 + 30, 10, 64, false})) == 1 + 10);

    lanes[1].is_whole = false;
    lanes[1].is_untimed = true;  // whatever the budget, as far as there is room
    CHECK(plan_step(lanes, {1000, 10, 64, false}).calls.back()[0].n_tokens == 40);
    CHECK(n_tokens(plan_step(lanes, {5 + 1 + 30, 10, 64, false})) == 1 + 30);

    lanes[1].is_waiting = true;
    const StepPlan without = plan_step(lanes, {1000, 64, 64, false});
    REQUIRE(without.calls.size() == 1);
    CHECK(n_tokens(without) == 64);
}

TEST_CASE("drafts go before a prompt gets nothing of the call") {
    std::vector<LaneView> lanes = {decoding(0, 5, 0), decoding(1, 5, 1), prefilling(2, 0, 100, 2)};
    lanes[0].n_draft = lanes[1].n_draft = 30;
    const StepPlan beside = plan_step(lanes, {1000, 64, 64, false});
    REQUIRE(beside.calls[0].size() == 3);
    CHECK(beside.calls[0][0].n_tokens == 31);
    CHECK(beside.calls[0][2].n_tokens == 2);

    lanes[0].n_draft = lanes[1].n_draft = 31;
    const StepPlan instead = plan_step(lanes, {1000, 64, 64, false});
    REQUIRE(instead.calls[0].size() == 3);
    CHECK(instead.calls[0][0].n_tokens == 1);
    CHECK(instead.calls[0][2].n_tokens == 62);

    const StepPlan separate = plan_step(lanes, {1000, 64, 64, true});
    REQUIRE(separate.calls.size() == 2);
    CHECK(separate.calls[0][0].n_tokens == 32);
    CHECK(separate.calls[1][0].n_tokens == 64);
}

TEST_CASE("the shortest prompt goes first: it waits for one slice of a long one") {
    const std::vector<LaneView> lanes = {prefilling(0, 64, 1000, 0, 0), prefilling(1, 0, 10, 1, 64)};
    const StepPlan plan = plan_step(lanes, {10000, 64, 64, true});
    REQUIRE(plan.calls.size() == 1);
    REQUIRE(plan.calls[0].size() == 2);
    CHECK(plan.calls[0][0].lane == LaneId{1});
    CHECK(plan.calls[0][0].n_tokens == 10);
    CHECK(plan.calls[0][1].n_tokens == 54);
}

TEST_CASE(
    "of equal prompts the first one is read to its end, and no stream of short ones holds a long one up for ever") {
    const int kSlice = 64;
    std::vector<LaneView> equal = {prefilling(0, 0, 640, 0), prefilling(1, 0, 640, 1)};
    for (int left = 640; left > 0; left -= kSlice) {
        const StepPlan plan = plan_step(equal, {10000, kSlice, kSlice, true});
        REQUIRE(plan.calls.at(0).at(0).lane == LaneId{0});
        equal[0] = prefilling(0, 640 - left + kSlice, std::max(1, left - kSlice), 0);
    }

    // Short prompts come one after the other, as fast as they are read.
    const int kShort = 100;
    int n_left = 1000, n_read = 0;
    for (std::uint64_t arrival = 1; n_left == 1000; ++arrival) {
        REQUIRE(n_read <= 1000);
        const std::vector<LaneView> lanes = {prefilling(0, 0, n_left, 0),
                                             prefilling(1, 0, kShort, arrival, static_cast<std::uint64_t>(n_read))};
        const StepPlan plan = plan_step(lanes, {10000, kShort, kShort, true});
        if (plan.calls.at(0).at(0).lane == LaneId{0}) n_left -= kShort;
        n_read += kShort;
    }
}

TEST_CASE("a higher priority's prompt goes first") {
    const std::vector<LaneView> lanes = {prefilling(0, 0, 1000, 0, 0, 0), prefilling(1, 64, 1000, 1, 9, 5)};
    const StepPlan plan = plan_step(lanes, {10000, 64, 64, false});
    REQUIRE(plan.calls[0].size() == 1);
    CHECK(plan.calls[0][0].lane == LaneId{1});
}

TEST_CASE("a full pool suspends the youngest of the lowest priority, never the last lane") {
    const std::vector<LaneView> lanes = {decoding(0, 50, 0), decoding(1, 40, 1, 1), decoding(2, 9, 2)};
    const StepPlan plan = plan_step(lanes, {100, 64, 64, false});
    REQUIRE(plan.suspend.size() == 1);
    CHECK(plan.suspend[0] == LaneId{2});
    CHECK(plan.calls[0].size() == 2);

    const std::vector<LaneView> alone = {decoding(0, 99, 0)};
    CHECK(plan_step(alone, {99, 64, 64, false}).suspend.empty());
}

TEST_CASE("any state: the plan fits the pool and the call, each lane once, nothing beyond what is pending") {
    std::mt19937 random(7);
    for (int round = 0; round < 20000; ++round) {
        const int n_pool = 64 + static_cast<int>(random() % 500);
        std::vector<LaneView> lanes;
        const int n_lanes = 1 + static_cast<int>(random() % 8);
        for (int i = 0; i < n_lanes; ++i) {
            const bool is_prefilling = random() % 2 == 0;
            const int n_pending = is_prefilling ? 1 + static_cast<int>(random() % 60) : 1;
            const int n_computed = static_cast<int>(random() % static_cast<unsigned>(n_pool - n_pending));
            lanes.push_back({static_cast<LaneId>(i), n_computed, n_pending, n_pending, 0, is_prefilling,
                             static_cast<int>(random() % 3), static_cast<std::uint64_t>(i), random() % 5});
        }
        const StepBudget budget{n_pool, 1 + static_cast<int>(random() % 64), 16 + static_cast<int>(random() % 64),
                                random() % 2 == 0};
        const StepPlan plan = plan_step(lanes, budget);
        std::set<LaneId> seen(plan.suspend.begin(), plan.suspend.end());
        REQUIRE(seen.size() == plan.suspend.size());
        REQUIRE(seen.size() < lanes.size());
        int n_used = 0;
        for (const LaneView& lane : lanes) n_used += seen.contains(lane.lane) ? 0 : lane.n_cells;
        for (const PlannedCall& call : plan.calls) {
            int n_call = 0;
            for (const PlannedSlice& slice : call) {
                REQUIRE(seen.insert(slice.lane).second);
                const LaneView& lane = lanes[static_cast<std::size_t>(slice.lane)];
                REQUIRE(slice.n_tokens >= 1);
                REQUIRE(slice.n_tokens <= lane.n_pending);
                REQUIRE(slice.is_prefill == lane.is_prefilling);
                n_call += slice.n_tokens;
            }
            REQUIRE(n_call <= budget.n_call);
        }
        REQUIRE(n_used + n_tokens(plan) <= std::max(n_pool, n_used + 1));
        REQUIRE(n_tokens(plan) >= 1);
    }
}

TEST_CASE("slices are sized to the time that waiting lanes may wait") {
    SliceSizer sizer(512);
    CHECK(sizer.next(true) == 128);
    sizer.observe(64, 0.064);  // 1 ms a token
    CHECK(sizer.next(true) == 224);
    CHECK(sizer.next(false) == 256);  // at most four times what was measured
    sizer.observe(256, 0.256);
    CHECK(sizer.next(false) == 512);
    CHECK(sizer.call_price_s() == doctest::Approx(0).epsilon(1e-9));
    for (int i = 0; i < 20; ++i) sizer.observe(224, 22.4);  // 0.1 s a token
    CHECK(sizer.next(true) == SliceSizer::kMinTokens);
    CHECK(sizer.token_price_s() == doctest::Approx(0.1).epsilon(0.01));
}

TEST_CASE("slices of which a device has two at once take half as long each") {
    SliceSizer sizer(4096, 2);
    for (int n = 128; n <= 4096; n *= 2) sizer.observe(n, n * 1e-3);
    CHECK(sizer.next(false) == 480);
    CHECK(sizer.next(true) == 224);
    for (int i = 0; i < 20; ++i) sizer.observe(1024, 0.4);
    CHECK(sizer.next(false) == 1024);  // of 1280
    CHECK(sizer.next(true) == 512);    // of 640
}

TEST_CASE("a call that costs as much for few tokens as for many gets many") {
    SliceSizer sizer(2048);
    const auto read = [&](int n) { sizer.observe(n, 0.24 + n * 1e-5); };
    for (const int n : {64, 256, 1024, 2048}) read(n);
    CHECK(sizer.call_price_s() == doctest::Approx(0.24).epsilon(0.01));
    CHECK(sizer.next(false) == 2048);
    CHECK(sizer.next(true) == 2048);
    for (int i = 0; i < 20; ++i) read(64);  // short prompts say nothing of long ones
    CHECK(sizer.next(false) == 2048);
    CHECK(sizer.next(true) == 2048);
    for (int i = 0; i < 20; ++i) sizer.observe(2048, 4.0);  // it has got slow: the offset is no excuse for that
    CHECK(sizer.next(false) <= 512);
}

TEST_CASE("what calls cost is never less than nothing, whatever was measured") {
    std::mt19937 random(3);
    SliceSizer sizer(2048);
    for (int i = 0; i < 10'000; ++i) {
        sizer.observe(static_cast<std::int32_t>(random() % 2048), std::exp(-static_cast<double>(random() % 12)));
        REQUIRE(sizer.call_price_s() >= 0);
        REQUIRE(sizer.token_price_s() >= 0);
        REQUIRE(sizer.next(random() % 2 == 0) >= SliceSizer::kMinTokens);
        REQUIRE(sizer.next(random() % 2 == 0) <= 2048);
    }
}

TEST_CASE("a slice is never larger than the largest allowed, and never empty") {
    for (const int max_tokens : {1, 5, 16, 33, 512}) {
        SliceSizer sizer(max_tokens);
        for (const double seconds : {1e-9, 1e-3, 10.0}) {
            CHECK(sizer.next(true) >= 1);
            CHECK(sizer.next(true) <= max_tokens);
            CHECK(sizer.next(false) <= max_tokens);
            sizer.observe(max_tokens, seconds);
        }
    }
}

}  // TEST_SUITE("engine")
