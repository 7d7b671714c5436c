// Tests of whole samplers against llama.cpp's common_sampler_sample on the same logits: the same tokens for the same
// seed, chosen when they are asked for or ahead on other threads.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "llama/sampling/llama_sampler.h"
#include "sampling.h"
#include "tests/llama/llama_memory.h"

TEST_SUITE_BEGIN("llama");

using namespace luce;
using namespace luce::memory_tests;

namespace {

// As the protocol says it: the i-th token's draw has a seed of its own. SplitMix64.
std::uint32_t seed_of_draw(std::uint64_t seed, std::uint64_t index) {
    std::uint64_t x = seed + 0x9e3779b97f4a7c15ULL * (index + 1);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return static_cast<std::uint32_t>((x ^ (x >> 31)) >> 16);
}

// A table of the whole vocabulary for each token, which is what common_sampler_sample makes.
class Reference {
public:
    Reference(Setup& setup, const Request& request) : setup_(setup), seed_(request.sampling.seed) {
        const SamplingParams& from = request.sampling;
        draws_ = from.temperature > 0;
        common_params_sampling params;
        params.temp = from.temperature;
        params.top_k = from.top_k;
        params.top_p = from.top_p;
        params.min_p = from.min_p;
        params.penalty_repeat = from.repeat_penalty;
        params.penalty_present = from.presence_penalty;
        params.penalty_freq = from.frequency_penalty;
        for (const auto& [token, bias] : from.logit_bias) params.logit_bias.push_back({token, bias});
        params.samplers = {COMMON_SAMPLER_TYPE_PENALTIES, COMMON_SAMPLER_TYPE_TOP_K, COMMON_SAMPLER_TYPE_TOP_P,
                           COMMON_SAMPLER_TYPE_MIN_P, COMMON_SAMPLER_TYPE_TEMPERATURE};
        sampler_.reset(common_sampler_init(setup.model.model(), params));
        for (const Token token : request.prompt) common_sampler_accept(sampler_.get(), token, false);
    }

    Token sample() {
        if (draws_) {
            llama_sampler* chain = common_sampler_get(sampler_.get());
            llama_sampler_free(llama_sampler_chain_remove(chain, llama_sampler_chain_n(chain) - 1));
            llama_sampler_chain_add(chain, llama_sampler_init_dist(seed_of_draw(seed_, n_drawn_++)));
        }
        const Token token = common_sampler_sample(sampler_.get(), setup_.model.context(), 0);
        common_sampler_accept(sampler_.get(), token, true);
        return token;
    }

private:
    Setup& setup_;
    std::uint64_t seed_;
    bool draws_ = false;
    std::uint64_t n_drawn_ = 0;
    common_sampler_ptr sampler_;
};

Request random_request(std::mt19937& random, std::int32_t n_vocab) {
    const auto one_of = [&](std::initializer_list<float> values) { return values.begin()[random() % values.size()]; };
    Request request;
    request.prompt = some_tokens(static_cast<int>(1 + random() % 90), static_cast<int>(random() % 100));
    SamplingParams& sampling = request.sampling;
    sampling.seed = random();
    sampling.temperature = one_of({0, 0.7F, 1, 3});
    sampling.top_k = static_cast<std::int32_t>(one_of({0, 1, 20, 40, 40, 200, 9000}));
    sampling.top_p = one_of({1, 0.95F});
    sampling.min_p = one_of({0, 0, 0.05F});
    sampling.repeat_penalty = one_of({1, 1, 1.1F, 2});
    sampling.presence_penalty = one_of({0, 0, 0.5F});
    sampling.frequency_penalty = one_of({0, 0, 0.3F});
    if (random() % 3 == 0) {
        const auto first = static_cast<Token>(random() % 8);
        for (Token i = 0; i < 10; ++i) {
            const float bias = i == 3 ? -std::numeric_limits<float>::infinity() : one_of({-3, 3, 8});
            sampling.logit_bias.emplace_back((first + i * 811) % n_vocab, bias);
        }
    }
    return request;
}

Logits random_row(std::mt19937& random, std::int32_t n_vocab) {
    std::normal_distribution<float> normal(0, 1 + static_cast<float>(random() % 5));
    Logits logits(static_cast<std::size_t>(n_vocab));
    for (float& logit : logits) logit = normal(random);
    return logits;
}

}  // namespace

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
