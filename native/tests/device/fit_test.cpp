// Plans for the tests' device that models are then loaded by: what they say lies there, and answers stay the same.
#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "llama-ext.h"
#include "llama-model.h"
#include "llama/fit/fit.h"
#include "llama/model/backend.h"
#include "tests/device/late_device.h"
#include "tests/llama/llama_memory.h"

TEST_SUITE_BEGIN("device");

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
    for (const char* name : {"qwen3", "qwen3moe", "qwen35", "qwen35moe", "gemma4", "laguna"}) {
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
            CHECK(device_bytes(loaded.value()) <= gpu_bytes);
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

TEST_SUITE_END();
