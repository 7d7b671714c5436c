// Tests of the engine with drafts: whatever is proposed, right or wrong, the answer is the one of plain decoding.
#include <doctest/doctest.h>

#include <map>
#include <random>
#include <string>
#include <utility>

#include "engine/engine.h"
#include "tests/engine/engine_outcome.h"
#include "tests/engine/fake_model.h"
#include "tests/engine/fake_sampler.h"

TEST_SUITE("engine") {

using namespace luce;
using namespace luce::engine;
using namespace luce::tests;

namespace {

// Proposes what the fake model will say, with mistakes; checks what it is told of the lanes' texts.
class FakeDrafts final : public speculation::DraftSource {
public:
    FakeDrafts(std::uint32_t seed, int percent_right) : random_(seed), percent_right_(percent_right) {}

    const speculation::SourceTraits& traits() const override { return traits_; }

    Result<void> draft(std::span<const speculation::DraftAsk> asks, std::vector<speculation::Draft>& drafts) override {
        ++n_asked;
        if (fails) return Error{ErrorCode::internal, "no drafts today"};
        for (const speculation::DraftAsk& ask : asks) {
            if (n_followed_[ask.lane] + 1 != static_cast<std::int32_t>(ask.text.size()))
                misuse = "a gap before a draft";
            Tokens text(ask.text.begin(), ask.text.end());
            speculation::Draft& draft = drafts.emplace_back();
            draft.lane = ask.lane;
            const int n = is_whole ? ask.n_most : static_cast<int>(random_() % static_cast<unsigned>(ask.n_most + 1));
            for (int i = 0; i < n; ++i) {
                const bool is_right = static_cast<int>(random_() % 100) < percent_right_;
                draft.tokens.push_back(is_right ? next_token(text) : static_cast<Token>(random_() % kVocab));
                draft.confidence.push_back(0.9F);
                text.push_back(draft.tokens.back());
            }
        }
        return {};
    }

    void follow(LaneId lane, std::span<const Token> text, std::int32_t n_computed, std::int32_t n_new,
                speculation::BatchRows) override {
        if (n_followed_[lane] + n_new != n_computed) misuse = "positions are left out";
        if (n_computed > static_cast<std::int32_t>(text.size())) misuse = "more is computed than there is";
        n_followed_[lane] = n_computed;
    }
    void overlapped() override { ++n_meanwhile; }
    void begin(LaneId lane, std::span<const Token>, std::int32_t n_computed) override {
        n_followed_[lane] = n_computed;
    }
    void forget(LaneId lane) override { n_followed_.erase(lane); }

    bool fails = false;
    bool is_whole = false;  // its drafts are as long as is asked for
    int n_asked = 0;
    int n_meanwhile = 0;
    std::optional<std::string> misuse;

private:
    speculation::SourceTraits traits_{"fake", 7, false};
    std::mt19937 random_;
    int percent_right_;
    std::map<LaneId, std::int32_t> n_followed_;
};

struct SpeculativeSetup {
    SpeculativeSetup(DecoderLimits limits, EngineConfig config, bool has_state, int percent_right,
                     std::uint32_t seed = 1, bool wants_equal_widths = false, std::int32_t n_rollback = 16,
                     memory::MemoryConfig memory_config = {"test", 1 << 20, 16, true})
        : decoder(limits, has_state, false, n_rollback),
          samplers(decoder),
          memory(decoder, nullptr, std::move(memory_config), clock) {
        auto source = std::make_unique<FakeDrafts>(seed, percent_right);
        drafts = source.get();
        SpeculationConfig speculation;
        speculation.sources.push_back(std::move(source));
        speculation.n_most = 7;
        speculation.is_adaptive = false;
        speculation.wants_equal_widths = wants_equal_widths;
        speculator.emplace(std::move(speculation), config.n_lanes, clock);
        engine.emplace(decoder, samplers, memory, clock, config, &*speculator);
    }

    FakeModel decoder;
    FakeSamplers samplers;
    ManualClock clock;
    memory::KvCacheManager memory;
    FakeDrafts* drafts = nullptr;
    std::optional<Speculator> speculator;
    std::optional<Engine> engine;
};

DecoderLimits limits_of(int n_pool, bool separate = false) { return {kVocab, n_pool, 64, 64, separate, 64}; }

// Each step brings a token and those that it accepts; the first one is the prompt's.
void check_steps(const GenerationStats& stats) {
    if (stats.n_generated < 2) return;
    REQUIRE(stats.speculation);
    const Speculation& s = *stats.speculation;
    CHECK(s.n_steps + s.n_accepted == stats.n_generated - 1);
    CHECK(s.n_accepted <= s.n_drafted);
    CHECK(s.n_speculated_steps <= s.n_steps);
}

// By the fake model alone; the end token comes where the samplers say.
Tokens plain_answer(Tokens text, int n_generate, int n_ctx, std::optional<std::int32_t> end_at) {
    Tokens answer;
    while (static_cast<int>(answer.size()) < n_generate && static_cast<int>(text.size()) < n_ctx) {
        const bool is_end = end_at && static_cast<std::int32_t>(text.size()) >= *end_at;
        answer.push_back(is_end ? kEndToken : next_token(text));
        text.push_back(answer.back());
        if (is_end) break;
    }
    return answer;
}

}  // namespace

TEST_CASE("right drafts save calls, and the answer is that of plain decoding") {
    for (const bool has_state : {false, true}) {
        SpeculativeSetup s(limits_of(512), {512, 1, 8}, has_state, 100);
        std::mt19937 random(3);
        const Tokens prompt = random_prompt(random, 40);
        REQUIRE(s.engine->submit(request(1, prompt, 200)));
        Outcome answers;
        while (!s.engine->is_idle()) answers.take(s.engine->step());
        CHECK(answers.tokens.at(RequestKey{1}) == plain_answer(prompt, 200, 512, std::nullopt));
        CHECK(s.decoder.n_calls < 110);
        const Speculation stats = *answers.finished.at(RequestKey{1}).speculation;
        CHECK(stats.n_accepted == stats.n_drafted);
        CHECK(stats.n_drafted > 100);
        CHECK(stats.n_steps + stats.n_accepted == 199);
        CHECK(s.engine->status().speculation->n_drafted == stats.n_drafted);
        CHECK(!s.decoder.misuse);
        CHECK(!s.drafts->misuse);
    }
}

TEST_CASE("drafts that would fill the call leave a prompt its part of it") {
    DecoderLimits limits = limits_of(4096);
    limits.n_ubatch = limits.n_batch = 32;
    SpeculativeSetup s(limits, {512, 5, 8}, false, 100);
    s.drafts->is_whole = true;
    std::mt19937 random(5);
    for (int i = 1; i <= 4; ++i) REQUIRE(s.engine->submit(request(i, random_prompt(random, 8), 400)));
    Outcome answers;
    for (int i = 0; i < 10; ++i) answers.take(s.engine->step());
    const Tokens prompt = random_prompt(random, 100);
    REQUIRE(s.engine->submit(request(5, prompt, 1)));
    for (int i = 0; i < 10; ++i) answers.take(s.engine->step());
    REQUIRE(answers.finished.contains(RequestKey{5}));
    CHECK(answers.finished.size() == 1);
    CHECK(answers.tokens.at(RequestKey{5}) == plain_answer(prompt, 1, 512, std::nullopt));
    while (!s.engine->is_idle()) answers.take(s.engine->step());
    CHECK(!s.drafts->misuse);
}

TEST_CASE("sources work while the target computes where that takes no time of its own") {
    for (const bool waits : {false, true}) {
        DecoderLimits limits = limits_of(512);
        limits.waits_for_device = waits;
        SpeculativeSetup s(limits, {512, 1, 8}, true, 50);
        std::mt19937 random(3);
        const Tokens prompt = random_prompt(random, 40);
        REQUIRE(s.engine->submit(request(1, prompt, 50)));
        Outcome answers;
        while (!s.engine->is_idle()) answers.take(s.engine->step());
        CHECK(answers.tokens.at(RequestKey{1}) == plain_answer(prompt, 50, 512, std::nullopt));
        CHECK(s.drafts->n_meanwhile == (waits ? s.decoder.n_calls : 0));
        CHECK(!s.drafts->misuse);
    }
}

TEST_CASE("what the model cannot take back it goes back for, and computes again what was right") {
    for (const int n_rollback : {0, 2, 16}) {
        SpeculativeSetup s(limits_of(512), {512, 1, 8}, true, 70, 1, false, n_rollback);
        std::mt19937 random(3);
        const Tokens prompt = random_prompt(random, 40);
        const Tokens expected = plain_answer(prompt, 201, 512, std::nullopt);
        std::uint64_t key = 0;
        // The end may come within a draft: then, too, all of the answer is kept.
        for (const int n : {150, 151, 152, 153, 154}) {
            REQUIRE(s.engine->submit(request(++key, prompt, n)));
            Outcome answers;
            while (!s.engine->is_idle()) answers.take(s.engine->step());
            const Tokens& got = answers.tokens.at(RequestKey{key});
            CHECK(got == Tokens(expected.begin(), expected.begin() + n));
            Tokens turn = prompt;
            turn.insert(turn.end(), got.begin(), got.end());
            turn.push_back(5);
            REQUIRE(s.engine->submit(request(++key, turn, 1)));
            while (!s.engine->is_idle()) answers.take(s.engine->step());
            CHECK(answers.finished.at(RequestKey{key}).n_reused == static_cast<std::int32_t>(turn.size()) - 2);
            check_steps(answers.finished.at(RequestKey{key - 1}));
            if (key > 2) continue;
            CHECK(s.engine->status().n_prompt_tokens == prompt.size() + 2);  // what was computed again is no prompt
            CHECK(s.engine->status().speculation->n_steps == answers.finished.at(RequestKey{1}).speculation->n_steps);
        }
        CHECK((s.decoder.n_returns > 0) == (n_rollback < 7));
        CHECK((s.decoder.n_points >= s.decoder.n_returns));
        CHECK((s.decoder.n_dropped > 0) == (n_rollback > 0));
        CHECK(!s.decoder.misuse);
        CHECK(!s.drafts->misuse);
        CHECK(!s.engine->check_integrity());
    }
}

// The answers are whole, but where what was right of their last draft is computed again the device lacks memory.
TEST_CASE("an answer's end that lacks memory is not kept, and a smaller pool is made") {
    int n_shrunk = 0;
    EngineConfig config{512, 1, 8};
    config.pool_relief.emplace();
    config.pool_relief->can_shrink = [] { return true; };
    config.pool_relief->shrink = [&]() -> Result<void> {
        ++n_shrunk;
        return {};
    };
    config.pool_relief->take_shortage = [] { return std::nullopt; };
    memory::MemoryConfig memory{"test", 1 << 20, 16, true};
    memory.residency = memory::ResidencyConfig{};
    SpeculativeSetup s(limits_of(512), config, true, 70, 1, false, 0, memory);
    std::mt19937 random(3);
    const Tokens prompt = random_prompt(random, 40);
    int n_calls = 0;
    s.decoder.on_decode = [&](std::int32_t) {
        // A step of one lane makes a second call only for that.
        if (++n_calls == 1) s.decoder.fail_next = Error{ErrorCode::out_of_memory, "no memory"};
    };
    for (int n = 30; n < 40; ++n) {
        const RequestKey key{static_cast<std::uint64_t>(n)};
        s.samplers.end_at = n + 40;
        REQUIRE(s.engine->submit(request(static_cast<std::uint64_t>(n), prompt, 100)));
        Outcome answers;
        while (!s.engine->is_idle()) {
            n_calls = 0;
            answers.take(s.engine->step());
            s.decoder.fail_next.reset();
        }
        CHECK(answers.tokens.at(key) == plain_answer(prompt, 100, 512, n + 40));
        CHECK(answers.failed.empty());
    }
    CHECK(n_shrunk > 0);
    CHECK(!s.engine->check_integrity());
}

TEST_CASE("without memory for a copy of the state drafts are as short as can be taken back") {
    SpeculativeSetup s(limits_of(512), {512, 1, 8}, true, 70, 1, false, 2);
    s.decoder.cannot_save = true;
    REQUIRE(s.engine->submit(request(1, Tokens(10, 7), 100)));
    Outcome answers;
    while (!s.engine->is_idle()) answers.take(s.engine->step());
    CHECK(answers.tokens.at(RequestKey{1}) == plain_answer(Tokens(10, 7), 100, 512, std::nullopt));
    CHECK(s.decoder.n_points == 1);
    CHECK(answers.finished.at(RequestKey{1}).speculation->n_accepted > 0);
}

TEST_CASE("states are kept again when memory may be there again") {
    SpeculativeSetup s(limits_of(512), {512, 1, 8}, true, 70, 1, false, 2);
    s.decoder.cannot_save = true;
    REQUIRE(s.engine->submit(request(1, Tokens(10, 7), 100)));
    Outcome answers;
    for (int i = 0; i < 20; ++i) answers.take(s.engine->step());
    CHECK(s.decoder.n_points == 1);
    s.decoder.cannot_save = false;
    s.clock.advance(61);
    while (!s.engine->is_idle()) answers.take(s.engine->step());
    CHECK(s.decoder.n_points > 2);
    CHECK(answers.tokens.at(RequestKey{1}) == plain_answer(Tokens(10, 7), 100, 512, std::nullopt));
}

TEST_CASE("a source that fails is left alone for a minute, and costs no token") {
    SpeculativeSetup s(limits_of(512), {512, 1, 8}, false, 100);
    s.drafts->fails = true;
    REQUIRE(s.engine->submit(request(1, Tokens(10, 7), 50)));
    Outcome answers;
    while (!s.engine->is_idle()) answers.take(s.engine->step());
    CHECK(answers.tokens.at(RequestKey{1}) == plain_answer(Tokens(10, 7), 50, 512, std::nullopt));
    CHECK(s.drafts->n_asked == 3);
    CHECK(answers.finished.at(RequestKey{1}).speculation->n_speculated_steps == 0);

    s.clock.advance(61);  // once, to see
    REQUIRE(s.engine->submit(request(2, Tokens(10, 8), 50)));
    while (!s.engine->is_idle()) answers.take(s.engine->step());
    CHECK(s.drafts->n_asked == 4);

    s.clock.advance(61);
    s.drafts->fails = false;
    REQUIRE(s.engine->submit(request(3, Tokens(10, 9), 50)));
    while (!s.engine->is_idle()) answers.take(s.engine->step());
    CHECK(answers.tokens.at(RequestKey{3}) == plain_answer(Tokens(10, 9), 50, 512, std::nullopt));
    CHECK(answers.finished.at(RequestKey{3}).speculation->n_accepted > 0);
}

TEST_CASE("no room for drafts on the device: they are withdrawn, and nobody suspended") {
    SpeculativeSetup s(limits_of(512), {512, 1, 8}, false, 100);
    REQUIRE(s.engine->submit(request(1, Tokens(10, 7), 50)));
    Outcome answers;
    for (int i = 0; !s.engine->is_idle(); ++i) {
        if (i % 3 == 2) s.decoder.fail_next = Error{ErrorCode::no_room, "no cells"};
        answers.take(s.engine->step());
        if (s.decoder.fail_next) s.decoder.fail_next.reset();
        if (!answers.failed.empty()) break;  // a plain call that has no room has no way out
    }
    const Tokens expected = plain_answer(Tokens(10, 7), 50, 512, std::nullopt);
    const Tokens& got = answers.tokens.at(RequestKey{1});
    CHECK(got == Tokens(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(got.size())));
    CHECK(s.engine->status().n_suspensions == 0);
}

// Many requests in few lanes and a small pool, with cancels, suspensions, reused prompts, ends and limits in drafts.
TEST_CASE("random histories with random drafts answer as plain decoding does") {
    for (std::uint32_t seed = 0; seed < 60; ++seed) {
        std::mt19937 random(seed);
        const bool has_state = seed % 2 == 0;
        const int n_lanes = 1 + static_cast<int>(random() % 4);
        const int n_pool = 256 + 64 * static_cast<int>(random() % 6);
        SpeculativeSetup s(limits_of(n_pool, has_state && seed % 4 == 0), {256, n_lanes, 64}, has_state,
                           static_cast<int>(random() % 101), seed, has_state && seed % 3 == 0,
                           has_state ? static_cast<std::int32_t>(seed / 2 % 5) : 16);
        if (random() % 2 == 0) s.samplers.end_at = 60 + static_cast<std::int32_t>(random() % 100);
        std::map<RequestKey, Tokens> expected;
        Outcome answers;
        const Tokens shared = random_prompt(random, 130);
        std::uint64_t key = 0;
        const auto submit_one = [&] {
            const auto n_shared = static_cast<std::ptrdiff_t>(random() % shared.size());
            Tokens prompt(shared.begin(), shared.begin() + n_shared);
            for (const Token token : random_prompt(random, 1 + static_cast<int>(random() % 40)))
                prompt.push_back(token);
            const int n_generate = static_cast<int>(random() % 120);
            const Request r = request(++key, prompt, n_generate);
            if (!s.engine->submit(r)) return;
            std::optional<std::int32_t> end_at;
            if (s.samplers.end_at) end_at = std::max(*s.samplers.end_at, static_cast<std::int32_t>(prompt.size()));
            expected[r.key] = plain_answer(prompt, n_generate, 256, end_at);
        };
        for (int i = 0; i < 12; ++i) submit_one();
        for (int i = 0; i < 5000 && !s.engine->is_idle(); ++i) {
            answers.take(s.engine->step());
            const auto wrong = s.engine->check_integrity();
            REQUIRE_MESSAGE(!wrong, (wrong ? *wrong : ""));
            if (random() % 50 == 0) submit_one();
            if (random() % 80 == 0) {
                const auto victim = static_cast<RequestKey>(1 + random() % key);
                if (!answers.finished.contains(victim)) {
                    s.engine->cancel(victim);
                    const Tokens& got = answers.tokens[victim];
                    expected[victim].resize(std::min(got.size(), expected[victim].size()));
                }
            }
        }
        REQUIRE(s.engine->is_idle());
        CHECK(answers.failed.empty());
        for (const auto& [k, tokens] : expected) CHECK(answers.tokens[k] == tokens);
        for (const auto& [k, stats] : answers.finished) check_steps(stats);
        REQUIRE_MESSAGE(!s.decoder.misuse, (s.decoder.misuse ? *s.decoder.misuse : ""));
        REQUIRE_MESSAGE(!s.drafts->misuse, (s.drafts->misuse ? *s.drafts->misuse : ""));
        CHECK(s.decoder.n_lanes_in_use() == 0);
    }
}

}  // TEST_SUITE("engine")
