// Slots, chains and prefixes in single steps: what was wrong once, or would be hard to see in a random history.
#include <doctest/doctest.h>

#include "engine/engine.h"
#include "memory/pages/prefix_tree.h"
#include "tests/engine/fake_model.h"
#include "tests/engine/fake_sampler.h"
#include "tests/memory/memory_accounting.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::engine;
using namespace luce::tests;
using memory::kPageSize;

namespace {

constexpr std::size_t kPlenty = 1 << 20;

Tokens counting(Token first, std::size_t n) {
    Tokens tokens;
    for (std::size_t i = 0; i < n; ++i) tokens.push_back(first + static_cast<Token>(i % 300));
    return tokens;
}

struct Play {
    explicit Play(bool has_state = false, std::size_t host_budget = kPlenty, std::int32_t n_pool = 512)
        : model({kVocab, n_pool, 32, 32, false}, has_state),
          samplers(model),
          memory(model, nullptr, {"test", host_budget, 16, kVocab, true}, clock),
          engine(model, samplers, memory, clock, {std::min(n_pool, 300), 3, 8}) {}

    // Runs one request alone to its end; null: it failed with `error`.
    std::optional<GenerationStats> run(Tokens prompt, std::int32_t n, memory::MemoryRequest memory_request = {}) {
        submit(prompt, n, std::move(memory_request));
        finish_all();
        if (error) return std::nullopt;
        CHECK(answers.at(n_keys) == expected_answer(prompt, n, 300));
        return stats.at(n_keys);
    }

    Result<void> thin(std::int32_t slot, RequestKey of, Position begin, Position end) {
        return memory.snapshots().thin_ended(slot, static_cast<std::uint64_t>(of), begin, end);
    }

    std::uint64_t submit(Tokens prompt, std::int32_t n, memory::MemoryRequest memory_request = {}) {
        Request request;
        request.key = static_cast<RequestKey>(++n_keys);
        request.prompt = std::move(prompt);
        request.n_generate = n;
        request.memory = std::move(memory_request);
        answers[n_keys];
        REQUIRE(engine.submit(std::move(request)));
        return n_keys;
    }

    void step() {
        for (const Event& event : engine.step()) {
            if (const auto* token = std::get_if<TokenEvent>(&event)) {
                answers[static_cast<std::uint64_t>(token->key)].push_back(token->token);
            } else if (const auto* snapped = std::get_if<SnapshotEvent>(&event)) {
                outcomes.push_back(snapped->outcome);
            } else if (const auto* end = std::get_if<FinishedEvent>(&event)) {
                stats[static_cast<std::uint64_t>(end->key)] = end->stats;
            } else if (const auto* failure = std::get_if<FailedEvent>(&event)) {
                error = failure->error;
            }
        }
        REQUIRE(engine.check_integrity() == std::nullopt);
        REQUIRE(!model.misuse);
    }

    void finish_all() {
        error.reset();
        while (!engine.is_idle()) step();
    }

    ErrorCode code() const { return error.value().code; }

    FakeModel model;
    FakeSamplers samplers;
    ManualClock clock;
    memory::KvCacheManager memory;
    Engine engine;
    std::uint64_t n_keys = 0;
    std::map<std::uint64_t, Tokens> answers;
    std::map<std::uint64_t, GenerationStats> stats;
    std::vector<memory::SnapshotOutcome> outcomes;
    std::optional<Error> error;
};

memory::MemoryRequest restoring(std::int32_t slot, std::optional<Position> at = {},
                                std::vector<std::int32_t> chain = {}) {
    memory::MemoryRequest request;
    request.restore_slot = slot;
    request.restore_at = at;
    request.chain = std::move(chain);
    return request;
}

memory::MemoryRequest snapping(std::vector<memory::SnapshotPoint> points) {
    memory::MemoryRequest request;
    request.snapshots = std::move(points);
    return request;
}

Tokens joined(Tokens a, const Tokens& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

}  // namespace

TEST_CASE("restore_at within the rows behind a slot's last page, where no page goes on") {
    Play play;
    const Tokens text = counting(1, 100);
    REQUIRE(play.run(text, 1, snapping({{100, 0}})));
    const auto stats = play.run(joined(Tokens(text.begin(), text.begin() + 80), {7}), 3, restoring(0, 80));
    REQUIRE(stats);
    CHECK(stats->restored == 80);
}

TEST_CASE("a prefix is cut from rows that are still on their way") {
    Play play;
    const Tokens text = counting(1, 8);
    REQUIRE(play.run(text, 0));
    REQUIRE(play.thin(0, RequestKey{1}, 0, 5));
    const auto stats = play.run(joined(Tokens(text.begin(), text.begin() + 5), {7}), 3, restoring(0));
    REQUIRE(stats);
    CHECK(stats->restored == 5);
}

TEST_CASE("a restore at the end of the prompt computes nothing but the answer") {
    for (const bool has_state : {false, true}) {
        Play play(has_state);
        const Tokens text = counting(1, 150);
        REQUIRE(play.run(text, 1, snapping({{150, 0}})));
        const std::int64_t n_before = play.model.n_computed;
        const auto stats = play.run(text, 5, restoring(0));
        REQUIRE(stats);
        CHECK(stats->restored == 150);
        CHECK(play.model.n_computed == n_before + 4);
    }
}

TEST_CASE("a suspended request still takes its snapshots, and its prompt ends where it ended") {
    for (const bool has_state : {false, true}) {
        Play play(has_state, kPlenty, 300);
        play.submit(counting(1, 40), 200);
        for (int i = 0; i < 5; ++i) play.step();
        const Tokens prompt = counting(400, 180);
        const std::uint64_t key = play.submit(prompt, 20, snapping({{30, 1}, {170, 2}, {180, 3}}));
        // The device has no room just now: the younger lane pauses in the middle of its prompt.
        while (play.outcomes.empty()) play.step();
        play.model.fail_next = Error{ErrorCode::no_room, "no cells"};
        play.step();
        REQUIRE(play.engine.status().n_suspensions == 1);
        play.finish_all();
        REQUIRE(!play.error);
        CHECK(play.answers.at(key) == expected_answer(prompt, 20, 300));
        REQUIRE(play.outcomes.size() == 3);
        for (const memory::SnapshotOutcome& outcome : play.outcomes) CHECK(!outcome.error);
        const std::int64_t n_before = play.model.n_computed;
        REQUIRE(play.run(prompt, 1, restoring(3)));
        CHECK(play.model.n_computed == n_before);
    }
}

TEST_CASE("a held checkpoint that gets its logits later is let go with the size that it has then") {
    Play play(true);
    const Tokens text = counting(1, 90);
    const std::uint64_t key = play.submit(joined(text, counting(500, 60)), 1, snapping({{90, 0}}));
    play.finish_all();
    REQUIRE(play.stats.contains(key));
    REQUIRE(play.run(text, 1));  // its prompt ends where the snapshot stands: the logits are added
    REQUIRE(play.memory.slots().free(0));
    CHECK(play.memory.status().cache.pinned_bytes == 0);
    CHECK(play.engine.check_integrity() == std::nullopt);
}

TEST_CASE("a chain's links begin where the one before ends, in the same text") {
    Play play;
    const Tokens text = counting(1, 200);
    REQUIRE(play.run(text, 1, snapping({{100, 0}, {120, 5}})));
    const std::uint64_t whole = play.n_keys;
    REQUIRE(play.run(joined(Tokens(text.begin(), text.begin() + 90), counting(600, 100)), 1));
    const std::uint64_t other = play.n_keys;
    const auto thin = [&](std::int32_t slot, std::uint64_t of, Position begin, Position end) {
        return play.thin(slot, RequestKey{of}, begin, end).ok();
    };
    REQUIRE(thin(1, whole, 100, 150));
    REQUIRE(thin(2, whole, 150, 190));
    REQUIRE(thin(3, other, 100, 150));
    REQUIRE(thin(4, other, 60, 80));
    const Tokens prompt = joined(text, {3});
    const auto restored = [&](std::int32_t base, std::vector<std::int32_t> chain) -> std::optional<Position> {
        const auto stats = play.run(prompt, 2, restoring(base, {}, std::move(chain)));
        return stats ? stats->restored : std::nullopt;
    };
    CHECK(restored(0, {1}) == 150);
    CHECK(restored(0, {1, 2}) == 190);
    CHECK(!restored(0, {2}));  // leaves a gap
    CHECK(play.code() == ErrorCode::prefix_mismatch);
    CHECK(!restored(5, {1}));  // overlaps
    CHECK(play.code() == ErrorCode::prefix_mismatch);
    CHECK(!restored(0, {3}));  // of another text
    CHECK(play.code() == ErrorCode::prefix_mismatch);
    CHECK(!restored(0, {4}));  // of another text, and shorter than the base
    CHECK(play.code() == ErrorCode::prefix_mismatch);
    CHECK(!restored(1, {}));  // begins nothing
    CHECK(play.code() == ErrorCode::unsupported);
}

TEST_CASE("with state a thin slot can be taken, and a chain restored, only where a checkpoint stands") {
    Play play(true);
    const Tokens text = counting(1, 200);
    REQUIRE(play.run(text, 1, snapping({{100, 0}})));
    const RequestKey whole{play.n_keys};
    CHECK(play.thin(1, whole, 100, 150).error().code == ErrorCode::unsupported);
    REQUIRE(play.thin(1, whole, 100, 200));
    const auto stats = play.run(joined(text, {3}), 2, restoring(0, {}, {1}));
    REQUIRE(stats);
    CHECK(stats->restored == 200);
}

TEST_CASE("a thin slot whose range ends within a text that just fits the host") {
    // Room for three pages and a little: making the range's checkpoint pushes out what nobody holds.
    const std::size_t page_bytes = 8 * 64;
    for (std::size_t extra = 0; extra < 2 * page_bytes; extra += 64) {
        Play play(false, 3 * page_bytes + extra);
        REQUIRE(play.run(counting(1, 210), 1));
        const RequestKey key{play.n_keys};
        REQUIRE(play.memory.leave_device());
        std::ignore = play.thin(1, key, 64, 200);
        std::ignore = play.thin(2, key, 64, 100);
        CHECK(play.engine.check_integrity() == std::nullopt);
    }
}

TEST_CASE("many snapshots of one growing text cost its pages and their checkpoints") {
    Play play(false, kPlenty, 512);
    Tokens text = counting(1, 200);
    for (std::int32_t slot = 0; slot < 16; ++slot) {
        REQUIRE(play.run(text, 1, snapping({{static_cast<Position>(text.size()), slot}})));
        text = joined(text, {static_cast<Token>(slot), 5, 6});
    }
    const std::size_t row = play.model.traits().row_bytes;
    const std::size_t pages = 3 * 64 * row;  // 192 positions that all of them share
    const std::size_t checkpoints = 16 * (60 * row + 4 * 4);
    CHECK(play.memory.status().cache.pinned_bytes <= pages + checkpoints);
}

TEST_CASE("texts that branch are runs, and one of them can be held, let go and forgotten") {
    for (const bool has_state : {false, true}) {
        CAPTURE(has_state);
        Play play(has_state);
        const Tokens shared = counting(1, 2 * kPageSize);
        // They part within a page.
        const Tokens also_shared = joined(shared, counting(5, 40));
        for (const Token first : {Token{7}, Token{9}}) {
            REQUIRE(play.run(joined(also_shared, counting(first, kPageSize)), 1));
        }
        memory::TextBoard& texts = play.memory.texts();
        const memory::TextListing listing = texts.list(0, 10);
        REQUIRE(listing.runs.size() == 3);
        CHECK(listing.n_runs == 3);
        CHECK(listing.runs[0].end == 2 * kPageSize);
        CHECK(!listing.runs[0].parent);
        CHECK(listing.runs[1].parent == listing.runs[0].name);
        CHECK(listing.runs[2].parent == listing.runs[0].name);
        CHECK(listing.runs[0].first_tokens == counting(1, 32));
        CHECK(listing.runs[1].first_tokens == counting(9, 24));
        CHECK(listing.runs[2].first_tokens == counting(7, 24));
        CHECK(texts.list(1, 1).runs[0].name == listing.runs[1].name);
        CHECK(texts.list(3, 10).runs.empty());

        const memory::PageName branch = listing.runs[1].name;
        REQUIRE(texts.hold(branch, true));
        REQUIRE(texts.hold(branch, true));  // it is
        play.memory.clear(false);
        CHECK(texts.list(0, 10).runs.size() >= 1);
        CHECK(texts.list(0, 10).runs[0].n_pinned > 0);
        REQUIRE(texts.hold(branch, false));
        REQUIRE(texts.forget(texts.list(0, 10).runs[0].name));
        CHECK(texts.list(0, 10).n_runs == 0);
        CHECK(texts.forget(branch).error().code == ErrorCode::bad_args);
        CHECK(texts.hold(branch, true).error().code == ErrorCode::bad_args);
        REQUIRE(play.engine.check_integrity() == std::nullopt);
        REQUIRE(play.run(shared, 2));
    }
}

TEST_CASE("what runs or is in a slot is not forgotten") {
    Play play;
    const Tokens text = counting(1, 2 * kPageSize);
    REQUIRE(play.run(text, 1, snapping({{2 * kPageSize, 0}})));
    memory::TextBoard& texts = play.memory.texts();
    const memory::PageName name = texts.list(0, 1).runs.at(0).name;
    const Error in_slot = texts.forget(name).error();
    CHECK(in_slot.code == ErrorCode::busy);
    CHECK(in_slot.text == "2 of 2 pages stay: they are kept by slot 0");
    REQUIRE(play.memory.slots().free(0));
    CHECK(texts.forget(name));
    play.submit(text, 5);
    for (int i = 0; i < 3; ++i) play.step();
    const Error running = texts.forget(texts.list(0, 1).runs.at(0).name).error();
    CHECK(running.code == ErrorCode::busy);
    CHECK(running.text.find("kept by running requests") != std::string::npos);
    play.finish_all();
    CHECK(play.answers.at(2) == expected_answer(text, 5, 300));
}

}  // TEST_SUITE("memory")
