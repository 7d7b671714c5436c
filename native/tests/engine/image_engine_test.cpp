// Tests of images in the engine, on a model of arithmetic: who waits for one, who does not, and which calls they get.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
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

constexpr Token kFirstRow = kVocab + 7;  // ids of rows, one after the other

class FakeRows final : public ImageRows {
public:
    void want() override { is_wanted = true; }
    bool is_done() const override { return made || error; }
    std::size_t n_row_values() const override { return 1; }
    Result<std::span<const float>> rows() const override {
        if (error) return *error;
        return std::span<const float>(values);
    }

    bool is_wanted = false;
    bool made = false;
    std::optional<Error> error;
    std::vector<float> values = std::vector<float>(64);
};

struct ImageSetup {
    ImageSetup()
        : decoder({kVocab, 256, 32, 32, false}),
          samplers(decoder),
          memory(decoder, nullptr, {"test", 1 << 20, 16, true}, clock),
          engine(decoder, samplers, memory, clock, {128, 2, 8}) {
        decoder.on_decode = [this](std::int32_t n_tokens) { calls.push_back(n_tokens); };
    }

    // A text with an image of n rows behind its first ten tokens.
    Request with_image(std::uint64_t key, int n, bool sees_all = false) {
        std::mt19937 random(5);
        Request r = request(key, random_prompt(random, 10), 5);
        for (int i = 0; i < n; ++i) r.prompt.push_back(kFirstRow + i);
        for (const Token token : random_prompt(random, 6)) r.prompt.push_back(token);
        r.images.push_back({10, 10 + n, 0, sees_all, rows});
        return r;
    }

    void step_while_wanted() {
        for (int i = 0; i < 1000 && engine.wants_step(); ++i) {
            outcome.take(engine.step());
            REQUIRE(engine.check_integrity() == std::nullopt);
        }
    }

    FakeModel decoder;
    FakeSamplers samplers;
    ManualClock clock;
    memory::KvCacheManager memory;
    Engine engine;
    std::shared_ptr<FakeRows> rows = std::make_shared<FakeRows>();
    std::vector<std::int32_t> calls;
    Outcome outcome;
};

Tokens answer_to(Tokens text, int n) {
    const std::size_t n_prompt = text.size();
    for (int i = 0; i < n; ++i) text.push_back(next_token(text));
    return {text.begin() + static_cast<std::ptrdiff_t>(n_prompt), text.end()};
}

}  // namespace

TEST_CASE("a lane waits for its image, others go on, and nobody steps while all wait") {
    ImageSetup s;
    const Request waiting = s.with_image(1, 20);
    const Tokens prompt = waiting.prompt;
    REQUIRE(s.engine.submit(waiting));
    s.step_while_wanted();
    CHECK(s.rows->is_wanted);
    CHECK(!s.engine.is_idle());
    CHECK(s.calls == std::vector<std::int32_t>{10});  // what stands before the image
    std::mt19937 random(8);
    const Tokens text = random_prompt(random, 12);
    REQUIRE(s.engine.submit(request(2, text, 5)));
    s.step_while_wanted();
    CHECK(s.outcome.tokens.at(RequestKey{2}) == answer_to(text, 5));
    CHECK(s.outcome.tokens.count(RequestKey{1}) == 0);
    s.rows->made = true;
    s.step_while_wanted();
    CHECK(s.engine.is_idle());
    CHECK(s.outcome.tokens.at(RequestKey{1}) == answer_to(prompt, 5));
    CHECK(!s.decoder.misuse);
}

TEST_CASE("a prompt that is known needs no rows") {
    ImageSetup s;
    s.rows->made = true;
    REQUIRE(s.engine.submit(s.with_image(1, 20)));
    s.step_while_wanted();
    s.rows = std::make_shared<FakeRows>();
    REQUIRE(s.engine.submit(s.with_image(2, 20)));
    s.step_while_wanted();
    CHECK(s.engine.is_idle());
    CHECK(!s.rows->is_wanted);
    CHECK(s.outcome.tokens.at(RequestKey{1}) == s.outcome.tokens.at(RequestKey{2}));
}

TEST_CASE("an image that sees all of itself is computed in one call, and has to fit one") {
    ImageSetup s;
    s.rows->made = true;
    REQUIRE(s.engine.submit(s.with_image(1, 30, true)));
    s.step_while_wanted();
    CHECK(std::count(s.calls.begin(), s.calls.end(), 30) == 1);
    const Result<void> refused = s.engine.submit(s.with_image(2, 33, true));
    REQUIRE(!refused);
    CHECK(refused.error().code == ErrorCode::unsupported);
    CHECK(s.engine.submit(s.with_image(3, 33, false)));
}

TEST_CASE("an image that cannot be encoded fails its request alone") {
    ImageSetup s;
    s.rows->error = Error{ErrorCode::internal, "no rows"};
    REQUIRE(s.engine.submit(s.with_image(1, 20)));
    std::mt19937 random(8);
    REQUIRE(s.engine.submit(request(2, random_prompt(random, 12), 5)));
    s.step_while_wanted();
    CHECK(s.outcome.failed.at(RequestKey{1}).text == "no rows");
    CHECK(s.outcome.finished.count(RequestKey{2}) == 1);
    CHECK(s.engine.is_idle());
}

TEST_CASE("one that waits for its image can be cancelled") {
    ImageSetup s;
    REQUIRE(s.engine.submit(s.with_image(1, 20)));
    s.step_while_wanted();
    CHECK(s.engine.cancel(RequestKey{1}).has_value());
    CHECK(s.engine.is_idle());
    CHECK(s.decoder.n_lanes_in_use() == 0);
}

TEST_CASE("ids beyond the vocabulary are images' alone") {
    ImageSetup s;
    Request bare = s.with_image(1, 20);
    bare.images.clear();
    CHECK(s.engine.submit(bare).error().code == ErrorCode::token_out_of_range);
    Request short_run = s.with_image(1, 20);
    short_run.images[0].end -= 1;
    CHECK(s.engine.submit(short_run).error().code == ErrorCode::token_out_of_range);
}

}  // TEST_SUITE("engine")
