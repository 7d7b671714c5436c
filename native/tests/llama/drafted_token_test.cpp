// Tests of how a drafter's logits become a drafted token: the likeliest, or a draw that is what it says to be; and on
// random models of each kind, that what a source claims of a drawn draft knows nothing of the draws.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <llama.h>

// Beside llama.cpp's vendor/, which tests see.
#include <../common/common.h>

#include "llama/drafting/draft_sources.h"
#include "llama/drafting/drafted_token.h"
#include "tests/llama/llama_memory.h"
#include "tests/support/chi_square.h"

TEST_SUITE_BEGIN("llama");

using namespace luce;
using namespace luce::memory_tests;
using llama::add_token;
using llama::drawn_from;
using llama::kMostCandidates;
using speculation::Distribution;
using speculation::Draft;
using speculation::DraftAsk;
using speculation::DrawRule;
using speculation::TokenProbability;
using tests::ChiSquare;

namespace {

std::vector<float> random_logits(int n, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0F, 2.0F);
    std::vector<float> logits;
    for (int i = 0; i < n; ++i) logits.push_back(normal(random));
    return logits;
}

DrawRule rule(float temperature, std::int32_t top_k = 0, float top_p = 1.0F, float min_p = 0.0F) {
    return {temperature, top_k, top_p, min_p, 3, 10};
}

}  // namespace

TEST_CASE("a draft is drawn from the likeliest, a little sharper than the request draws, and within its cut-offs") {
    const std::vector<float> logits = random_logits(5000, 1);
    std::vector<float> sorted = logits;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (const float temperature : {0.2F, 1.0F, 3.0F}) {
        const Distribution q = drawn_from(logits, rule(temperature));
        REQUIRE(q.size() == kMostCandidates);
        double sum = 0;
        for (std::size_t i = 0; i < q.size(); ++i) {
            CHECK(logits[static_cast<std::size_t>(q[i].token)] == sorted[i]);
            const double relative = std::exp((sorted[i] - sorted[0]) / (llama::kDraftTemperature * temperature));
            CHECK(q[i].probability == doctest::Approx(q[0].probability * relative).epsilon(1e-4));
            sum += q[i].probability;
        }
        CHECK(sum == doctest::Approx(1).epsilon(1e-5));
    }
    CHECK(drawn_from(logits, rule(1, 5)).size() == 5);
    CHECK(drawn_from(logits, rule(1, 1000)).size() == kMostCandidates);
    CHECK(drawn_from(logits, rule(1, 0, 1e-6F)).size() == 1);
    CHECK(drawn_from(logits, rule(1, 0, 1.0F, 1.0F)).size() == 1);
    const Distribution all = drawn_from(logits, rule(1 / llama::kDraftTemperature));  // as the cut-offs see it
    CHECK(drawn_from(logits, rule(2, 0, all[0].probability + all[1].probability * 0.5F)).size() == 2);
    CHECK(drawn_from(logits, rule(2, 0, 1.0F, all[6].probability / all[0].probability * 0.999F)).size() == 7);
    CHECK(drawn_from(std::span(logits).first(3), rule(1)).size() == 3);
}

TEST_CASE("logits that are no numbers are not drawn, and without any nothing is drafted") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float infinity = std::numeric_limits<float>::infinity();
    const Distribution q = drawn_from(std::vector<float>{nan, 1.0F, -infinity, 1.0F, infinity}, rule(1e-6F));
    REQUIRE(q.size() == 2);
    CHECK(q[0].token == 1);
    CHECK(q[1].token == 3);
    CHECK(q[0].probability == 0.5F);
    const std::vector<float> none = {nan, -infinity};
    for (const bool draws : {false, true}) {
        DraftAsk ask{kFirst, {}, 1};
        if (draws) ask.draw = rule(1);
        Draft draft;
        CHECK_FALSE(add_token(none, ask, draft));
        CHECK(draft.tokens.empty());
        CHECK(draft.confidence.empty());
        CHECK(draft.drawn_from.empty());
    }
}

TEST_CASE("a drawn token has the chance that is claimed for it, and follows from seed and place") {
    const std::vector<float> logits = random_logits(300, 2);
    const std::vector<float> others = random_logits(300, 3);
    ChiSquare::Counts counts;
    DraftAsk ask{kFirst, {}, 2};
    ask.draw = rule(0.7F, 12);
    for (ask.draw->seed = 0; ask.draw->seed < 20000; ++ask.draw->seed) {
        Draft draft;
        REQUIRE(add_token(others, ask, draft));
        REQUIRE(add_token(logits, ask, draft));
        ++counts[draft.tokens[1]];
        DraftAsk later = ask;
        ++later.draw->index;
        Draft again;
        REQUIRE(add_token(logits, later, again));
        REQUIRE(again.tokens[0] == draft.tokens[1]);
    }
    CHECK(counts.size() == 12);
    CHECK(ChiSquare::against(counts, drawn_from(logits, *ask.draw)).excess() < 1.0);
    Draft greedy;
    REQUIRE(add_token(logits, {kFirst, {}, 1}, greedy));
    CHECK(greedy.tokens[0] == std::max_element(logits.begin(), logits.end()) - logits.begin());
    CHECK(greedy.drawn_from.empty());
}

// Else the gate would verify drafts by how they were drawn, and what rejection sampling keeps would be another text.
TEST_CASE("what a source claims of a drawn draft does not depend on what was drawn") {
    static const llama::Backend backend;
    struct Pair {
        const char* target;
        const char* draft;
        bool is_block;  // its places are drawn independently
    };
    constexpr std::int32_t kMost = 4;
    for (const Pair& pair : {Pair{"qwen3", "dflash-qwen3", true}, Pair{"qwen35", "dflash-qwen35", true},
                             Pair{"qwen3", "simple-qwen3", false}, Pair{"qwen3", "eagle3-qwen3", false},
                             Pair{"qwen35", "mtp-qwen35", false}}) {
        CAPTURE(pair.draft);
        llama::ModelOptions options;
        options.path = test_model(pair.target);
        options.n_ctx = 256;
        options.n_lanes = kLanes;
        options.n_threads = 1;
        options.n_batch = 256;
        options.n_draft_most = kMost;
        options.rollback_bytes = std::size_t{1} << 30;
        Result<llama::Model> model = llama::Model::load(options, false, [] {});
        REQUIRE(model.ok());
        llama::DraftModelOptions draft_options;
        draft_options.path = test_model(std::string("drafts/") + pair.draft);
        draft_options.n_lanes = kLanes;
        draft_options.n_most = kMost;
        Result<llama::OpenedDraft> opened = llama::open_draft_model(draft_options, model.value());
        REQUIRE_MESSAGE(opened.ok(), (opened ? "" : opened.error().text));
        speculation::DraftSource& source = *opened.value().source;

        Tokens text = some_tokens(40, 7);
        source.begin(kFirst, text, 0);
        common_batch batch(model.value().context());
        for (std::size_t i = 0; i < text.size(); ++i) {
            batch.add(text[i], static_cast<Position>(i), 0, i + 1 == text.size());
        }
        REQUIRE(llama_process(model.value().context(), LLAMA_PROCESS_TYPE_DECODE, batch.get()) == 0);
        source.follow(kFirst, text, 40, 40, 0);
        text.push_back(11);

        std::vector<Draft> drafts;
        for (std::uint64_t seed = 0; seed < 8; ++seed) {
            DraftAsk ask{kFirst, text, kMost};
            ask.draw = rule(1.5F);
            ask.draw->seed = seed;
            REQUIRE(source.draft(std::span(&ask, 1), drafts));
        }
        const auto probabilities = [](const Distribution& distribution) {
            std::vector<float> values;
            for (const TokenProbability& entry : distribution) values.push_back(entry.probability);
            return values;
        };
        bool differ = false;
        for (const Draft& draft : drafts) {
            REQUIRE(draft.tokens.size() == kMost);
            REQUIRE(draft.drawn_from.size() == kMost);
            CHECK(draft.confidence == drafts[0].confidence);
            differ = differ || draft.tokens != drafts[0].tokens;
            for (std::size_t i = 0; i < kMost; ++i) {
                const Distribution& from = draft.drawn_from[i];
                CHECK(std::any_of(from.begin(), from.end(), [&](const auto& e) { return e.token == draft.tokens[i]; }));
                if (i == 0 || pair.is_block) CHECK(probabilities(from) == probabilities(drafts[0].drawn_from[i]));
            }
        }
        CHECK(differ);
    }
}

TEST_SUITE_END();
