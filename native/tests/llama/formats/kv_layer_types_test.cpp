// Tests of number formats by layer: which layers a rule means, on models whose layers are of several kinds, what is
// refused, and that a context has what was said.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "llama/kv_cache/kv_rows.h"
#include "llama/kv_cache/memory_parts.h"
#include "llama/model/kv_layer_types.h"
#include "tests/llama/llama_memory.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::memory_tests;

namespace {

Result<std::string> made(const Setup& setup, const std::string& rule, std::vector<std::uint32_t> captured = {}) {
    const llama::KvRules rules = {rule, rule, std::move(captured), false};
    const auto types = llama::KvLayerTypes::make(setup.model.model(), rules, false);
    if (!types) return types.error();
    CHECK(types.value().text(true) == types.value().text(false));
    return types.value().text(true);
}

std::string text(const Setup& setup, const std::string& rule, std::vector<std::uint32_t> captured = {}) {
    const auto found = made(setup, rule, std::move(captured));
    return found ? found.value() : "refused: " + found.error().text;
}

}  // namespace

// The packaged model has attention in layers 3, 7 and 11 of 12.
TEST_CASE("a rule's later parts win, and its text is the same for all rules that mean the same") {
    const Setup setup;
    CHECK(text(setup, "q8_0") == "q8_0");
    CHECK(text(setup, "q8_0,3:f16") == "q8_0,3:f16");
    CHECK(text(setup, "q8_0,0-4:f16") == "q8_0,3:f16");
    CHECK(text(setup, "f16,4-11:q8_0") == "q8_0,3:f16");
    CHECK(text(setup, "q4_0,3-7:f16") == "f16,11:q4_0");
    CHECK(text(setup, "3-11:q4_0") == "q4_0");
    CHECK(text(setup, "f16,attn:q5_1") == "q5_1");
    CHECK(text(setup, "q8_0,3:f16,7:q4_0") == "f16,7:q4_0,11:q8_0");
    CHECK(text(setup, "7:bf16") == "q8_0,7:bf16");  // beside the default
}

TEST_CASE("layers of a window and layers that see all can be told apart") {
    const Setup setup({test_model("gemma4"), "q8_0"});
    const auto types = llama::KvLayerTypes::make(setup.model.model(), {"q4_0,swa:q8_0,attn:f16", {}, {}, false}, false);
    REQUIRE(types);
    int n_windows = 0;
    const auto n_layers = static_cast<std::uint32_t>(llama_model_n_layer(setup.model.model()));
    for (std::uint32_t il = 0; il < n_layers; ++il) {
        n_windows += types.value().of(il).k == GGML_TYPE_Q8_0 ? 1 : 0;
        CHECK(types.value().of(il).v == GGML_TYPE_Q8_0);
    }
    CHECK(n_windows < static_cast<int>(n_layers));
    CHECK(n_windows > 0);
}

TEST_CASE("captured is the last layer with a cache before each place where a draft reads") {
    const Setup setup;
    CHECK(text(setup, "q4_0,captured:q8_0", {4}) == "q4_0,3:q8_0");
    CHECK(text(setup, "q4_0,captured:q8_0", {5, 7}) == "q4_0,3:q8_0");
    CHECK(text(setup, "q4_0,captured:q8_0", {8, 12}) == "q8_0,3:q4_0");
    CHECK(text(setup, "q4_0,captured:q8_0", {2}).find("no layer of 'captured'") != std::string::npos);
    CHECK(text(setup, "q4_0,captured:q8_0").find("needs a --draft") != std::string::npos);
}

TEST_CASE("a rule that means nothing is refused by its part") {
    const Setup setup;
    for (const auto& [rule, why] :
         std::vector<std::pair<std::string, std::string>>{{"q9", "'q9' is unknown"},
                                                          {"", "'' is unknown"},
                                                          {"q8_0,", "'' is unknown"},
                                                          {"q8_0,3:", "'' is unknown"},
                                                          {"q8_0,3:f17", "'f17' is unknown"},
                                                          {"q8_0,12:f16", "layer 12 is none"},
                                                          {"q8_0,3-12:f16", "layer 12 is none"},
                                                          {"q8_0,99999999999:f16", "'99999999999' are no layers"},
                                                          {"q8_0,7-3:f16", "'7-3' are no layers"},
                                                          {"q8_0,-3:f16", "'-3' are no layers"},
                                                          {"q8_0,all:f16", "'all' are no layers"},
                                                          {"q8_0,4-6:f16", "no layer of '4-6' caches"},
                                                          {"q8_0,swa:f16", "no layer of 'swa' caches"}}) {
        CAPTURE(rule);
        const auto found = made(setup, rule);
        REQUIRE(!found);
        CHECK(found.error().code == ErrorCode::bad_args);
        CHECK(found.error().text.find(why) != std::string::npos);
        CHECK(found.error().text.find("--cache-type-k") != std::string::npos);
    }
}

TEST_CASE("values that need flash attention are refused without it, in one layer as well") {
    const Setup setup;
    const auto types =
        llama::KvLayerTypes::make(setup.model.model(), {{}, "f16,7:q8_0", {}, /*flash_attention_off=*/true}, false);
    REQUIRE(!types);
    CHECK(types.error().text.find("needs flash attention") != std::string::npos);
}

TEST_CASE("a context's layers have the types of the rule") {
    const Setup setup({LUCE_TINY_MODEL, "q4_0,7:f16"});
    CHECK(setup.model.info().cache_type_k == "q4_0,7:f16");
    const auto parts = llama::memory_parts(setup.model.context(), setup.model.architecture(), kLanes);
    REQUIRE(parts.paged != nullptr);
    std::vector<ggml_type> types;
    for (const ggml_tensor* tensor : llama::KvRows(*parts.paged).tensors()) types.push_back(tensor->type);
    CHECK(types == std::vector<ggml_type>{GGML_TYPE_Q4_0, GGML_TYPE_Q4_0, GGML_TYPE_F16, GGML_TYPE_F16, GGML_TYPE_Q4_0,
                                          GGML_TYPE_Q4_0});
    const Setup uniform({LUCE_TINY_MODEL, "q4_0"});
    CHECK(uniform.device.traits().row_bytes < setup.device.traits().row_bytes);
    CHECK(uniform.model.info().identity != setup.model.info().identity);
}

}  // TEST_SUITE("llama")
