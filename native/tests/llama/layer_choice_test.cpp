// Tests of the layer that pages are compared by: asked for or by depth, of those that can be asked.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <llama.h>

#include "llama/scoring/layer_choice.h"
#include "tests/llama/llama_memory.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::memory_tests;
using llama::usual_layer;

namespace {

using Layers = std::vector<std::int32_t>;

}  // namespace

TEST_CASE("the usual layer stands at two thirds of the depth, and is there however few there are") {
    CHECK(usual_layer(Layers{0, 1, 2, 3}) == 2);
    CHECK(usual_layer(Layers{3, 7, 11}) == 11);
    CHECK(usual_layer(Layers{0, 1, 2, 3, 4, 5}) == 4);
    CHECK(usual_layer(Layers{7}) == 7);
    CHECK(usual_layer(Layers{1, 5}) == 5);
}

TEST_CASE("a layer can be asked for where there is one; another is refused with those that can") {
    const llama::Model model = Setup::load({}, 512, llama::FlashAttention::automatic);
    const auto usual = llama::choose_layer(model, kLanes, std::nullopt);
    REQUIRE(usual.ok());
    const Layers layers = usual.value().layers;
    REQUIRE(!layers.empty());
    CHECK(std::count(layers.begin(), layers.end(), usual.value().layer) == 1);
    CHECK(llama_memory_seq_pos_max(llama_get_memory(model.context()), 0) == -1);  // the trial leaves nothing
    for (const std::int32_t layer : layers) {
        const auto asked = llama::choose_layer(model, kLanes, layer);
        REQUIRE(asked.ok());
        CHECK(asked.value().layer == layer);
    }
    const auto none = llama::choose_layer(model, kLanes, 1 << 15);
    REQUIRE(!none);
    CHECK(none.error().code == ErrorCode::bad_args);
    CHECK(none.error().text.find(std::to_string(layers.back())) != std::string::npos);
}

TEST_CASE("a model whose queries cannot be seen has no layer to choose") {
    const llama::Model model = Setup::load({}, 512, llama::FlashAttention::off);
    const auto refused = llama::choose_layer(model, kLanes, std::nullopt);
    REQUIRE(!refused);
    CHECK(refused.error().code == ErrorCode::unsupported);
}

}  // TEST_SUITE("llama")
