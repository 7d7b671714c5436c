// What a larger pool takes of the devices, foretold from a small one and compared with what it then took; and the
// weights that a token reads.
#include <doctest/doctest.h>

#include <string>

#include "llama/kv_cache/pool_memory.h"
#include "tests/llama/llama_memory.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::memory_tests;

namespace {

const char* const kFamilies[] = {"qwen3", "qwen3moe", "qwen35", "qwen35moe", "gemma4", "laguna"};

std::uint64_t taken(const memory::PoolDevice& device) { return device.caches + device.compute; }

}  // namespace

TEST_CASE("a larger pool takes what was foretold from the smallest one, and little less") {
    for (const char* family : kFamilies) {
        CAPTURE(family);
        Setup setup({test_model(family), "q8_0"}, 256);
        llama::Model& model = setup.model;
        const auto before = llama::pool_devices(model, kLanes, nullptr);
        REQUIRE(before.size() == 1);
        CHECK(before[0].is_host);
        CHECK(before[0].a_token == setup.device.traits().row_bytes);
        CHECK(before[0].total > before[0].weights);
        setup.device.unbind();
        constexpr std::int32_t kLarge = 8192;
        REQUIRE(model.resize_pool(kLarge));
        CHECK(model.info().n_pool == kLarge);
        setup.device.rebind();
        CHECK(setup.device.traits().n_cells == kLarge);
        const auto after = llama::pool_devices(model, kLanes, nullptr);
        const std::uint64_t n_more = kLarge - 256;
        const std::uint64_t foretold =
            taken(before[0]) + before[0].later + n_more * (before[0].a_token + before[0].beside_token);
        CHECK(taken(after[0]) <= foretold);
        CHECK(taken(after[0]) - taken(before[0]) >= n_more * before[0].a_token + before[0].later);
        CHECK(after[0].later == 0);
        CHECK(after[0].weights == before[0].weights);
    }
}

TEST_CASE("a token reads the weights but for tables and for experts that it does not go to") {
    for (const char* family : kFamilies) {
        CAPTURE(family);
        const Setup setup({test_model(family), "q8_0"}, 256);
        const std::uint64_t all = llama::pool_devices(setup.model, kLanes, nullptr)[0].weights;
        const std::uint64_t read = llama::weights_read_a_token(setup.model, nullptr);
        CHECK(read < all);
        CHECK(read > all / 4);
        const bool has_experts = std::string(family).find("moe") != std::string::npos;
        if (has_experts) CHECK(read < all - all / 8);
    }
}

}  // TEST_SUITE("llama")
