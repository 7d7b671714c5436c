// Tests of whole samplers against llama.cpp's common_sampler_sample on the same logits: the same tokens for the same
// seed, chosen when they are asked for or ahead on other threads, within a grammar or a reasoning budget and without;
// and of what a lazy grammar is shown of the text that it waits through.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "llama/sampling/llama_sampler.h"
#include "llama/sampling/trigger_window.h"
#include "tests/llama/llama_memory.h"
#include "tests/llama/sampler_reference.h"
#include "tests/support/volume.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::memory_tests;
using luce::llama::TriggerWindow;
using luce::tests::is_full;

namespace {

constexpr int kMostTokens = 40;

// Random constraints, and rows in which what they wait for is likely.
class Constraints {
public:
    Constraints(const llama::Model& model, std::uint32_t seed) : model_(model), random_(seed) {
        think_ = tokens_of(model, "<think>");
        end_ = tokens_of(model, "</think>");
        REQUIRE(think_.size() == 1);
        REQUIRE(end_.size() == 1);
        for (Token token = 0; token < model.info().n_vocab; ++token) {
            const std::string text = piece(token);
            const bool is_ab = !text.empty() && text.find_first_not_of("ab") == std::string::npos;
            if (is_ab || text == "(" || text == " a" || text == "\n" || text == "." || text == "{") {
                likely_.push_back(token);
            }
        }
        REQUIRE(likely_.size() > 5);
        likely_.push_back(think_[0]);
        likely_.push_back(end_[0]);
        likely_.push_back(llama_vocab_eos(model.vocab()));
    }

    std::mt19937& random() { return random_; }

    ConstraintParams any() {
        ConstraintParams params;
        const std::uint32_t kind = random_() % 4;
        if (kind > 0) params.grammar = grammar();
        params.grammar_is_lazy = kind > 1;
        if (params.grammar_is_lazy) add_triggers(params);
        if (kind == 0 || random_() % 2 == 0) add_budget(params);
        const bool opens = random_() % 3 == 0;  // a grammar that applies from the start would have to take it
        if (opens && (params.grammar.empty() || params.grammar_is_lazy)) params.generation_prompt = "<think>";
        return params;
    }

    Logits row() {
        Logits logits = random_row(random_, model_.info().n_vocab);
        for (std::uint32_t i = random_() % 4; i > 0; --i) {
            logits[static_cast<std::size_t>(one_of(likely_))] += 10 + static_cast<float>(random_() % 20);
        }
        return logits;
    }

private:
    template <typename T>
    const T& one_of(const std::vector<T>& values) {
        return values[random_() % values.size()];
    }

    std::string piece(Token token) const {
        std::string text(256, '\0');
        const int n = llama_token_to_piece(model_.vocab(), token, text.data(), 256, 0, true);
        text.resize(static_cast<std::size_t>(std::max(0, n)));
        return text;
    }

    std::string grammar() {
        return one_of<std::string>({"root ::= [ab]+", "root ::= [ab]+ \"(\" .*", "root ::= .*", "root ::= [a-z ]{3}",
                                    "root ::= (\"ab\" | \"b\") ([^(] | \"(\" [a-z])*",
                                    "root ::= \"{\" ws [a-z\"]+ \"}\"\nws ::= \" \"?"});
    }

    std::string word() {
        std::string text;
        for (std::uint32_t i = 1 + random_() % 5; i > 0; --i) text += random_() % 2 == 0 ? 'a' : 'b';
        if (random_() % 4 == 0) text += one_of<std::string>({"(", " a", "\n", ".", "{"});
        return text;
    }

    void add_triggers(ConstraintParams& params) {
        for (std::uint32_t i = 1 + random_() % 3; i > 0; --i) {
            const std::uint32_t kind = random_() % 8;
            if (kind < 4) params.triggers.push_back({Trigger::Kind::word, word(), 0});
            if (kind == 4 || kind == 5) params.triggers.push_back({Trigger::Kind::token, "", one_of(likely_)});
            if (kind == 6)
                params.triggers.push_back(
                    {Trigger::Kind::pattern, one_of<std::string>({"a+(b)", "[.]\\s", "^[^(]*$"}), 0});
            if (kind == 7)
                params.triggers.push_back(
                    {Trigger::Kind::pattern_full, one_of<std::string>({"[^b]*(b+)", "[ab]*(\n)$"}), 0});
        }
    }

    void add_budget(ConstraintParams& params) {
        params.think_start = random_() % 2 == 0 ? think_ : Tokens{one_of(likely_)};
        params.think_end = {end_};
        if (random_() % 3 == 0) params.think_end.push_back({one_of(likely_), one_of(likely_)});
        if (random_() % 4 == 0) std::swap(params.think_end.front(), params.think_end.back());
        if (params.grammar_is_lazy && random_() % 3 == 0)
            return;  // the grammar still has to know when the model thinks
        params.think_budget = static_cast<std::int32_t>(random_() % 6);
        if (random_() % 2 == 0) params.think_message = {one_of(likely_), end_[0], one_of(likely_), one_of(likely_)};
    }

    const llama::Model& model_;
    std::mt19937 random_;
    Tokens think_;
    Tokens end_;
    Tokens likely_;
};

Request random_constrained(Constraints& constraints, std::int32_t n_vocab) {
    std::mt19937& random = constraints.random();
    Request request = random_request(random, n_vocab);
    if (random() % 4 == 0) {
        request.sampling = SamplingArgs();
        request.sampling.temperature = 0.3F + static_cast<float>(random() % 20) / 10;
        request.sampling.seed = random();
    }
    request.constraint = constraints.any();
    return request;
}

const std::vector<Trigger> kTriggers = {{Trigger::Kind::word, "<call>\n", 0}, {Trigger::Kind::token, "", 99}};

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
            request.sampling = SamplingArgs();
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

TEST_CASE("tokens of chains with links that few ask for are those of common_sampler_sample for the same seed") {
    Setup s;
    const std::int32_t n_vocab = s.model.info().n_vocab;
    llama::LlamaSamplerFactory factory(s.model, s.decoder);
    std::mt19937 random(21);
    for (int round = 0; round < (is_full() ? 200 : 80); ++round) {
        CAPTURE(round);
        Request request = random_request(random, n_vocab);
        add_rare_links(random, request.sampling);
        Reference reference(s, request);
        const auto sampler = std::move(factory.create(request)).value();
        for (int i = 0; i < 6; ++i) {
            REQUIRE(s.decoder.recall(random_row(random, n_vocab)));
            REQUIRE(sampler->sample(0).value() == reference.sample());
        }
    }
}

TEST_CASE("a request that is taken up again goes on with the same draws, whatever its links remember") {
    Setup s;
    const std::int32_t n_vocab = s.model.info().n_vocab;
    llama::LlamaSamplerFactory factory(s.model, s.decoder);
    std::mt19937 random(22);
    for (int round = 0; round < 40; ++round) {
        CAPTURE(round);
        Request request = random_request(random, n_vocab);
        add_rare_links(random, request.sampling);
        const auto whole = std::move(factory.create(request)).value();
        for (int i = 0; i < 4; ++i) {
            REQUIRE(s.decoder.recall(random_row(random, n_vocab)));
            const auto resumed = std::move(factory.create(request)).value();
            const Token token = whole->sample(0).value();
            CHECK(resumed->sample(0).value() == token);
            request.prompt.push_back(token);
            ++request.n_generated_before;
        }
    }
}

TEST_CASE("a text does not end before it has its least number of tokens, unless its grammar is at its end") {
    Setup s;
    const std::int32_t n_vocab = s.model.info().n_vocab;
    llama::LlamaSamplerFactory factory(s.model, s.decoder);
    std::mt19937 random(23);
    Token end = 0;
    while (!s.decoder.is_end_of_generation(end)) ++end;
    for (const float temperature : {0.0F, 1.0F}) {
        Logits row = random_row(random, n_vocab);
        row[static_cast<std::size_t>(end)] = 50;
        row[7] = 40;
        REQUIRE(s.decoder.recall(row));
        Request request;
        request.prompt = some_tokens(3, 1);
        request.sampling.temperature = temperature;
        request.stop_tokens = {7};
        request.n_least = 2;
        const auto sampler = std::move(factory.create(request)).value();
        for (int i = 0; i < 2; ++i) {
            const Token token = sampler->sample(0).value();
            CHECK(token != end);
            CHECK(token != 7);
        }
        CHECK(sampler->sample(0).value() == end);
        request.constraint.grammar = "root ::= \"\"";
        CHECK(std::move(factory.create(request)).value()->sample(0).value() == end);
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

TEST_CASE("constrained tokens are those of common_sampler_sample for the same seed") {
    Setup s;
    const std::int32_t n_vocab = s.model.info().n_vocab;
    llama::LlamaSamplerFactory factory(s.model, s.decoder);
    Constraints constraints(s.model, 21);
    const int n_rounds = is_full() ? 200 : 80;
    int n_ended = 0;
    for (int round = 0; round < n_rounds; ++round) {
        CAPTURE(round);
        const Request request = random_constrained(constraints, n_vocab);
        CAPTURE(request.constraint.grammar);
        auto created = factory.create(request);
        REQUIRE_MESSAGE(created.ok(), (created ? "" : created.error().text));
        Reference reference(s, request);
        for (int i = 0; i < kMostTokens; ++i) {
            REQUIRE(s.decoder.recall(constraints.row()));
            const Result<Token> token = created.value()->sample(0);
            const std::optional<Token> expected = reference.sample();
            REQUIRE(token.ok() == expected.has_value());
            if (!token) {
                ++n_ended;
                CHECK((token.error().code == ErrorCode::bad_grammar || token.error().code == ErrorCode::bad_args));
                break;
            }
            REQUIRE(token.value() == *expected);
        }
    }
    CHECK(n_ended > n_rounds / 20);
    CHECK(n_ended < n_rounds * 3 / 4);
}

TEST_CASE("constrained tokens chosen ahead, on several threads, are the same") {
    Setup s;
    const Tokens text = some_tokens(8, 1);
    llama::LlamaSamplerFactory alone(s.model, s.decoder, 0, 1);
    llama::LlamaSamplerFactory beside(s.model, s.decoder, 0, 3);
    Constraints constraints(s.model, 22);
    const std::vector<Slice> slices = {Slice{kFirst, 0, text, 1}, Slice{kSecond, 0, std::span(text).first(5), 1},
                                       Slice{kThird, 0, std::span(text).first(3), 1}};
    for (int round = 0; round < (is_full() ? 40 : 16); ++round) {
        REQUIRE(s.decoder.decode(slices));
        std::vector<std::unique_ptr<TokenSampler>> ours, theirs;
        std::vector<PendingSample> pending;
        for (std::size_t row = 0; row < slices.size(); ++row) {
            const Request request = random_constrained(constraints, s.model.info().n_vocab);
            ours.push_back(std::move(beside.create(request)).value());
            theirs.push_back(std::move(alone.create(request)).value());
            pending.push_back({ours.back().get(), row});
        }
        for (int i = 0; i < 5; ++i) {
            beside.choose_ahead(pending);
            std::erase_if(pending, [&](const PendingSample& sample) {
                const Result<Token> ahead = sample.sampler->sample(sample.row);
                const Result<Token> expected = theirs[sample.row]->sample(sample.row);
                REQUIRE(ahead.ok() == expected.ok());
                if (ahead) CHECK(ahead.value() == expected.value());
                if (!ahead) CHECK(ahead.error().text == expected.error().text);
                return !ahead.ok();  // the request ends
            });
        }
        for (const Slice& slice : slices) s.decoder.forget(slice.lane);
    }
}

TEST_CASE("a lazy grammar is shown the tokens that its trigger word lies in, however long it waited") {
    std::optional<TriggerWindow> window = TriggerWindow::of(kTriggers);
    REQUIRE(window);
    for (int i = 0; i < 10000; ++i) CHECK(window->add(1, "no <call> here ").empty());
    CHECK(window->add(2, "then <ca").empty());
    CHECK(window->add(3, "").empty());
    CHECK(window->add(4, "ll").empty());
    CHECK(window->add(5, ">\nname") == Tokens{2, 3, 4, 5});
}

TEST_CASE("a trigger token is all that a lazy grammar is shown") {
    std::optional<TriggerWindow> window = TriggerWindow::of(kTriggers);
    CHECK(window->add(2, "then <call").empty());
    CHECK(window->add(99, "") == Tokens{99});
}

TEST_CASE("a trigger in code is quoted") {
    for (const std::string fence : {"```\n", "~~~\n"}) {
        std::optional<TriggerWindow> window = TriggerWindow::of(kTriggers);
        CHECK(window->add(1, "As in\n" + fence + "some text\n").empty());
        CHECK(window->add(99, "").empty());
        CHECK(window->add(2, "<call>\n").empty());
        CHECK(window->add(3, fence).empty());
        CHECK(window->add(4, "So ").empty());
        CHECK(window->add(5, "<ca").empty());
        CHECK(window->add(6, "ll>\n") == Tokens{5, 6});
    }
    for (const std::string quote : {"Use `", "``a ` b "}) {
        std::optional<TriggerWindow> window = TriggerWindow::of(kTriggers);
        CHECK(window->add(1, quote).empty());
        CHECK(window->add(99, "").empty());
        CHECK(window->add(2, "<call>\n").empty());  // a line's end ends what is quoted in it
        CHECK(window->add(99, "") == Tokens{99});
    }
}

TEST_CASE("the grammar does not see a quoted trigger that stands beside the one it waits for") {
    std::optional<TriggerWindow> window = TriggerWindow::of(kTriggers);
    CHECK(window->add(1, "`").empty());
    CHECK(window->add(2, "<call>\n").empty());
    CHECK(window->add(3, "<call>\n") == Tokens{3});
}

TEST_CASE("a trigger that may match a text of any length has no window") {
    for (const Trigger::Kind kind : {Trigger::Kind::pattern, Trigger::Kind::pattern_full}) {
        std::vector<Trigger> triggers = kTriggers;
        triggers.push_back({kind, "a.*b", 0});
        CHECK(!TriggerWindow::of(triggers));
    }
    const std::vector<Trigger> empty = {{Trigger::Kind::word, std::string(1, '\0') + "word", 0}};
    CHECK(!TriggerWindow::of(empty));
}

}  // TEST_SUITE("llama")
