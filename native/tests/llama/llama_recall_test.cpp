// Tests of logits that are put back without a computation.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>

#include "llama/sampling/llama_sampler.h"
#include "tests/llama/llama_memory.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::memory_tests;

TEST_CASE("recalled logits are sampled like computed ones, and the next decode knows nothing of them") {
    Setup s;
    Setup fresh;  // has computed nothing of its own
    const Tokens text = some_tokens(30, 1);
    const Logits computed = s.compute(kFirst, text);
    llama::LlamaSamplerFactory factory(s.model, s.decoder);
    llama::LlamaSamplerFactory fresh_factory(fresh.model, fresh.decoder);

    Request greedy;
    greedy.prompt = text;
    Request hot = greedy;
    hot.sampling.temperature = 3.0F;
    const Token greedy_token = factory.create(greedy).value()->sample(0).value();
    Tokens hot_tokens;
    for (hot.sampling.seed = 0; hot.sampling.seed < 20; ++*hot.sampling.seed) {
        hot_tokens.push_back(factory.create(hot).value()->sample(0).value());
    }
    CHECK(std::count(hot_tokens.begin(), hot_tokens.end(), hot_tokens[0]) < 20);

    const auto check_sampling = [&](Setup& setup, llama::LlamaSamplerFactory& samplers) {
        REQUIRE(setup.decoder.recall(computed));
        CHECK(std::equal(computed.begin(), computed.end(), setup.decoder.logits(0).begin()));
        CHECK(setup.decoder.logits(1).empty());
        CHECK(samplers.create(greedy).value()->sample(0).value() == greedy_token);
        Tokens tokens;
        for (hot.sampling.seed = 0; hot.sampling.seed < 20; ++*hot.sampling.seed) {
            tokens.push_back(samplers.create(hot).value()->sample(0).value());
        }
        CHECK(tokens == hot_tokens);
    };
    check_sampling(fresh, fresh_factory);

    // After a batch whose rows libllama still has to put in order, and before decodes that go on.
    const Token one = 42;
    const Tokens other = some_tokens(30, 77);
    const std::array<Slice, 3> mixed = {Slice{kThird, 0, other, true}, Slice{kFirst, 30, std::span(&one, 1), true},
                                        Slice{kSecond, 0, std::span(other).first(7), true}};
    REQUIRE(s.decoder.decode(mixed));
    check_sampling(s, factory);
    const std::vector<Logits> after = s.go_on(kFirst, 31);
    fresh.compute(kFirst, text);
    fresh.decode(mixed);
    CHECK(fresh.go_on(kFirst, 31) == after);

    CHECK(!s.decoder.recall(std::span(computed).first(10)));
}

}  // TEST_SUITE("llama")
