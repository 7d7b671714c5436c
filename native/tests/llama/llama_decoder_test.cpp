// Tests of the libllama adapter on the packaged model: what cannot be done is an error that changes nothing, and
// samplers draw as they should.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "llama/decoding/llama_decoder.h"
#include "llama/model/backend.h"
#include "llama/model/model.h"
#include "llama/sampling/llama_sampler.h"
#include "test_paths.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::engine;

namespace {

constexpr std::int32_t kLanes = 2;
constexpr LaneId kFirst{0};
constexpr LaneId kSecond{1};

const llama::Backend& backend() {
    static const llama::Backend instance;
    return instance;
}

struct Setup {
    explicit Setup(const std::string& path, std::int32_t n_pool = 1024)
        : model(load(path, n_pool)), decoder(model, kLanes) {}

    static llama::Model load(const std::string& path, std::int32_t n_pool) {
        backend();
        llama::ModelOptions options;
        options.path = path;
        options.n_ctx = n_pool;
        options.n_lanes = kLanes;
        options.n_threads = 1;
        Result<llama::Model> model = llama::Model::load(options, false, [] {});
        REQUIRE_MESSAGE(model.ok(), path);
        return std::move(model).value();
    }

    // The logits after `tokens`, which follow what the lane holds.
    std::vector<float> decode(LaneId lane, Position begin, const Tokens& tokens) {
        const Slice slice{lane, begin, tokens, true};
        REQUIRE(decoder.decode(std::span(&slice, 1)));
        const std::span<const float> row = decoder.logits(0);
        REQUIRE(row.size() == static_cast<std::size_t>(model.info().n_vocab));
        return {row.begin(), row.end()};
    }

    llama::Model model;
    llama::LlamaDecoder decoder;
};

Tokens some_tokens(int n, int first) {
    Tokens tokens;
    for (int i = 0; i < n; ++i) tokens.push_back(10 + (first + 37 * i) % 200);
    return tokens;
}

}  // namespace

TEST_CASE("a full pool is no_room and changes nothing") {
    Setup s(LUCE_TINY_MODEL, 256);
    s.decode(kFirst, 0, some_tokens(200, 1));
    const Tokens more = some_tokens(100, 5);
    const Slice slice{kSecond, 0, more, true};
    const Result<void> full = s.decoder.decode(std::span(&slice, 1));
    REQUIRE(!full);
    CHECK(full.error().code == ErrorCode::no_room);
    const std::vector<float> after = s.decode(kFirst, 200, {42});

    Setup fresh(LUCE_TINY_MODEL, 256);
    fresh.decode(kFirst, 0, some_tokens(200, 1));
    CHECK(fresh.decode(kFirst, 200, {42}) == after);
}

TEST_CASE("greedy picks the first largest logit; draws repeat with their seed and not without it") {
    Setup s(LUCE_TINY_MODEL);
    llama::LlamaSamplerFactory factory(s.model, s.decoder);
    const std::vector<float> logits = s.decode(kFirst, 0, some_tokens(30, 1));
    Request greedy;
    greedy.prompt = some_tokens(30, 1);
    const Token best = factory.create(greedy).value()->sample(0).value();
    CHECK(logits[static_cast<std::size_t>(best)] == *std::max_element(logits.begin(), logits.end()));

    Request hot = greedy;
    hot.sampling.temperature = 5.0F;
    const auto draws = [&](std::uint64_t seed) {
        hot.sampling.seed = seed;
        const auto sampler = std::move(factory.create(hot)).value();
        Tokens tokens;
        for (int i = 0; i < 20; ++i) tokens.push_back(sampler->sample(0).value());
        return tokens;
    };
    CHECK(draws(1) == draws(1));
    CHECK(draws(1) != draws(2));
}

TEST_CASE("draws follow the distribution") {
    Setup s(LUCE_TINY_MODEL);
    llama::LlamaSamplerFactory factory(s.model, s.decoder);
    s.decode(kFirst, 0, some_tokens(30, 1));
    Request request;
    request.prompt = some_tokens(30, 1);
    request.sampling.temperature = 1.0F;
    const auto likeliest = factory.create(request).value()->logprobs(0, 0, 1)[1];
    const double p = std::exp(likeliest.logprob);
    int n_hits = 0;
    constexpr int kDraws = 4000;
    for (int i = 0; i < kDraws; ++i) {
        request.sampling.seed = static_cast<std::uint64_t>(i);
        n_hits += std::move(factory.create(request)).value()->sample(0).value() == likeliest.token ? 1 : 0;
    }
    // Five standard deviations: consecutive seeds are independent draws.
    CHECK(std::abs(n_hits - kDraws * p) < 5 * std::sqrt(kDraws * p * (1 - p)) + 1);
}

}  // TEST_SUITE("llama")
