// Tests of prompts whose own log-probabilities are wanted, on the model of arithmetic: each token's come once, in
// order, and of the text before it alone, however it is cut, remembered, suspended or joined by others.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "tests/engine/engine_outcome.h"
#include "tests/engine/fake_model.h"
#include "tests/engine/fake_sampler.h"

TEST_SUITE("engine") {

using namespace luce;
using namespace luce::engine;
using namespace luce::tests;

namespace {

struct Setup {
    explicit Setup(std::int32_t n_pool, EngineConfig config, bool has_state = false, std::int32_t n_prompt_logits = 6)
        : decoder(limits(n_pool, n_prompt_logits), has_state),
          samplers(decoder),
          memory(decoder, nullptr, {"test", 1 << 20, 16, true}, clock),
          engine(decoder, samplers, memory, clock, config) {}

    static DecoderLimits limits(std::int32_t n_pool, std::int32_t n_prompt_logits) {
        DecoderLimits limits{kVocab, n_pool, 32, 32, false};
        limits.n_prompt_logits = n_prompt_logits;
        return limits;
    }

    FakeModel decoder;
    FakeSamplers samplers;
    ManualClock clock;
    memory::KvCacheManager memory;
    Engine engine;
};

Request scored(std::uint64_t key, Tokens prompt, int n_generate, Position from = 0) {
    Request r = request(key, std::move(prompt), n_generate);
    r.n_prompt_logprobs = 2;
    r.prompt_logprobs_from = from;
    return r;
}

using Rows = std::map<RequestKey, std::vector<PromptLogprobsEvent>>;

Outcome run_all(Engine& engine, Rows& rows) {
    Outcome outcome;
    for (int i = 0; i < 100000 && !engine.is_idle(); ++i) {
        const std::vector<Event> events = engine.step();
        for (const Event& event : events) {
            if (const auto* row = std::get_if<PromptLogprobsEvent>(&event)) {
                CHECK(!outcome.tokens.contains(row->key));
                rows[row->key].push_back(*row);
            }
        }
        outcome.take(events);
        REQUIRE(engine.check_integrity() == std::nullopt);
    }
    REQUIRE(engine.is_idle());
    return outcome;
}

// The fake's first logit behind the text before each position, from `first` up to `end`.
void check_rows(const std::vector<PromptLogprobsEvent>& rows, const Tokens& prompt, Position first, Position end) {
    REQUIRE(rows.size() == static_cast<std::size_t>(end - first));
    for (Position at = first; at < end; ++at) {
        const PromptLogprobsEvent& row = rows[static_cast<std::size_t>(at - first)];
        CHECK(row.position == at);
        REQUIRE(row.logprobs.size() == 3);
        CHECK(row.logprobs[0].token == prompt[static_cast<std::size_t>(at)]);
        const std::uint64_t hash = hash_text({prompt.begin(), prompt.begin() + at});
        CHECK(row.logprobs[0].logprob == static_cast<float>(hash & 0xffff));
    }
}

}  // namespace

TEST_CASE("a prompt's own log-probabilities: one a token behind the first, before any token of the answer") {
    for (const bool has_state : {false, true}) {
        for (const int n_generate : {0, 5}) {
            Setup s(256, {256, 2, 8}, has_state);
            std::mt19937 random(1);
            const Tokens prompt = random_prompt(random, 100);
            REQUIRE(s.engine.submit(scored(1, prompt, n_generate)));
            Rows rows;
            const Outcome outcome = run_all(s.engine, rows);
            check_rows(rows.at(RequestKey{1}), prompt, 1, 100);
            CHECK(outcome.finished.at(RequestKey{1}).n_generated == n_generate);
            CHECK(!s.decoder.misuse);
        }
    }
}

TEST_CASE("a text that memory knows is computed again from the first wanted place on, and stays known") {
    for (const bool has_state : {false, true}) {
        Setup s(512, {256, 2, 8}, has_state);
        std::mt19937 random(2);
        const Tokens prompt = random_prompt(random, 200);
        Rows rows;
        REQUIRE(s.engine.submit(request(1, prompt, 3)));
        const Tokens answer = run_all(s.engine, rows).tokens.at(RequestKey{1});
        for (const Position from : {0, 1, 65, 150, 199, 200}) {
            rows.clear();
            REQUIRE(s.engine.submit(scored(2, prompt, 3, from)));
            const Outcome outcome = run_all(s.engine, rows);
            check_rows(rows[RequestKey{2}], prompt, std::max(1, from), 200);
            CHECK(outcome.tokens.at(RequestKey{2}) == answer);
            CHECK((from >= 200 || outcome.finished.at(RequestKey{2}).n_reused < std::max(1, from)));
        }
        REQUIRE(s.engine.submit(request(3, prompt, 3)));
        CHECK(run_all(s.engine, rows).finished.at(RequestKey{3}).n_reused == 200);
    }
}

TEST_CASE("a prompt with rows is cut into equal slices: none is much narrower than a call may be") {
    Setup s(256, {256, 2, 64});
    std::vector<std::int32_t> slices;
    s.decoder.on_decode = [&slices](std::int32_t n_tokens) { slices.push_back(n_tokens); };
    std::mt19937 random(4);
    REQUIRE(s.engine.submit(scored(1, random_prompt(random, 13), 0)));
    REQUIRE(s.engine.submit(scored(2, random_prompt(random, 30), 0, 21)));
    Rows rows;
    run_all(s.engine, rows);
    std::sort(slices.begin(), slices.end());
    CHECK(slices == std::vector<std::int32_t>{4, 4, 5, 5, 5, 20});  // of 13 tokens, and of 20 and 10 behind them
}

TEST_CASE("what was generated before has no rows, and a single token none") {
    Setup s(256, {256, 2, 8});
    std::mt19937 random(3);
    const Tokens prompt = random_prompt(random, 40);
    Request resumed = scored(1, prompt, 2, 10);
    resumed.n_generated_before = 4;
    REQUIRE(s.engine.submit(resumed));
    REQUIRE(s.engine.submit(scored(2, {7}, 2)));
    Rows rows;
    run_all(s.engine, rows);
    check_rows(rows.at(RequestKey{1}), prompt, 10, 36);
    CHECK(!rows.contains(RequestKey{2}));
}

TEST_CASE("random loads: rows do not depend on what else runs, nor on suspensions") {
    for (unsigned seed = 1; seed <= 20; ++seed) {
        std::mt19937 random(seed);
        const bool has_state = seed % 2 == 0;
        Setup s(96, {96, 4, 64}, has_state, static_cast<std::int32_t>(seed % 5));
        std::map<RequestKey, Tokens> prompts;
        const Tokens shared = random_prompt(random, 64);
        for (std::uint64_t key = 1; key <= 12; ++key) {
            Tokens prompt = key % 3 == 0 ? shared : Tokens{};
            const Tokens own = random_prompt(random, 1 + static_cast<int>(random() % 25));
            prompt.insert(prompt.end(), own.begin(), own.end());
            prompts[RequestKey{key}] = prompt;
            const int n_generate = static_cast<int>(random() % 8);
            REQUIRE(s.engine.submit(key % 4 == 0 ? request(key, prompt, n_generate) : scored(key, prompt, n_generate)));
        }
        Rows rows;
        const Outcome outcome = run_all(s.engine, rows);
        CHECK(outcome.finished.size() == 12);
        for (const auto& [key, prompt] : prompts) {
            const bool is_scored = static_cast<std::uint64_t>(key) % 4 != 0;
            check_rows(rows[key], prompt, 1, is_scored ? static_cast<Position>(prompt.size()) : 1);
        }
        CHECK(!s.decoder.misuse);
    }
}

TEST_CASE("what does not go with a prompt's log-probabilities is refused") {
    Setup s(256, {256, 2, 8});
    Request in_parts = scored(1, {1, 2, 3}, 0);
    in_parts.reading.reading = prefill::Reading::automatic;
    CHECK(s.engine.submit(in_parts).error().code == ErrorCode::unsupported);
    CHECK(s.engine.submit(scored(2, {1, 2, 3}, 0, 4)).error().code == ErrorCode::bad_args);
}

}  // TEST_SUITE("engine")
