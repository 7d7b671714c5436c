// Tests of whole samplers against llama.cpp's common_sampler_sample on the same logits: the same tokens for the same
// seed, chosen when they are asked for or ahead on other threads.
#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <random>
#include <vector>

#include "llama/sampling/llama_sampler.h"
#include "tests/llama/llama_memory.h"
#include "tests/llama/sampler_reference.h"

TEST_SUITE_BEGIN("llama");

using namespace luce;
using namespace luce::memory_tests;

TEST_CASE("tokens are those of common_sampler_sample for the same seed") {
    Setup s;
    const std::int32_t n_vocab = s.model.info().n_vocab;
    llama::LlamaSamplerFactory factory(s.model, s.decoder);
    std::mt19937 random(11);
    for (int round = 0; round < 150; ++round) {
        CAPTURE(round);
        Request request = random_request(random, n_vocab);
        if (round % 5 == 0) {
            request.sampling = SamplingParams();
            request.sampling.temperature = 0.1F + static_cast<float>(random() % 30) / 10;
            request.sampling.seed = random();
        }
        Reference reference(s, request);
        const auto sampler = std::move(factory.create(request)).value();
        for (int i = 0; i < 6; ++i) {
            REQUIRE(s.decoder.recall(random_row(random, n_vocab)));
            REQUIRE(sampler->sample(0).value() == reference.sample());
        }
    }
}

TEST_CASE("a bias beyond any logit forces its token, however many are kept") {
    Setup s;
    llama::LlamaSamplerFactory factory(s.model, s.decoder);
    std::mt19937 random(13);
    REQUIRE(s.decoder.recall(random_row(random, s.model.info().n_vocab)));
    for (const std::int32_t top_k : {0, 40, 200, 5000}) {
        Request request;
        request.prompt = some_tokens(3, 1);
        request.sampling.temperature = 1;
        request.sampling.top_k = top_k;
        request.sampling.logit_bias = {{77, 1e9F}};
        CHECK(std::move(factory.create(request)).value()->sample(0).value() == 77);
    }
}

TEST_CASE("tokens chosen ahead, on several threads, are the same") {
    Setup s;
    const Tokens text = some_tokens(8, 1);
    std::mt19937 random(12);
    llama::LlamaSamplerFactory alone(s.model, s.decoder, 0, 1);
    llama::LlamaSamplerFactory beside(s.model, s.decoder, 0, 3);
    for (int round = 0; round < 20; ++round) {
        const std::array<Slice, 3> slices = {Slice{kFirst, 0, text, 1}, Slice{kSecond, 0, std::span(text).first(5), 1},
                                             Slice{kThird, 0, std::span(text).first(3), 1}};
        REQUIRE(s.decoder.decode(slices));
        std::vector<std::unique_ptr<TokenSampler>> ours, theirs;
        std::vector<PendingSample> pending;
        for (std::size_t row = 0; row < slices.size(); ++row) {
            Request request = random_request(random, s.model.info().n_vocab);
            if (row == 1 && round % 2 == 0) request.constraint.grammar = "root ::= [a-z ]+";
            ours.push_back(std::move(beside.create(request)).value());
            theirs.push_back(std::move(alone.create(request)).value());
            pending.push_back({ours.back().get(), row});
        }
        for (int i = 0; i < 3; ++i) {
            beside.choose_ahead(pending);
            for (std::size_t row = 0; row < slices.size(); ++row) {
                CHECK(ours[row]->sample(row).value() == theirs[row]->sample(row).value());
            }
        }
        for (const Slice& slice : slices) s.decoder.forget(slice.lane);
    }
}

TEST_SUITE_END();
