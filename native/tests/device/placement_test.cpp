// Which memory a model's weights come into, on the tests' device: where they are told to, and answers stay the same.
#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "llama-model.h"
#include "llama/model/backend.h"
#include "llama/model/model.h"
#include "tests/device/greedy_answer.h"
#include "tests/device/late_device.h"
#include "tests/llama/llama_memory.h"

TEST_SUITE("device") {

using namespace luce;
using namespace luce::memory_tests;

namespace {

Result<llama::Model> load(const llama::PlacementOptions& placement, const char* name = "qwen3moe") {
    static const llama::Backend backend;
    tests::LateDevice::install();
    llama::ModelOptions options;
    options.path = test_model(name);
    options.n_ctx = 256;
    options.n_threads = 1;
    options.placement = placement;
    return llama::Model::load(options, true, [] {});
}

bool is_on_host(const llama::Model& model, const std::string& name) {
    const ggml_tensor* tensor = model.model()->get_tensor(name.c_str());
    REQUIRE_MESSAGE(tensor != nullptr, name);
    return ggml_backend_buffer_is_host(tensor->buffer);
}

// Whose experts are in the host's memory, by layer.
std::vector<bool> experts_on_host(const llama::Model& model) {
    std::vector<bool> found;
    for (int layer = 0; layer < llama_model_n_layer(model.model()); ++layer) {
        const std::string block = "blk." + std::to_string(layer);
        const bool is_merged = model.model()->get_tensor((block + ".ffn_up_exps.weight").c_str()) == nullptr;
        found.push_back(is_on_host(model, block + (is_merged ? ".ffn_gate_up_exps.weight" : ".ffn_up_exps.weight")));
        CHECK(is_on_host(model, block + ".ffn_down_exps.weight") == found.back());
        CHECK(!is_on_host(model, block + ".attn_q.weight"));
    }
    return found;
}

Tokens answer(const llama::Model& model) { return tests::greedy_answer(model, 12); }

std::string refusal(const llama::PlacementOptions& placement) {
    const Result<llama::Model> model = load(placement);
    REQUIRE(!model.ok());
    CHECK(model.error().code == ErrorCode::bad_args);
    return model.error().text;
}

}  // namespace

TEST_CASE("experts are where they are told to be, and say the same from there") {
    for (const char* name : {"qwen3moe", "gemma4moe"}) {
        CAPTURE(name);
        const Result<llama::Model> plain = load({}, name);
        REQUIRE(plain.ok());
        const std::size_t n_layers = experts_on_host(plain.value()).size();
        CHECK(experts_on_host(plain.value()) == std::vector<bool>(n_layers, false));
        const Tokens expected = answer(plain.value());

        const auto check = [&](const llama::PlacementOptions& placement, const std::vector<bool>& on_host) {
            const Result<llama::Model> model = load(placement, name);
            REQUIRE(model.ok());
            CHECK(experts_on_host(model.value()) == on_host);
            CHECK(answer(model.value()) == expected);
        };
        std::vector<bool> first_two(n_layers, false);
        first_two[0] = first_two[1] = true;
        check({.n_expert_layers = 2}, first_two);
        check({.keeps_experts = true}, std::vector<bool>(n_layers, true));
        check({.keeps_experts = true, .expert_cache_bytes = std::size_t{16} << 20}, std::vector<bool>(n_layers, true));
        std::vector<bool> second(n_layers, false);
        second[1] = true;
        check({.tensor_overrides = "blk\\.1\\.ffn_.*_exps=CPU"}, second);
    }
}

TEST_CASE("a device that is named is used, and none keeps all on the CPU") {
    const std::string name = ggml_backend_dev_name(tests::LateDevice::install().device());
    const Result<llama::Model> named = load({.devices = name});
    REQUIRE(named.ok());
    CHECK(!is_on_host(named.value(), "blk.0.attn_q.weight"));
    const Result<llama::Model> none = load({.devices = "none"});
    REQUIRE(none.ok());
    CHECK(is_on_host(none.value(), "blk.0.attn_q.weight"));
    CHECK(none.value().info().n_gpu_layers == 0);
    CHECK(answer(none.value()) == answer(named.value()));
}

TEST_CASE("what cannot be is refused with what there is") {
    const std::string name = ggml_backend_dev_name(tests::LateDevice::install().device());
    CHECK(refusal({.devices = "Nowhere"}).find("there is no 'Nowhere' (there are: " + name) != std::string::npos);
    CHECK(refusal({.devices = name + ","}).find("there is no ''") != std::string::npos);
    CHECK(refusal({.tensor_split = "3,x"}).find("not 'x'") != std::string::npos);
    CHECK(refusal({.tensor_split = "-1"}).find("not '-1'") != std::string::npos);
    CHECK(refusal({.tensor_split = "nan"}).find("not 'nan'") != std::string::npos);
    CHECK(refusal({.split_mode = llama::SplitMode::row}).find("--split-mode row: " + name) != std::string::npos);
    CHECK(refusal({.devices = "none", .split_mode = llama::SplitMode::tensor}).find("no GPU") != std::string::npos);
    CHECK(refusal({.tensor_overrides = "exps"}).find("PATTERN=BUFFER") != std::string::npos);
    CHECK(refusal({.tensor_overrides = "=CPU"}).find("PATTERN=BUFFER") != std::string::npos);
    CHECK(refusal({.tensor_overrides = "exps=Moon"}).find("there is no buffer 'Moon' (there are: CPU") !=
          std::string::npos);
    CHECK(refusal({.tensor_overrides = "(=CPU"}).find("no regular expression") != std::string::npos);
}

}  // TEST_SUITE("device")
