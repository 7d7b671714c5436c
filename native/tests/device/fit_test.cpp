// Plans for the tests' device that models are then loaded by: what they say lies there, and answers stay the same.
#include <doctest/doctest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include <unistd.h>

#include "llama-ext.h"
#include "llama-model.h"
#include "llama/fit/fit.h"
#include "llama/model/backend.h"
#include "llama/model/model_identity.h"
#include "tests/device/late_device.h"
#include "tests/llama/llama_memory.h"

TEST_SUITE("device") {

using namespace luce;
using namespace luce::memory_tests;

namespace {

llama::ModelOptions options_of(const std::string& name) {
    static const llama::Backend backend;
    tests::LateDevice::install();
    llama::ModelOptions options;
    options.path = test_model(name);
    options.n_threads = 1;
    return options;
}

llama::Fitted fit(const llama::ModelOptions& options, std::optional<std::size_t> gpu_bytes) {
    llama::FitOptions wanted;
    wanted.gpus = {gpu_bytes.value_or(std::size_t{1} << 40)};
    Result<llama::Fitted> fitted = llama::fit(options, wanted);
    REQUIRE_MESSAGE(fitted.ok(), fitted.error().text);
    return std::move(fitted).value();
}

// What libllama has put there.
std::size_t device_bytes(const llama::Model& model) {
    std::size_t all = 0;
    for (const auto& [type, bytes] : llama_get_memory_breakdown(model.context())) {
        if (!ggml_backend_buft_is_host(type)) all += bytes.model + bytes.context + bytes.compute;
    }
    return all;
}

}  // namespace

TEST_CASE("a plan for any card is loaded at the first try and stays within it") {
    int n_partly = 0;
    for (const char* name : {"qwen3", "qwen3moe", "qwen35", "qwen35moe", "gemma4", "gemma4moe", "laguna"}) {
        CAPTURE(name);
        llama::ModelOptions options = options_of(name);
        options.n_ctx = 1024;
        const llama::FitPlan whole = fit(options, std::nullopt).plan;
        for (const std::size_t percent : {100, 80, 60, 40}) {  // of what can be given up
            CAPTURE(percent);
            const std::size_t gpu_bytes = whole.compute + whole.cache + whole.weights / 100 * percent + 100;
            const llama::Fitted fitted = fit(options, gpu_bytes);
            llama::ModelOptions chosen = options;
            if (!fitted.is_whole()) chosen.n_gpu_layers = fitted.plan.n_gpu_layers;
            chosen.placement.n_expert_layers = fitted.plan.n_expert_layers;
            if (fitted.plan.has_q8) chosen.cache_type_k = chosen.cache_type_v = fitted.cache_type_k;
            const Result<llama::Model> loaded = llama::Model::load(chosen, true, [] {});
            REQUIRE_MESSAGE(loaded.ok(), loaded.error().text);
            CHECK(loaded.value().info().cache_type_k == fitted.cache_type_k);
            if (percent == 100) CHECK(fitted.is_whole());
            if (fitted.plan.n_gpu_layers == 0) continue;
            // What passes between host and device within a step is not counted: some KiB.
            CHECK(device_bytes(loaded.value()) <= gpu_bytes + gpu_bytes / 1000);
            n_partly += fitted.is_whole() && fitted.plan.n_expert_layers == 0 ? 0 : 1;
        }
    }
    CHECK(n_partly >= 6);
}

TEST_CASE("the plan's weights are those that libllama puts there") {
    for (const char* name : {"qwen3", "qwen3moe", "qwen35", "gemma4"}) {
        CAPTURE(name);
        const llama::ModelOptions options = options_of(name);
        const llama::Fitted fitted = fit(options, std::nullopt);
        const Result<llama::Model> loaded = llama::Model::load(options, true, [] {});
        REQUIRE(loaded.ok());
        std::size_t weights = 0, cache = 0;
        for (const auto& [type, bytes] : llama_get_memory_breakdown(loaded.value().context())) {
            if (ggml_backend_buft_is_host(type)) continue;
            weights += bytes.model;
            cache += bytes.context;
        }
        CHECK(static_cast<double>(fitted.plan.weights) == doctest::Approx(static_cast<double>(weights)).epsilon(0.02));
        CHECK(static_cast<double>(fitted.plan.cache) == doctest::Approx(static_cast<double>(cache)).epsilon(0.02));
    }
}

TEST_CASE("a mixture's experts are left to the processor where the link is slower than it") {
    const auto plan_with = [](experts::ExpertRates measured, const std::string& profile, bool may_split = true) {
        llama::ModelOptions options = options_of("qwen3moe");
        options.n_ctx = 1024;
        options.placement.open_split_memory = [](ggml_backend_dev_t) -> Result<std::unique_ptr<llama::SplitMemory>> {
            return std::unique_ptr<llama::SplitMemory>();  // there would be some
        };
        options.placement.expert_profile = profile;
        options.cache_type_k = options.cache_type_v = "f16";
        const llama::FitPlan whole = fit(options, std::nullopt).plan;
        tests::LateDevice::install().set_total(whole.gpu_bytes() - whole.weights / 8);
        llama::FitOptions wanted;
        wanted.least_experts = 1;
        wanted.may_split_experts = may_split;
        wanted.measure_experts = [measured](ggml_backend_dev_t, const ggml_tensor& like, std::int32_t n_used,
                                            std::int32_t n_threads) {
            CHECK(like.ne[2] == 8);
            CHECK(n_used == 2);
            CHECK(n_threads == 1);
            return measured;
        };
        Result<llama::Fitted> fitted = llama::fit(options, wanted);
        tests::LateDevice::install().set_total(SIZE_MAX);
        REQUIRE_MESSAGE(fitted.ok(), fitted.error().text);
        return std::move(fitted).value();
    };
    const llama::Fitted fast = plan_with({50e9, 30e9}, "/nowhere");
    CHECK(fast.plan.expert_memory > 0);
    CHECK(fast.reason.empty());
    CHECK(plan_with({50e9, 30e9}, "/nowhere", false).plan.n_expert_layers > 0);
    const llama::Fitted slow = plan_with({1e9, 30e9}, "/nowhere");
    CHECK(slow.plan.expert_memory == 0);
    CHECK(slow.plan.n_expert_layers > 0);
    CHECK(slow.text().find("the processor computes experts at 27.9 GiB/s, the link to the GPU has 0.9 GiB/s") !=
          std::string::npos);
    // Between the two what is known of the model decides: here all experts are used alike.
    CHECK(plan_with({20e9, 30e9}, "/nowhere").plan.expert_memory > 0);
    const std::string profile = "/tmp/luce-fit-profile-" + std::to_string(::getpid());
    const std::string path = options_of("qwen3moe").path;
    experts::ExpertProfile even{llama::memory_identity({path}, llama::ModelInfo{}).value(), {}};
    for (std::int32_t layer = 0; layer < 4; ++layer) {
        even.layers.push_back({layer, std::vector<double>(8, 1e4), std::vector<double>(8, 0)});
    }
    REQUIRE(experts::write_profile(profile, even));
    CHECK(plan_with({20e9, 30e9}, profile).plan.n_expert_layers > 0);
    even.identity = std::string(32, 'a');  // of another model: nothing is known
    REQUIRE(experts::write_profile(profile, even));
    CHECK(plan_with({20e9, 30e9}, profile).plan.expert_memory > 0);
    ::unlink(profile.c_str());
}

TEST_CASE("this machine's rates are measured") {
    const llama::ModelOptions options = options_of("qwen3moe");
    const Result<llama::Model> loaded = llama::Model::load(options, true, [] {});
    REQUIRE(loaded.ok());
    const ggml_tensor* like = loaded.value().model()->layers[0].ffn_up_exps;
    const experts::ExpertRates rates = llama::measure_expert_rates(tests::LateDevice::install().device(), *like, 2, 1);
    CHECK(rates.link > 0);
    CHECK(rates.processor > 0);
    CHECK(std::isfinite(rates.link));
    CHECK(std::isfinite(rates.processor));
    CHECK(llama::measure_expert_rates(tests::LateDevice::install().device(), *like, 100, 1).processor == 0);
}

TEST_CASE("without memory that is known, and without a context that can be made, there is no plan") {
    llama::ModelOptions options = options_of("qwen3");
    CHECK(llama::fit(options, {}).ok());
    options.placement.devices = "Nowhere";
    CHECK(llama::fit(options, {}).error().code == ErrorCode::start_failed);
    options.placement.devices.reset();
    options.n_lanes = 100000;  // more than libllama has
    CHECK(llama::fit(options, {}).error().code == ErrorCode::start_failed);
}

TEST_CASE("who says where weights lie is left alone") {
    llama::ModelOptions options = options_of("qwen3moe");
    CHECK(llama::leaves_placement(options));
    options.n_gpu_layers = 3;
    CHECK_FALSE(llama::leaves_placement(options));
    options.n_gpu_layers.reset();
    options.placement.n_expert_layers = 1;
    CHECK_FALSE(llama::leaves_placement(options));
}

}  // TEST_SUITE("device")
