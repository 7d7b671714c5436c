// Tests of prompts that are read in parts, on a model of arithmetic: what is read, what memory makes of it, and the
// repair of it while nobody waits.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "engine/engine.h"
#include "prefill/part_choice.h"
#include "tests/engine/engine_outcome.h"
#include "tests/engine/fake_model.h"
#include "tests/engine/fake_sampler.h"

TEST_SUITE("engine") {

using namespace luce;
using namespace luce::engine;
using namespace luce::tests;
using prefill::kChunk;
using prefill::Reading;

namespace {

// Says that some chunks matter, once it has been asked a few times.
class FakeScorer final : public prefill::PromptScorer {
public:
    bool is_there() const override { return is_loaded; }
    Result<bool> read(std::span<const Token>) override {
        ++n_calls;
        if (error) return *error;
        return n_calls % 3 == 0;
    }
    Result<std::vector<float>> scores(std::span<const Token> text) override {
        std::vector<float> scores(text.size() / kChunk);
        for (const std::size_t chunk : wanted) {
            if (chunk < scores.size()) scores[chunk] = 1;
        }
        return scores;
    }

    bool is_loaded = true;
    std::optional<Error> error;
    std::vector<std::size_t> wanted;
    int n_calls = 0;
};

struct ReadingSetup {
    explicit ReadingSetup(bool has_state = false, int n_lanes = 2, int n_ctx = 4096, bool repairs = true)
        : decoder({kVocab, 3 * 4096, 256, 256, false}, has_state),
          samplers(decoder),
          memory(decoder, nullptr, {"test", std::size_t{1} << 26, 16, kVocab, true}, clock),
          engine(decoder, samplers, memory, clock, config(n_lanes, n_ctx, repairs)) {}

    EngineConfig config(int n_lanes, int n_ctx, bool repairs) {
        EngineConfig config{n_ctx, n_lanes, 8};
        config.scorer = &scorer;
        config.repairs = repairs;
        return config;
    }

    // Chunks 0, `wanted` and the last four are read of a prompt that nobody knows.
    Request sparse(std::uint64_t key, const Tokens& prompt, std::vector<std::size_t> wanted, int n_generate = 5) {
        scorer.wanted = std::move(wanted);
        Request r = request(key, prompt, n_generate);
        r.reading.reading = Reading::sparse;
        r.reading.share = static_cast<double>((5 + scorer.wanted.size()) * kChunk) / static_cast<double>(prompt.size());
        return r;
    }

    void step() {
        outcome.take(engine.step());
        REQUIRE(engine.check_integrity() == std::nullopt);
    }
    // Until the request has ended, or all that is there to do is done.
    void run(std::uint64_t key) {
        for (int i = 0; i < 10000 && !outcome.finished.contains(RequestKey{key}) && engine.wants_step(); ++i) step();
    }
    void run_all() {
        for (int i = 0; i < 10000 && engine.wants_step(); ++i) step();
        CHECK(engine.is_idle());
        CHECK(!decoder.misuse);
    }

    ManualClock clock;
    FakeScorer scorer;
    FakeModel decoder;
    FakeSamplers samplers;
    memory::KvCacheManager memory;
    Engine engine;
    Outcome outcome;
};

Tokens prompt_of(unsigned seed, int n) {
    std::mt19937 random(seed);
    return random_prompt(random, n);
}

Tokens answer_to(Tokens text, int n) {
    const std::size_t n_prompt = text.size();
    for (int i = 0; i < n; ++i) text.push_back(next_token(text));
    return {text.begin() + static_cast<std::ptrdiff_t>(n_prompt), text.end()};
}

Tokens read_of(const Tokens& prompt, const std::vector<int>& chunks) {
    Tokens read;
    for (const int chunk : chunks) {
        const auto begin = prompt.begin() + chunk * kChunk;
        read.insert(read.end(), begin, begin + std::min<std::ptrdiff_t>(kChunk, prompt.end() - begin));
    }
    return read;
}

}  // namespace

TEST_CASE("only what matters is read, and the answer is that of these parts") {
    for (const bool has_state : {false, true}) {
        ReadingSetup s(has_state);
        const Tokens prompt = prompt_of(1, 40 * kChunk);
        REQUIRE(s.engine.submit(s.sparse(1, prompt, {7, 20})));
        CHECK(!s.engine.is_idle());
        s.run(1);
        const Tokens read = read_of(prompt, {0, 7, 20, 36, 37, 38, 39});
        CHECK(s.outcome.tokens.at(RequestKey{1}) == answer_to(read, 5));
        const GenerationStats& stats = s.outcome.finished.at(RequestKey{1});
        CHECK(stats.n_prompt == 40 * kChunk);
        CHECK(stats.n_read == 7 * kChunk);
        CHECK(s.engine.status().reading.n_left_out == 33 * kChunk);
    }
}

TEST_CASE("RoPE sees each token where it stands in the whole prompt") {
    ReadingSetup s;
    const Tokens prompt = prompt_of(1, 40 * kChunk);
    std::vector<std::pair<Token, Position>> seen;
    REQUIRE(s.engine.submit(s.sparse(1, prompt, {20}, 3)));
    const Tokens read = read_of(prompt, {0, 20, 36, 37, 38, 39});
    for (int i = 0; i < 1000 && !s.outcome.finished.contains(RequestKey{1}); ++i) {
        s.decoder.last_call.clear();
        s.decoder.on_decode = [&](std::int32_t) {
            for (const Slice& slice : s.decoder.last_call) {
                for (std::size_t k = 0; k < slice.tokens.size(); ++k) {
                    const Position at = slice.begin + static_cast<Position>(k);
                    const Position shift = slice.rope_shifts.empty() ? slice.rope_shift : slice.rope_shifts[k];
                    if (at < static_cast<Position>(read.size())) {
                        CHECK(prompt[static_cast<std::size_t>(at + shift)] == slice.tokens[k]);
                    } else {
                        CHECK(shift == static_cast<Position>(prompt.size() - read.size()));
                    }
                }
            }
        };
        s.step();
    }
    CHECK(s.outcome.tokens.at(RequestKey{1}) == answer_to(read, 3));
}

TEST_CASE("while nobody waits the whole text is read, and the next turn stands on exact memory") {
    for (const bool has_state : {false, true}) {
        ReadingSetup s(has_state);
        const Tokens prompt = prompt_of(2, 30 * kChunk);
        REQUIRE(s.engine.submit(s.sparse(1, prompt, {9})));
        s.run(1);
        CHECK(s.engine.is_idle());
        CHECK(s.engine.wants_step());  // the repair
        CHECK(s.engine.status().n_repairs == 1);
        s.run_all();
        CHECK(s.engine.status().n_repairs == 0);
        CHECK(s.engine.status().n_repaired_tokens >= 29 * kChunk);
        Tokens next = prompt;
        const Tokens& answer = s.outcome.tokens.at(RequestKey{1});
        next.insert(next.end(), answer.begin(), answer.end() - 1);
        const Tokens more = prompt_of(3, 20);
        next.insert(next.end(), more.begin(), more.end());
        REQUIRE(s.engine.submit(s.sparse(2, next, {9})));
        s.run(2);
        CHECK(s.outcome.tokens.at(RequestKey{2}) == answer_to(next, 5));
        CHECK(!s.outcome.finished.at(RequestKey{2}).n_read);
        CHECK(s.outcome.finished.at(RequestKey{2}).n_reused == static_cast<int>(next.size()) - 20);
    }
}

TEST_CASE("without repair the next turn goes on from what was read, and chooses nothing anew") {
    for (const bool has_state : {false, true}) {
        ReadingSetup s(has_state, 2, 4096, false);
        const Tokens prompt = prompt_of(2, 30 * kChunk);
        REQUIRE(s.engine.submit(s.sparse(1, prompt, {9})));
        s.run(1);
        CHECK(!s.engine.wants_step());
        Tokens next = prompt;
        const Tokens& answer = s.outcome.tokens.at(RequestKey{1});
        next.insert(next.end(), answer.begin(), answer.end() - 1);
        const Tokens more = prompt_of(3, 20);
        next.insert(next.end(), more.begin(), more.end());
        const int n_calls = s.scorer.n_calls;
        REQUIRE(s.engine.submit(s.sparse(2, next, {12})));
        s.run(2);
        Tokens read = read_of(prompt, {0, 9, 26, 27, 28, 29});
        read.insert(read.end(), next.begin() + 30 * kChunk, next.end());
        CHECK(s.outcome.tokens.at(RequestKey{2}) == answer_to(read, 5));
        CHECK(s.scorer.n_calls == n_calls);
        CHECK(s.outcome.finished.at(RequestKey{2}).n_reused == static_cast<int>(read.size()) - 20);
    }
}

TEST_CASE("a prompt that ends where another one was not read is chosen anew, and so is another question") {
    ReadingSetup s(false, 2, 4096, false);
    const Tokens prompt = prompt_of(2, 40 * kChunk);
    REQUIRE(s.engine.submit(s.sparse(1, prompt, {9})));
    s.run(1);
    Tokens other = prompt;
    other[38 * kChunk] = 1;
    REQUIRE(s.engine.submit(s.sparse(3, other, {30})));
    s.run(3);
    CHECK(s.outcome.tokens.at(RequestKey{3}) == answer_to(read_of(other, {0, 30, 36, 37, 38, 39}), 5));
    // Who wants more of it read, too, and who wants nothing that is known.
    REQUIRE(s.engine.submit(s.sparse(4, prompt, {9, 11, 13, 15})));
    s.run(4);
    CHECK(s.outcome.finished.at(RequestKey{4}).n_read == 9 * kChunk);
    Request anew = s.sparse(5, prompt, {17});
    anew.memory.reuse = false;
    REQUIRE(s.engine.submit(anew));
    s.run(5);
    CHECK(s.outcome.tokens.at(RequestKey{5}) == answer_to(read_of(prompt, {0, 17, 36, 37, 38, 39}), 5));
    const Tokens shorter(prompt.begin(), prompt.begin() + 25 * kChunk);
    REQUIRE(s.engine.submit(s.sparse(2, shorter, {12})));
    s.run(2);
    CHECK(s.outcome.tokens.at(RequestKey{2}) == answer_to(read_of(shorter, {0, 12, 21, 22, 23, 24}), 5));
}

TEST_CASE("a conversation that outgrows the context is read in parts, whatever memory has of it") {
    ReadingSetup s(false, 2, 32 * kChunk);
    const Tokens prompt = prompt_of(21, 60 * kChunk);
    const Tokens first(prompt.begin(), prompt.begin() + 30 * kChunk);
    REQUIRE(s.engine.submit(request(1, first, 1)));
    s.run(1);
    REQUIRE(s.engine.submit(s.sparse(2, prompt, {7, 40})));
    s.run(2);
    CHECK(s.outcome.tokens.at(RequestKey{2}) == answer_to(read_of(prompt, {0, 7, 40, 56, 57, 58, 59}), 5));
    const Tokens little(prompt.begin(), prompt.begin() + 33 * kChunk);
    Request r = s.sparse(3, little, {});
    r.reading.reading = Reading::automatic;
    REQUIRE(s.engine.submit(r));
    s.run(3);
    CHECK(s.outcome.finished.at(RequestKey{3}).n_read.value_or(9999) < 32 * kChunk);
}

TEST_CASE("answers are chosen for before those who only ask, the most important first") {
    ReadingSetup s(false, 1);
    Request compress = s.sparse(1, prompt_of(31, 30 * kChunk), {7}, 0);
    compress.compresses = true;
    REQUIRE(s.engine.submit(compress));
    REQUIRE(s.engine.submit(s.sparse(2, prompt_of(32, 30 * kChunk), {7})));
    Request urgent = s.sparse(3, prompt_of(33, 30 * kChunk), {7});
    urgent.priority = 5;
    REQUIRE(s.engine.submit(urgent));
    std::vector<std::uint64_t> order;
    for (int i = 0; i < 1000 && order.size() < 3; ++i) {
        for (const Event& event : s.engine.step()) {
            if (const auto* finished = std::get_if<FinishedEvent>(&event)) {
                order.push_back(static_cast<std::uint64_t>(finished->key));
            } else if (const auto* chosen = std::get_if<ChosenEvent>(&event)) {
                order.push_back(static_cast<std::uint64_t>(chosen->key));
            }
        }
    }
    CHECK(order.front() == 3);
}

TEST_CASE("a prompt that is read whole never finds pages that were computed with a part of it") {
    ReadingSetup s(false, 2, 4096, false);
    const Tokens prompt = prompt_of(4, 30 * kChunk);
    REQUIRE(s.engine.submit(s.sparse(1, prompt, {1, 9})));
    s.run(1);
    REQUIRE(s.engine.submit(request(2, prompt, 5)));
    s.run(2);
    CHECK(s.outcome.tokens.at(RequestKey{2}) == answer_to(prompt, 5));
    CHECK(s.outcome.finished.at(RequestKey{2}).n_reused == 2 * kChunk);  // what stands before the first hole
}

TEST_CASE("what memory has of a prompt is gone on from, and little that is new is read whole") {
    ReadingSetup s;
    const Tokens prompt = prompt_of(5, 20 * kChunk);
    REQUIRE(s.engine.submit(request(1, prompt, 1)));
    s.run(1);
    Tokens longer = prompt;
    const Tokens more = prompt_of(6, 10 * kChunk);
    longer.insert(longer.end(), more.begin(), more.end());
    REQUIRE(s.engine.submit(s.sparse(2, longer, {})));
    s.run(2);
    CHECK(s.outcome.tokens.at(RequestKey{2}) == answer_to(longer, 5));
    CHECK(s.scorer.n_calls == 0);
    Tokens longest = prompt;
    const Tokens much = prompt_of(7, 30 * kChunk);
    longest.insert(longest.end(), much.begin(), much.end());
    Request r = s.sparse(3, longest, {3, 40});
    r.reading.share = 6.0 / 30;
    REQUIRE(s.engine.submit(r));
    s.run(3);
    std::vector<int> chunks;
    for (int i = 0; i < 20; ++i) chunks.push_back(i);
    chunks.insert(chunks.end(), {20, 40, 46, 47, 48, 49});
    CHECK(s.outcome.tokens.at(RequestKey{3}) == answer_to(read_of(longest, chunks), 5));
    CHECK(s.outcome.finished.at(RequestKey{3}).n_reused == 20 * kChunk);
}

TEST_CASE("automatic reading is sparse from a length on") {
    ReadingSetup s;
    Request r = s.sparse(1, prompt_of(8, 30 * kChunk), {3});
    r.reading.reading = Reading::automatic;
    r.reading.n_from = 31 * kChunk;
    REQUIRE(s.engine.submit(r));
    s.run(1);
    CHECK(!s.outcome.finished.at(RequestKey{1}).n_read);
    r = s.sparse(2, prompt_of(9, 31 * kChunk), {3});
    r.reading.reading = Reading::automatic;
    r.reading.n_from = 31 * kChunk;
    REQUIRE(s.engine.submit(r));
    s.run(2);
    CHECK(s.outcome.finished.at(RequestKey{2}).n_read == 6 * kChunk);
}

TEST_CASE("what a request has generated and what it keeps is read, and its marks are moved") {
    ReadingSetup s;
    const Tokens prompt = prompt_of(10, 40 * kChunk);
    Request r = s.sparse(1, prompt, {});
    r.reading.share = 0.01;
    r.n_generated_before = 7 * kChunk;
    r.reading.keep = {{5 * kChunk, 6 * kChunk}};
    r.memory.marks = {10, 3 * kChunk, 5 * kChunk + 9};
    r.memory.turn = 34 * kChunk;
    REQUIRE(s.engine.submit(r));
    s.run(1);
    CHECK(s.outcome.tokens.at(RequestKey{1}) == answer_to(read_of(prompt, {0, 5, 33, 34, 35, 36, 37, 38, 39}), 5));
}

TEST_CASE("a prompt longer than the context is admitted where its parts fit, and refused where they do not") {
    ReadingSetup s(false, 2, 10 * kChunk);
    const Tokens prompt = prompt_of(11, 40 * kChunk);
    const Result<void> refused = s.engine.submit(request(1, prompt, 5));
    REQUIRE(!refused);
    CHECK(refused.error().code == ErrorCode::prompt_too_long);
    REQUIRE(s.engine.submit(s.sparse(2, prompt, {7})));
    s.run(2);
    CHECK(s.outcome.tokens.at(RequestKey{2}) == answer_to(read_of(prompt, {0, 7, 36, 37, 38, 39}), 5));
    CHECK(s.engine.status().n_repairs == 0);  // it would not fit
    Request r = s.sparse(3, prompt, {});
    r.reading.keep = {{0, 20 * kChunk}};
    REQUIRE(s.engine.submit(r));
    s.run_all();
    CHECK(s.outcome.failed.at(RequestKey{3}).code == ErrorCode::prompt_too_long);
}

TEST_CASE("a scorer that fails costs the choice, not the answer") {
    ReadingSetup s;
    s.scorer.error = Error{ErrorCode::internal, "no scores"};
    const Tokens prompt = prompt_of(12, 30 * kChunk);
    REQUIRE(s.engine.submit(s.sparse(1, prompt, {7})));
    s.run(1);
    CHECK(s.outcome.tokens.at(RequestKey{1}) == answer_to(prompt, 5));
    Request compress = s.sparse(2, prompt, {7}, 0);
    compress.compresses = true;
    REQUIRE(s.engine.submit(compress));
    s.run_all();
    CHECK(s.outcome.failed.at(RequestKey{2}).text == "no scores");
    s.scorer.is_loaded = false;
    const Result<void> refused = s.engine.submit(s.sparse(3, prompt, {7}));
    REQUIRE(!refused);
    CHECK(refused.error().code == ErrorCode::unsupported);
}

TEST_CASE("who only asks gets the parts, and takes no lane") {
    ReadingSetup s;
    const Tokens prompt = prompt_of(13, 30 * kChunk);
    Request compress = s.sparse(1, prompt, {7}, 0);
    compress.compresses = true;
    REQUIRE(s.engine.submit(compress));
    std::shared_ptr<const prefill::SparseText> parts;
    for (int i = 0; i < 100 && s.engine.wants_step(); ++i) {
        for (const Event& event : s.engine.step()) {
            if (const auto* chosen = std::get_if<ChosenEvent>(&event)) parts = chosen->parts;
        }
    }
    REQUIRE(parts);
    CHECK(parts->tokens() == read_of(prompt, {0, 7, 26, 27, 28, 29}));
    CHECK(s.decoder.n_calls == 0);
    CHECK(s.engine.is_idle());
}

TEST_CASE("a request never waits for a repair, and the repair goes on from where it was") {
    ReadingSetup s(true, 1);
    const Tokens prompt = prompt_of(14, 60 * kChunk);
    REQUIRE(s.engine.submit(s.sparse(1, prompt, {9})));
    s.run(1);
    for (int i = 0; i < 4; ++i) s.step();
    const std::uint64_t n_before = s.engine.status().n_repaired_tokens;
    CHECK(n_before > 0);
    const Tokens other = prompt_of(15, 100);
    REQUIRE(s.engine.submit(request(2, other, 5)));
    s.step();
    CHECK(s.engine.status().n_lanes_busy == 1);  // the only lane is the request's
    s.run(2);
    CHECK(s.outcome.tokens.at(RequestKey{2}) == answer_to(other, 5));
    s.run_all();
    CHECK(s.engine.status().n_repairs == 0);
    // Not read twice: at most what stands behind the last checkpoint.
    CHECK(s.engine.status().n_repaired_tokens <= prompt.size() + 5 + 256);
    REQUIRE(s.engine.submit(request(3, prompt, 5)));
    s.run(3);
    CHECK(s.outcome.tokens.at(RequestKey{3}) == answer_to(prompt, 5));
}

TEST_CASE("one that waits for the scorer can be cancelled, and a paused repair leaves its lane") {
    ReadingSetup s(true);
    const Tokens prompt = prompt_of(16, 40 * kChunk);
    REQUIRE(s.engine.submit(s.sparse(1, prompt, {9})));
    s.step();
    const auto stats = s.engine.cancel(RequestKey{1});
    REQUIRE(stats);
    CHECK(stats->n_prompt == 40 * kChunk);
    CHECK(!s.engine.wants_step());
    REQUIRE(s.engine.submit(s.sparse(2, prompt, {9})));
    s.run(2);
    s.step();
    s.engine.pause_repairs(true);
    CHECK(!s.engine.wants_step());
    CHECK(s.decoder.n_lanes_in_use() == 0);
    s.engine.pause_repairs(false);
    s.run_all();
    CHECK(s.engine.status().n_repairs == 0);
}

TEST_CASE("random requests, read whole or in parts, all end as their texts say") {
    for (unsigned seed = 0; seed < 12; ++seed) {
        std::mt19937 random(seed);
        ReadingSetup s(seed % 2 == 0, 1 + static_cast<int>(seed % 3));
        std::vector<Tokens> texts;
        std::uint64_t key = 0;
        std::vector<std::pair<std::uint64_t, Tokens>> whole;
        for (int round = 0; round < 25; ++round) {
            Tokens text = prompt_of(seed * 100 + static_cast<unsigned>(round), 1 + static_cast<int>(random() % 1500));
            if (!texts.empty() && random() % 2 == 0) {
                Tokens longer = texts[random() % texts.size()];
                if (longer.size() + text.size() < 4000) {
                    longer.insert(longer.end(), text.begin(), text.end());
                    text = std::move(longer);
                }
            }
            texts.push_back(text);
            ++key;
            if (random() % 3 == 0) {
                REQUIRE(s.engine.submit(request(key, text, 3)));
                whole.emplace_back(key, text);
            } else {
                Request r = s.sparse(key, text, {random() % 30, random() % 30}, 3);
                r.reading.share = 0.3;
                REQUIRE(s.engine.submit(r));
            }
            for (unsigned i = random() % 30; i-- > 0 && s.engine.wants_step();) s.step();
        }
        s.run_all();
        for (const auto& [number, text] : whole) CHECK(s.outcome.tokens.at(RequestKey{number}) == answer_to(text, 3));
        CHECK(s.outcome.finished.size() == key);
    }
}

}  // TEST_SUITE("engine")
