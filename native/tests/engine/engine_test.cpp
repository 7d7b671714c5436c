// Tests of the engine on a model of arithmetic: whatever runs beside it, an answer is the one that the text alone
// gives.
#include <doctest/doctest.h>

#include <map>
#include <random>

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
    explicit Setup(DecoderLimits limits, EngineConfig config, bool has_state = false,
                   memory::MemoryConfig memory_config = {"test", 1 << 20, 16, true})
        : decoder(limits, has_state),
          samplers(decoder),
          memory(decoder, nullptr, std::move(memory_config), clock),
          engine(decoder, samplers, memory, clock, config) {}

    FakeModel decoder;
    FakeSamplers samplers;
    ManualClock clock;
    memory::KvCacheManager memory;
    Engine engine;
};

DecoderLimits limits(int n_pool, bool separate = false) { return {kVocab, n_pool, 32, 32, separate}; }

Tokens expected_answer(Tokens text, int n_generate, int n_ctx) {
    Tokens answer;
    while (static_cast<int>(answer.size()) < n_generate && static_cast<int>(text.size()) < n_ctx) {
        answer.push_back(next_token(text));
        text.push_back(answer.back());
    }
    return answer;
}

Outcome run_all(Engine& engine) {
    Outcome outcome;
    for (int i = 0; i < 100000 && !engine.is_idle(); ++i) {
        outcome.take(engine.step());
        REQUIRE(engine.check_integrity() == std::nullopt);
    }
    REQUIRE(engine.is_idle());
    return outcome;
}

}  // namespace

TEST_CASE("one request: prompt in slices, then token by token up to its limit") {
    Setup s(limits(256), {256, 2, 8});
    std::mt19937 random(1);
    const Tokens prompt = random_prompt(random, 100);
    REQUIRE(s.engine.submit(request(1, prompt, 20)));
    const Outcome outcome = run_all(s.engine);
    CHECK(outcome.tokens.at(RequestKey{1}) == expected_answer(prompt, 20, 256));
    const GenerationStats& stats = outcome.finished.at(RequestKey{1});
    CHECK(stats.stop == StopReason::limit);
    CHECK(stats.n_prompt == 100);
    CHECK(stats.n_generated == 20);
    CHECK(s.decoder.n_lanes_in_use() == 0);
    CHECK(!s.decoder.misuse);
}

TEST_CASE("a text is let go of after its last event is out") {
    Setup s(limits(256), {64, 2, 8});
    std::mt19937 random(1);
    const Tokens prompt = random_prompt(random, 20);
    Outcome outcome;
    for (int i = 1; i <= 2; ++i) {
        const RequestKey key{static_cast<std::uint64_t>(i)};
        // The second is known to its end: its only token comes without a call.
        REQUIRE(s.engine.submit(request(i, prompt, 1)));
        while (!outcome.finished.contains(key)) {
            outcome.take(s.engine.compute_step());
            if (i == 1 && outcome.finished.contains(key)) CHECK(s.decoder.n_lanes_in_use() == 1);
            s.engine.release_ended();
            REQUIRE(s.engine.check_integrity() == std::nullopt);
        }
        CHECK(s.decoder.n_lanes_in_use() == 0);
        CHECK(s.engine.is_idle());
        CHECK(outcome.tokens.at(key) == expected_answer(prompt, 1, 64));
    }
    CHECK(!s.decoder.misuse);
}

TEST_CASE("each request is told of the experts that its own tokens read, where they lie in two memories") {
    for (const bool reads_experts : {true, false}) {
        Setup s(limits(256), {64, 3, 8});
        s.decoder.reads_experts = reads_experts;
        std::mt19937 random(2);
        std::vector<Tokens> prompts;
        for (std::uint64_t i = 0; i < 3; ++i) {
            prompts.push_back(random_prompt(random, 10));
            REQUIRE(s.engine.submit(request(i, prompts.back(), 7)));
        }
        const Outcome outcome = run_all(s.engine);
        for (std::uint64_t i = 0; i < 3; ++i) {
            const std::optional<ExpertReads>& told = outcome.finished.at(RequestKey{i}).experts;
            CHECK(told.has_value() == reads_experts);
            if (!told) continue;
            ExpertReads expected;
            Tokens text;
            for (const Token token : prompts[i]) {
                text.push_back(token);
                expected += reads_of(hash_text(text));
            }
            for (int n = 1; n < 7; ++n) {
                text.push_back(next_token(text));
                expected += reads_of(hash_text(text));
            }
            CHECK(told->n_hits == expected.n_hits);
            CHECK(told->n_misses == expected.n_misses);
        }
    }
}

TEST_CASE("all lanes of a call may choose their tokens before the first is reported") {
    Setup s(limits(256), {64, 3, 8});
    std::mt19937 random(2);
    std::vector<Tokens> prompts;
    for (std::uint64_t i = 0; i < 3; ++i) {
        prompts.push_back(random_prompt(random, 10));
        REQUIRE(s.engine.submit(request(i, prompts.back(), 7)));
    }
    const Outcome outcome = run_all(s.engine);
    for (std::uint64_t i = 0; i < 3; ++i) {
        CHECK(outcome.tokens.at(RequestKey{i}) == expected_answer(prompts[i], 7, 64));
    }
    CHECK(s.samplers.n_ahead == 3 * 7);
}

TEST_CASE("n_generate 0 computes the prompt and generates nothing") {
    Setup s(limits(256), {256, 1, 8});
    REQUIRE(s.engine.submit(request(1, Tokens(256, 3), 0)));
    const Outcome outcome = run_all(s.engine);
    CHECK(outcome.tokens.empty());
    CHECK(outcome.finished.at(RequestKey{1}).n_generated == 0);
    CHECK(s.decoder.max_cells == 256);
}

TEST_CASE("a text ends at the context, an answer at an end token or a stop token") {
    Setup s(limits(64), {64, 1, 8});
    REQUIRE(s.engine.submit(request(1, Tokens(60, 3), 100)));
    CHECK(run_all(s.engine).finished.at(RequestKey{1}).n_generated == 4);

    s.samplers.end_at = 13;
    REQUIRE(s.engine.submit(request(2, Tokens(10, 3), 100)));
    const Outcome ended = run_all(s.engine);
    CHECK(ended.finished.at(RequestKey{2}).stop == StopReason::eos);
    CHECK(ended.tokens.at(RequestKey{2}).size() == 4);
    CHECK(ended.tokens.at(RequestKey{2}).back() == kEndToken);

    Request ignoring = request(3, Tokens(10, 3), 8);
    ignoring.ignores_eos = true;
    REQUIRE(s.engine.submit(std::move(ignoring)));
    CHECK(run_all(s.engine).finished.at(RequestKey{3}).n_generated == 8);

    s.samplers.end_at.reset();
    Request stopping = request(4, Tokens(10, 3), 50);
    stopping.stop_tokens = {expected_answer(Tokens(10, 3), 5, 64).back()};
    REQUIRE(s.engine.submit(std::move(stopping)));
    CHECK(run_all(s.engine).finished.at(RequestKey{4}).stop == StopReason::stop);
}

TEST_CASE("what cannot run is refused with its code and leaves no trace") {
    Setup s(limits(64), {64, 1, 1});
    const auto code_of = [&](Request r) { return s.engine.submit(std::move(r)).error().code; };
    CHECK(code_of(request(1, {}, 1)) == ErrorCode::empty_prompt);
    CHECK(code_of(request(1, Tokens(65, 1), 0)) == ErrorCode::prompt_too_long);
    CHECK(code_of(request(1, Tokens(64, 1), 1)) == ErrorCode::prompt_too_long);
    CHECK(code_of(request(1, {1, kVocab}, 1)) == ErrorCode::token_out_of_range);
    CHECK(code_of(request(1, {1, -1}, 1)) == ErrorCode::token_out_of_range);
    Request bad_grammar = request(1, {1}, 1);
    bad_grammar.constraint.grammar = "bad";
    CHECK(code_of(std::move(bad_grammar)) == ErrorCode::bad_grammar);
    Request bad_resume = request(1, {1}, 1);
    bad_resume.n_generated_before = 2;
    CHECK(code_of(std::move(bad_resume)) == ErrorCode::bad_args);
    CHECK(s.engine.is_idle());
    // One lane and one place to wait in.
    REQUIRE(s.engine.submit(request(1, {1}, 1)));
    REQUIRE(s.engine.submit(request(2, {1}, 1)));
    CHECK(code_of(request(3, {1}, 1)) == ErrorCode::queue_full);
    CHECK(run_all(s.engine).finished.size() == 2);

    Setup without_queue(limits(64), {64, 1, 0});
    REQUIRE(without_queue.engine.submit(request(1, {1}, 1)));
    CHECK(without_queue.engine.submit(request(2, {1}, 1)).error().code == ErrorCode::queue_full);
}

TEST_CASE("higher priority leaves the queue first, equals in order of arrival") {
    Setup s(limits(256), {256, 1, 8});
    for (int i = 1; i <= 4; ++i) {
        Request r = request(static_cast<std::uint64_t>(i), Tokens(3, i), 1);
        r.priority = i == 3 ? 1 : 0;
        REQUIRE(s.engine.submit(std::move(r)));
    }
    std::vector<RequestKey> order;
    while (!s.engine.is_idle()) {
        for (const Event& event : s.engine.step()) {
            if (const auto* end = std::get_if<FinishedEvent>(&event)) order.push_back(end->key);
        }
    }
    CHECK(order == std::vector<RequestKey>{RequestKey{3}, RequestKey{1}, RequestKey{2}, RequestKey{4}});
}

TEST_CASE("a higher priority overtakes what is suspended, an equal one does not") {
    Setup s(limits(100), {100, 4, 8});
    Request first = request(1, Tokens(40, 1), 50);
    first.priority = 5;
    REQUIRE(s.engine.submit(std::move(first)));
    REQUIRE(s.engine.submit(request(2, Tokens(40, 2), 50)));
    Outcome outcome;
    while (s.engine.status().n_suspended == 0) outcome.take(s.engine.step());
    Request urgent = request(3, Tokens(2, 3), 2);
    urgent.priority = 9;
    REQUIRE(s.engine.submit(request(4, Tokens(2, 4), 2)));
    REQUIRE(s.engine.submit(std::move(urgent)));
    while (!outcome.finished.contains(RequestKey{3})) outcome.take(s.engine.step());
    CHECK(!outcome.finished.contains(RequestKey{1}));
    CHECK(!outcome.finished.contains(RequestKey{4}));
    while (!s.engine.is_idle()) outcome.take(s.engine.step());
    CHECK(outcome.tokens.at(RequestKey{2}) == expected_answer(Tokens(40, 2), 50, 100));
    CHECK(outcome.tokens.at(RequestKey{4}) == expected_answer(Tokens(2, 4), 2, 100));
}

TEST_CASE("random loads: answers do not depend on what else runs, nor on suspensions") {
    std::mt19937 random(42);
    std::uint64_t n_suspensions = 0;
    for (int round = 0; round < 300; ++round) {
        const int n_ctx = 64 + static_cast<int>(random() % 64);
        const int n_pool = n_ctx + static_cast<int>(random() % 64);
        Setup s(limits(n_pool, random() % 2 == 0), {n_ctx, 1 + static_cast<int>(random() % 4), 64}, random() % 2 == 0,
                {"test", random() % 3 * 4096, 16, random() % 4 != 0});
        if (round % 3 == 0) s.decoder.make_elastic(8 * (1 + round % 5));
        s.decoder.cannot_save = random() % 4 == 0;
        s.decoder.cannot_load = random() % 4 == 0;
        s.decoder.cannot_read = random() % 8 == 0;
        s.decoder.cannot_write = random() % 8 == 0;
        std::map<RequestKey, Tokens> expected;
        Outcome outcome;
        const int n_requests = 1 + static_cast<int>(random() % 12);
        for (int i = 0; i < n_requests; ++i) {
            const auto key = static_cast<std::uint64_t>(i);
            const Tokens prompt =
                random_prompt(random, 1 + static_cast<int>(random() % static_cast<unsigned>(n_ctx - 1)));
            const int n_generate = static_cast<int>(random() % 40);
            expected[RequestKey{key}] = expected_answer(prompt, n_generate, n_ctx);
            Request r = request(key, prompt, n_generate);
            r.priority = static_cast<int>(random() % 2);
            REQUIRE(s.engine.submit(std::move(r)));
            for (unsigned steps = random() % 6; steps > 0; --steps) outcome.take(s.engine.step());
        }
        for (int i = 0; i < 10000 && !s.engine.is_idle(); ++i) {
            outcome.take(s.engine.step());
            REQUIRE(s.engine.check_integrity() == std::nullopt);
        }
        REQUIRE(s.engine.is_idle());
        REQUIRE(outcome.failed.empty());
        REQUIRE(outcome.finished.size() == expected.size());
        for (const auto& [key, answer] : expected) REQUIRE(outcome.tokens[key] == answer);
        REQUIRE(s.decoder.n_lanes_in_use() == 0);
        REQUIRE(!s.decoder.misuse);
        REQUIRE(s.decoder.max_cells <= n_pool);
        n_suspensions += s.engine.status().n_suspensions;
    }
    CHECK(n_suspensions > 50);  // the loads were heavy enough to mean something
}

TEST_CASE("cancel ends a request wherever it is, and nobody else's") {
    std::mt19937 random(9);
    for (int round = 0; round < 200; ++round) {
        Setup s(limits(100), {100, 2, 16});
        std::map<RequestKey, Tokens> prompts;
        for (std::uint64_t key = 0; key < 5; ++key) {
            prompts[RequestKey{key}] = random_prompt(random, 40);
            REQUIRE(s.engine.submit(request(key, prompts[RequestKey{key}], 30)));
        }
        Outcome outcome;
        for (unsigned steps = random() % 60; steps > 0; --steps) outcome.take(s.engine.step());
        const RequestKey cancelled{random() % 5};
        const std::optional<GenerationStats> stats = s.engine.cancel(cancelled);
        REQUIRE(stats.has_value() == !outcome.finished.contains(cancelled));
        if (stats) {
            CHECK(stats->stop == StopReason::cancel);
            CHECK(static_cast<std::size_t>(stats->n_generated) == outcome.tokens[cancelled].size());
        }
        CHECK(!s.engine.cancel(cancelled));
        while (!s.engine.is_idle()) outcome.take(s.engine.step());
        for (const auto& [key, prompt] : prompts) {
            if (key == cancelled) continue;
            REQUIRE(outcome.tokens[key] == expected_answer(prompt, 30, 100));
        }
        REQUIRE(s.decoder.n_lanes_in_use() == 0);
        REQUIRE(!s.decoder.misuse);
    }
}

TEST_CASE("a failing computation fails its requests and not the engine; a device without room makes room") {
    Setup s(limits(256), {256, 2, 8});
    REQUIRE(s.engine.submit(request(1, Tokens(10, 1), 5)));
    s.decoder.fail_next = Error{ErrorCode::internal, "broken"};
    Outcome outcome = run_all(s.engine);
    CHECK(outcome.failed.at(RequestKey{1}).code == ErrorCode::internal);
    CHECK(!s.engine.is_broken());

    REQUIRE(s.engine.submit(request(2, Tokens(10, 1), 5)));
    REQUIRE(s.engine.submit(request(3, Tokens(10, 2), 5)));
    s.decoder.fail_next = Error{ErrorCode::no_room, "no cells"};
    outcome = run_all(s.engine);
    CHECK(outcome.tokens.at(RequestKey{2}) == expected_answer(Tokens(10, 1), 5, 256));
    CHECK(outcome.tokens.at(RequestKey{3}) == expected_answer(Tokens(10, 2), 5, 256));
    CHECK(s.engine.status().n_suspensions == 1);

    for (std::uint64_t key = 4; key < 7; ++key) {
        s.decoder.fail_next = Error{ErrorCode::internal, "broken"};
        REQUIRE(s.engine.submit(request(key, Tokens(10, 1), 5)));
        run_all(s.engine);
    }
    CHECK(s.engine.is_broken());
}

TEST_CASE("requests that never find room fail by themselves, however many come in a row") {
    Setup s(limits(256), {256, 2, 8});
    for (std::uint64_t key = 1; key < 7; ++key) {
        s.decoder.fail_next = Error{ErrorCode::no_room, "no cells"};
        REQUIRE(s.engine.submit(request(key, Tokens(10, 1), 5)));
        CHECK(run_all(s.engine).failed.at(RequestKey{key}).code == ErrorCode::no_room);
        CHECK(!s.engine.is_broken());
    }
    REQUIRE(s.engine.submit(request(7, Tokens(10, 1), 5)));
    CHECK(run_all(s.engine).tokens.at(RequestKey{7}) == expected_answer(Tokens(10, 1), 5, 256));
}

TEST_CASE("a device that never has room for two lanes serves them one after the other") {
    Setup s(limits(256), {256, 2, 8});
    s.decoder.n_most_lanes = 1;
    REQUIRE(s.engine.submit(request(1, Tokens(10, 1), 5)));
    REQUIRE(s.engine.submit(request(2, Tokens(10, 2), 5)));
    Outcome outcome;
    for (int i = 0; i < 100 && !s.engine.is_idle(); ++i) outcome.take(s.engine.step());
    REQUIRE(s.engine.is_idle());
    CHECK(outcome.tokens.at(RequestKey{1}) == expected_answer(Tokens(10, 1), 5, 256));
    CHECK(outcome.tokens.at(RequestKey{2}) == expected_answer(Tokens(10, 2), 5, 256));
    CHECK(s.engine.status().n_suspensions <= 2);
}

TEST_CASE("a long prompt does not keep a running lane waiting: each step brings it a token") {
    Setup s(limits(4096), {2048, 2, 8});
    REQUIRE(s.engine.submit(request(1, Tokens(4, 1), 100)));
    s.engine.step();
    REQUIRE(s.engine.submit(request(2, Tokens(1500, 2), 1)));
    int n_steps = 0;
    for (bool prefilled = false; !prefilled; ++n_steps) {
        int n_tokens_of_first = 0;
        for (const Event& event : s.engine.step()) {
            if (const auto* token = std::get_if<TokenEvent>(&event)) {
                n_tokens_of_first += token->key == RequestKey{1} ? 1 : 0;
                prefilled = prefilled || token->key == RequestKey{2};
            }
        }
        if (n_steps < 99) CHECK(n_tokens_of_first == 1);
    }
    CHECK(n_steps >= 1500 / 32);
}

TEST_CASE(
    "on a device that computes by itself slices of prompts follow one another unawaited, beside nobody's tokens") {
    for (const bool separate : {false, true}) {
        DecoderLimits async = limits(4096, separate);
        async.waits_for_device = true;
        Setup s(async, {2048, 2, 8});
        std::mt19937 random(3);
        const Tokens first = random_prompt(random, 640);
        const Tokens second = random_prompt(random, 640);
        REQUIRE(s.engine.submit(request(1, first, 60)));
        Outcome outcome;
        int n_under_way = 0;
        while (outcome.tokens.empty()) {
            outcome.take(s.engine.step());
            n_under_way += s.decoder.is_under_way ? 1 : 0;
        }
        CHECK(n_under_way >= 640 / 32 - 1);
        CHECK(s.decoder.n_waits == 0);
        REQUIRE(s.engine.submit(request(2, second, 5)));
        while (!outcome.tokens.contains(RequestKey{2})) {
            outcome.take(s.engine.step());
            REQUIRE(!s.decoder.is_under_way);
        }
        while (!s.engine.is_idle()) outcome.take(s.engine.step());
        CHECK(outcome.tokens.at(RequestKey{1}) == expected_answer(first, 60, 2048));
        CHECK(outcome.tokens.at(RequestKey{2}) == expected_answer(second, 5, 2048));
    }
}

}  // TEST_SUITE("engine")
