// Prompts of a mixture whose experts lie in two memories, read by way of stages.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <unistd.h>

#include "llama/experts/expert_bank.h"
#include "llama/experts/expert_lookup.h"
#include "llama/experts/expert_stream.h"
#include "tests/device/split_mixture.h"

TEST_SUITE("device") {

using namespace luce;
using luce::tests::answer;
using luce::tests::banked;
using luce::tests::load;
using luce::tests::whole_bytes;

TEST_CASE("what kernels may read behind a streamed weight is zero, whatever its stage held before") {
    const std::string name = "gemma4moe";  // each stage holds weights of two sizes in turn
    std::size_t n_bytes = 0;
    {
        const Result<llama::Model> plain = load(name, {});
        REQUIRE(plain.ok());
        n_bytes = whole_bytes(plain.value());
    }
    const Result<llama::Model> model = load(name, banked(7 * n_bytes / 8));
    REQUIRE_MESSAGE(model.ok(), model.error().text);
    answer(model.value());
    std::size_t n_checked = 0;
    for (const auto& [weight_name, weight] : model.value().model()->tensors_by_name) {
        if (weight_name.find("blk.4.ffn") != 0 || weight_name.find("_exps.weight") == std::string::npos) continue;
        CAPTURE(weight_name);
        const auto& lookup = llama::ExpertLookup::instance();
        const ggml_tensor* seen = lookup.weight(weight, llama::ExpertStream::kFrom);
        REQUIRE(seen != lookup.weight(weight, 1));
        const char* behind = static_cast<const char*>(seen->data) + ggml_nbytes(seen);
        CHECK(std::all_of(behind, behind + experts::kTailBytes, [](char byte) { return byte == 0; }));
        ++n_checked;
    }
    CHECK(n_checked == 2);
}

TEST_CASE("answers are the same where stages are read in another order than they follow each other") {
    const std::string name = "gemma4moe";  // two weights a layer, three stages
    const std::string file = "/tmp/luce-whole-layers-" + std::to_string(::getpid());
    ::unlink(file.c_str());
    llama::PlacementOptions placement;
    Tokens expected;
    {
        const Result<llama::Model> plain = load(name, {});
        REQUIRE(plain.ok());
        expected = answer(plain.value());
        placement = banked(7 * whole_bytes(plain.value()) / 8);
    }
    placement.expert_profile = file;
    {
        const Result<llama::Model> model = load(name, placement);
        REQUIRE_MESSAGE(model.ok(), model.error().text);
        experts::ExpertProfile profile{model.value().experts()->known().identity, {}};
        for (const experts::LayerExperts& layer : model.value().experts()->layout().layers) {
            const std::size_t n = layer.place_of.size();
            profile.layers.push_back({layer.layer, std::vector<double>(n, 1), std::vector<double>(n, 0)});
            if (layer.layer == 1) continue;  // all are used there, a few in the others
            for (std::size_t i = 0; i < n; ++i) profile.layers.back().decode[i] = std::exp2(-static_cast<double>(i));
        }
        REQUIRE(experts::write_profile(file, profile).ok());
    }
    const Result<llama::Model> model = load(name, placement);
    REQUIRE_MESSAGE(model.ok(), model.error().text);
    const auto& layers = model.value().experts()->layout().layers;
    CHECK(layers[1].is_whole());
    CHECK_FALSE(layers[0].is_whole());
    CHECK_FALSE(layers[2].is_whole());
    CHECK(answer(model.value()) == expected);
    ::unlink(file.c_str());
}

}  // TEST_SUITE("device")
