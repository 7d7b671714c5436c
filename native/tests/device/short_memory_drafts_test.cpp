// Memory that runs out where the devices hold a draft model or a scorer beside the model, at whatever computation it
// does: the pool becomes smaller, requests go on, and what drafted or scored goes on as well.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/device/short_engine.h"
#include "tests/support/volume.h"

TEST_SUITE("device") {

using namespace luce;
using namespace luce::memory_tests;
using namespace luce::tests;

namespace {

struct Kind {
    std::string target;
    std::string draft;
    std::int32_t n_tree = 0;
};

// All kinds of drafts, on targets with state and without. Whoever can lack memory first does so with most of them, and
// with all of them in the full volume.
const std::vector<Kind> kKinds = {
    {"qwen3", "simple-qwen3"}, {"qwen3", "dflash-qwen3"},   {"qwen3", "dflash-qwen3", 8},   {"qwen3", "eagle3-qwen3"},
    {"qwen35", "mtp-qwen35"},  {"qwen35", "dflash-qwen35"}, {"gemma4", "assistant-gemma4"}, {"qwen35", "eagle3-qwen35"},
};

Variant variant_of(const Kind& kind) { return {test_model(kind.target), "q8_0", 4, kind.n_tree}; }

constexpr std::size_t kBefore = 10;  // tokens of the first request until memory runs out

void submit_three(Short& s) {
    s.submit(1, 300);
    s.submit(2, 170);
    s.submit(3, 90);
}

// Steps until `n` tokens of the first request are there.
void run_to(Short& s, std::size_t n) {
    while (s.tokens[RequestKey{1}].size() < n && !s.engine.is_idle()) s.step();
}

// Up to where memory ran out they are the same; behind it sums may be formed in another order.
void check_three(const Short& s, const Short& undisturbed) {
    for (const Error& failure : s.failures) FAIL_CHECK(failure.text);
    for (std::uint64_t key = 1; key <= 3; ++key) {
        CAPTURE(key);
        const Tokens& tokens = s.tokens.at(RequestKey{key});
        CHECK(tokens.size() == kAnswer);
        CHECK(s.finished.at(RequestKey{key}).n_generated == kAnswer);
        const Tokens& before = undisturbed.tokens.at(RequestKey{key});
        CHECK(std::equal(before.begin(), before.begin() + kBefore, tokens.begin()));
    }
}

}  // namespace

TEST_CASE("lanes that speculate go on with a smaller pool, whoever lacks memory first") {
    for (std::uint64_t number = 0; const Kind& kind : kKinds) {
        const std::uint64_t left_out = is_full() ? 0 : 1 + number++ % 3;
        CAPTURE(kind.target);
        CAPTURE(kind.draft);
        CAPTURE(kind.n_tree);
        Short undisturbed(variant_of(kind), {.draft = kind.draft});
        submit_three(undisturbed);
        undisturbed.run();
        CHECK(undisturbed.engine.status().speculation->n_drafted > 0);
        for (std::uint64_t at = 1; at <= 3; ++at) {
            if (at == left_out) continue;
            CAPTURE(at);
            Short s(variant_of(kind), {.draft = kind.draft});
            submit_three(s);
            run_to(s, kBefore);
            LateDevice::install().run_out_at(at, kWorkspace, 1);
            run_to(s, 20);
            const std::int64_t n_drafted = s.engine.status().speculation->n_drafted;
            s.run();
            check_three(s, undisturbed);
            CHECK(s.model.info().n_pool == 1536);
            CHECK(s.engine.status().speculation->n_drafted > n_drafted);
            CHECK(s.memory.n_used_cells() == 0);
        }
    }
}

TEST_CASE("a draft model or a scorer that alone lacks memory makes the pool smaller as well") {
    LateDevice& late = LateDevice::install();
    for (std::uint64_t number = 0; const Kind& kind : kKinds) {
        const std::uint64_t left_out = is_full() ? 0 : 1 + number++ / 2 % 2;
        CAPTURE(kind.target);
        CAPTURE(kind.draft);
        for (std::uint64_t at = 1; at <= 2; ++at) {
            if (at == left_out) continue;
            CAPTURE(at);
            Short s(variant_of(kind), {.draft = kind.draft});
            submit_three(s);
            run_to(s, kBefore);
            late.refuse_once_at(at);
            run_to(s, 20);
            const std::int64_t n_drafted = s.engine.status().speculation->n_drafted;
            s.run();
            for (const Error& failure : s.failures) FAIL_CHECK(failure.text);
            for (std::uint64_t key = 1; key <= 3; ++key) CHECK(s.tokens[RequestKey{key}].size() == kAnswer);
            CHECK(s.model.info().n_pool == 1536);
            CHECK(s.engine.status().speculation->n_drafted > n_drafted);
        }
    }
    for (std::uint64_t at = 1; at <= 6; at += is_full() ? 1 : 5) {
        CAPTURE(at);
        Short s({test_model("qwen3"), "q8_0"}, {.scorer = "qwen3"});
        s.submit(1, 2600, 70);
        run_to(s, 62);
        late.refuse_once_at(at);
        s.run();
        for (const Error& failure : s.failures) FAIL_CHECK(failure.text);
        CHECK(s.tokens[RequestKey{1}].size() == 70);
        CHECK(s.model.info().n_pool == 1536);
    }
}

TEST_CASE("where even the smallest pool does not do, lanes that speculate fail for want of memory, and nothing leaks") {
    const std::size_t n_taken = LateDevice::install().n_taken();
    for (const char* draft : {"simple-qwen3", "dflash-qwen3"}) {
        CAPTURE(draft);
        {
            Short s(variant_of({"qwen3", draft}), {.draft = draft});
            submit_three(s);
            s.run(kWorkspace);
            REQUIRE(s.failures.size() == 3);
            for (const Error& failure : s.failures) CHECK(failure.code == ErrorCode::out_of_memory);
            CHECK(s.engine.is_broken());
            CHECK(s.model.info().n_pool == kLeast);
        }
        CHECK(LateDevice::install().n_taken() == n_taken);
    }
}

TEST_CASE("texts longer than the pool are scored on after it became smaller, whoever lacks memory first") {
    const std::size_t n_taken = LateDevice::install().n_taken();
    for (const bool asks_queries : {false, true}) {
        const Variant variant{test_model("qwen3"), "q8_0"};
        const ShortOptions options{.scorer = asks_queries ? "" : "qwen3", .asks_queries = asks_queries};
        CAPTURE(asks_queries);
        const auto submit = [](Short& s) {
            s.submit(1, 2200, 200);
            s.submit(2, 900, 200);
        };
        // The scorer reads beside the prompt, and its last tokens again at every choice: the first of them comes with
        // the first token, another one with the 65th.
        const std::vector<std::size_t> places =
            is_full() ? std::vector<std::size_t>{0, 60, 63} : std::vector<std::size_t>{0, 63};
        for (const std::size_t n_before : places) {
            for (std::uint64_t at = 1; at <= 5; at += is_full() ? 2 : 4) {
                if (!is_full() && asks_queries == ((at == 1) == (n_before == 0))) continue;
                CAPTURE(n_before);
                CAPTURE(at);
                Short s(variant, options);
                submit(s);
                run_to(s, n_before);
                LateDevice::install().run_out_at(at, kWorkspace, 1);
                run_to(s, 70);
                const std::uint64_t n_choices = s.memory.status().residency->n_choices;
                s.run();
                for (const Error& failure : s.failures) FAIL_CHECK(failure.text);
                CHECK(s.model.info().n_pool == 1536);
                for (std::uint64_t key = 1; key <= 2; ++key) CHECK(s.tokens[RequestKey{key}].size() == 200);
                CHECK(s.memory.status().residency->n_choices > n_choices);
                CHECK(s.memory.n_used_cells() == 0);
            }
        }
    }
    CHECK(LateDevice::install().n_taken() == n_taken);
}

}  // TEST_SUITE("device")
