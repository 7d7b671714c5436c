// Tests of finding the layer whose queries say which pages matter: one that retrieves, the same each time, and no trace
// of the trials afterwards.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "llama/scoring/layer_calibration.h"
#include "test_paths.h"
#include "tests/llama/llama_memory.h"

TEST_SUITE_BEGIN("llama");

using namespace luce;
using namespace luce::memory_tests;
using llama::best_of;
using llama::CalibrationLimits;
using llama::LayerCalibration;
using llama::LayerRank;

namespace {

const ManualClock kStill;

LayerCalibration calibrated(Setup& s, const CalibrationLimits& limits = {}) {
    const Result<LayerCalibration> result = llama::calibrate_layers(s.model, s.device, kLanes, kStill, limits);
    REQUIRE_MESSAGE(result.ok(), (result ? "" : result.error().text));
    return result.value();
}

double rank_of(const LayerCalibration& calibration, std::int32_t layer) {
    const auto at = std::find_if(calibration.ranks.begin(), calibration.ranks.end(),
                                 [layer](const LayerRank& rank) { return rank.layer == layer; });
    REQUIRE(at != calibration.ranks.end());
    return at->mean_reciprocal_rank;
}

// From some call on seconds pass whenever somebody asks how late it is.
class SlowClock final : public Clock {
public:
    SlowClock(double seconds, std::size_t n_before) : seconds_(seconds), n_before_(n_before) {}
    double now_s() const override { return n_calls_++ < n_before_ ? now_s_ : now_s_ += seconds_; }

private:
    double seconds_;
    std::size_t n_before_;
    mutable std::size_t n_calls_ = 0;
    mutable double now_s_ = 0;
};

// As one that has computed nothing before.
void check_is_clean(Setup& s, const Variant& variant, std::int32_t n_pool) {
    const std::int32_t n_free = s.device.n_free_cells();
    CHECK(n_free == s.device.traits().n_cells);
    CHECK(s.device.usage().n_spanned_cells == 0);
    Setup bare(variant, n_pool);
    const Tokens text = some_tokens(200, 3);
    for (const LaneId lane : {kFirst, kSecond}) {
        CHECK(s.compute(lane, text) == bare.compute(lane, text));
        CHECK(s.find(lane, 0, text.size()) == bare.find(lane, 0, text.size()));
        CHECK(s.go_on(lane, 200) == bare.go_on(lane, 200));
    }
    CHECK(s.whole_state(kFirst) == bare.whole_state(kFirst));
}

}  // namespace

TEST_CASE("the packaged model's layers that retrieve are told from the one that does not") {
    for (const char* type : {"bf16", "q8_0", "q4_0"}) {
        for (const std::int32_t n_pool : {512, 1024}) {
            CAPTURE(type);
            CAPTURE(n_pool);
            Setup s({LUCE_TINY_MODEL, type}, n_pool);
            const LayerCalibration found = calibrated(s);
            REQUIRE(found.ranks.size() == 3);
            REQUIRE(found.best);
            // What facts are found by as well (design of the formula): either of the later two.
            CHECK((found.best->layer == 7 || found.best->layer == 11));
            CHECK(rank_of(found, 3) < 0.6);
            // A few trials are lost or won by how a processor rounds.
            CHECK(rank_of(found, 7) > rank_of(found, 3) + 0.1);
            CHECK(rank_of(found, 11) > rank_of(found, 3) + 0.1);
        }
    }
}

TEST_CASE("trials give the same each time, and leave no trace") {
    const Variant variant{};
    Setup s(variant, 1024);
    const LayerCalibration first = calibrated(s);
    const LayerCalibration second = calibrated(s);
    REQUIRE(first.ranks.size() == second.ranks.size());
    for (std::size_t i = 0; i < first.ranks.size(); ++i) {
        CHECK(first.ranks[i].layer == second.ranks[i].layer);
        CHECK(first.ranks[i].mean_reciprocal_rank == second.ranks[i].mean_reciprocal_rank);
    }
    check_is_clean(s, variant, 1024);
}

TEST_CASE("of models with random weights no layer is taken for one that retrieves, and nothing is left of the trials") {
    for (const char* name : {"qwen3", "qwen3moe", "qwen35", "qwen35moe", "gemma4", "laguna"}) {
        CAPTURE(name);
        const Variant variant{test_model(name), "q8_0"};
        Setup s(variant, 768);
        const LayerCalibration found = calibrated(s);
        CHECK(!found.best);
        CHECK(found.ranks.size() >= 2);
        check_is_clean(s, variant, 768);
    }
}

TEST_CASE("what cannot be tried, takes too long or is stopped says so, and leaves nothing either") {
    const Variant variant{test_model("qwen35"), "q8_0"};
    {
        Setup s(variant, 256);
        const auto found = llama::calibrate_layers(s.model, s.device, kLanes, kStill, {});
        REQUIRE(!found);
        CHECK(found.error().code == ErrorCode::unsupported);
        CHECK(found.error().text.find("pool") != std::string::npos);
    }
    Setup s(variant, 1024);
    const auto gives_up = [&](const Clock& clock, const CalibrationLimits& limits, const char* why) {
        const auto found = llama::calibrate_layers(s.model, s.device, kLanes, clock, limits);
        REQUIRE(!found);
        CHECK(found.error().code == ErrorCode::busy);
        CHECK(found.error().text.find(why) != std::string::npos);
    };
    std::size_t n_announced = 0;
    CalibrationLimits limits;
    limits.on_start = [&](std::size_t n_tokens) { n_announced = n_tokens; };
    gives_up(SlowClock(2, 0), limits, "longer than 20 s");  // seen from the first few tokens
    CHECK(n_announced > 1000);
    CHECK(n_announced < 2500);
    gives_up(SlowClock(4, 25), limits, "longer than 20 s");  // seen on the way
    std::size_t n_calls = 0;
    limits.is_stopped = [&] { return ++n_calls > 5; };
    gives_up(kStill, limits, "stop");
    CHECK(n_calls == 6);
    check_is_clean(s, variant, 1024);

    const llama::Model model = Setup::load({}, 512, llama::FlashAttention::off);
    llama::LlamaKvDevice device(model, kLanes);
    const auto refused = llama::calibrate_layers(model, device, kLanes, kStill, {});
    REQUIRE(!refused);
    CHECK(refused.error().code == ErrorCode::unsupported);
}

TEST_CASE("the best layer is the later of equals, and none that chance could have brought") {
    const auto best = [](std::vector<LayerRank> ranks) {
        const auto found = best_of(ranks, 9, 12);
        return found ? found->layer : -1;
    };
    CHECK(best({{3, 0.4}, {7, 0.9}, {11, 0.8}}) == 7);
    CHECK(best({{3, 0.4}, {7, 0.9}, {11, 0.9}}) == 11);
    CHECK(best({{0, 1.0}, {7, 0.9}, {11, 0.9}}) == 0);
    CHECK(best({{3, 0.31}, {7, 0.5}, {11, 0.45}}) == -1);
    CHECK(best({}) == -1);
    // With few pages and trials guessing comes far by itself.
    const std::array<LayerRank, 1> good = {LayerRank{5, 0.7}};
    CHECK(best_of(good, 9, 12));
    CHECK(!best_of(good, 4, 4));
}

TEST_CASE("of many layers a few of the later ones are tried, the last among them") {
    const auto tried = [](std::int32_t n) {
        std::vector<std::int32_t> layers;
        for (std::int32_t i = 0; i < n; ++i) layers.push_back(4 * i + 3);
        return llama::layers_to_try(layers);
    };
    CHECK(tried(3) == std::vector<std::int32_t>{3, 7, 11});
    CHECK(tried(8).size() == 8);
    CHECK(tried(9) == std::vector<std::int32_t>{7, 11, 15, 19, 23, 27, 31, 35});
    for (const std::int32_t n : {10, 12, 16, 24, 36, 48, 64, 96}) {
        CAPTURE(n);
        const std::vector<std::int32_t> layers = tried(n);
        CHECK(layers.size() == 8);
        CHECK(std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) == layers.end());
        CHECK(layers.front() >= 4 * std::min(n / 3, n - 8) + 3);
        CHECK(layers.back() == 4 * (n - 1) + 3);
    }
}

TEST_CASE("a small pool has fewer pages of trials, the smallest none") {
    CHECK(llama::n_calibration_pages(0) == 0);
    CHECK(llama::n_calibration_pages(5 * 64) == 0);
    CHECK(llama::n_calibration_pages(5 * 64 + 8) == 5);
    CHECK(llama::n_calibration_pages(512) == 7);
    CHECK(llama::n_calibration_pages(1 << 20) == 10);
}

TEST_SUITE_END();
