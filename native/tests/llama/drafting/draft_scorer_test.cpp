// Tests of scores by a small model that reads beside the target: they do not depend on how the text came, turns go on
// from what is known of them, and what is asked for is found in another vocabulary's tokens as well.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <utility>

#include "llama/scoring/draft_scorer.h"
#include "test_paths.h"
#include "tests/llama/llama_memory.h"
#include "tests/support/volume.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::memory_tests;
using llama::DraftScorer;
using llama::ScorerOptions;

namespace {

ScorerOptions options_of(const std::string& path) {
    ScorerOptions options;
    options.path = path;
    options.n_lanes = kLanes;
    options.n_ctx = 8192;
    return options;
}

struct Reading : Setup {
    explicit Reading(const std::string& path = LUCE_TINY_SCORER, const Variant& variant = {}) : Setup(variant, 256) {
        scorer = fresh(path);
    }

    std::unique_ptr<DraftScorer> fresh(const std::string& path) const {
        Result<std::unique_ptr<DraftScorer>> loaded = DraftScorer::load(options_of(path), model);
        REQUIRE_MESSAGE(loaded.ok(), (loaded ? "" : loaded.error().text));
        return std::move(loaded).value();
    }

    std::unique_ptr<DraftScorer> scorer;
};

std::vector<float> scores_of(DraftScorer& scorer, LaneId lane, const Tokens& text) {
    const std::vector<PageKeys> pages(text.size() / kPageSize);
    REQUIRE(scorer.begin_scores(lane, text, pages));
    std::vector<float> scores = scorer.end_scores(lane);
    REQUIRE(scores.size() == pages.size());
    return scores;
}

// Keys are kept in four bits: what rounds to the other side is a sixteenth away.
void check_close(const std::vector<float>& scores, const std::vector<float>& expected) {
    REQUIRE(scores.size() == expected.size());
    for (std::size_t i = 0; i < scores.size(); ++i) CHECK(scores[i] == doctest::Approx(expected[i]).epsilon(0.1));
}

Tokens joined(Tokens text, const Tokens& more) {
    text.insert(text.end(), more.begin(), more.end());
    return text;
}

std::string other_vocabulary() { return test_model("drafts/other-vocabulary"); }

}  // namespace

TEST_CASE("scores do not depend on the steps that a text was read in") {
    for (const std::string& path : {std::string(LUCE_TINY_SCORER), other_vocabulary()}) {
        CAPTURE(path);
        Reading r(path);
        // Longer than the scorer's window.
        const Tokens text = some_tokens(1700, 3);
        for (std::size_t n = 50; n < 1600; n += 130) r.scorer->read(kFirst, std::span(text).first(n));
        (void)scores_of(*r.scorer, kFirst, Tokens(text.begin(), text.begin() + 1650));
        const std::vector<float> stepwise = scores_of(*r.scorer, kFirst, text);
        const std::unique_ptr<DraftScorer> other = r.fresh(path);
        check_close(stepwise, scores_of(*other, kSecond, text));
        // Asked again: nothing is computed.
        const std::uint64_t before = r.scorer->n_computed();
        check_close(scores_of(*r.scorer, kFirst, text), stepwise);
        CHECK(r.scorer->n_computed() == before);
    }
}

TEST_CASE("a text that is asked for again, or goes on by a few tokens, costs a few") {
    constexpr std::uint64_t kMost = 2 * kPageSize + llama::kNotedQueries;
    for (const std::string& path : {std::string(LUCE_TINY_SCORER), other_vocabulary()}) {
        CAPTURE(path);
        Reading r(path);
        const Tokens text = some_tokens(1330, 3);
        // Around the end of one of the scorer's calls (256 tokens): what has left its window then does not come back.
        for (const std::size_t n : {100, 1270, 1281, 1300, 1330}) {
            CAPTURE(n);
            const Tokens part(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(n));
            const std::vector<float> scores = scores_of(*r.scorer, kFirst, part);
            check_close(scores, scores_of(*r.fresh(path), kFirst, part));
            const std::uint64_t before = r.scorer->n_computed();
            check_close(scores_of(*r.scorer, kFirst, part), scores);
            CHECK(r.scorer->n_computed() == before);
            if (n == 1300) {
                const std::uint64_t n_few = r.scorer->n_computed();
                (void)scores_of(*r.scorer, kFirst, Tokens(text.begin(), text.begin() + 1310));
                CHECK(r.scorer->n_computed() - n_few <= kMost);
            }
        }
    }
}

TEST_CASE("queries of a text that was taken back are not asked for another") {
    Reading r;
    const Tokens text = some_tokens(700, 3);
    (void)scores_of(*r.scorer, kFirst, text);
    const Tokens shorter(text.begin(), text.begin() + 690);
    const Tokens other = joined(shorter, some_tokens(10, 91));
    check_close(scores_of(*r.scorer, kFirst, shorter), scores_of(*r.fresh(LUCE_TINY_SCORER), kFirst, shorter));
    (void)scores_of(*r.scorer, kFirst, text);
    check_close(scores_of(*r.scorer, kFirst, other), scores_of(*r.fresh(LUCE_TINY_SCORER), kFirst, other));
}

TEST_CASE("the next turn and another text with the same prefix go on from what was read") {
    for (const std::string& path : {std::string(LUCE_TINY_SCORER), other_vocabulary()}) {
        CAPTURE(path);
        Reading r(path);
        const Tokens first = some_tokens(1800, 3);
        (void)scores_of(*r.scorer, kFirst, first);
        // What is new, and where the window has moved on, what it holds.
        constexpr std::uint64_t kMost = 1024 + 600;
        const auto check_turn = [&](LaneId lane, const Tokens& text) {
            const std::uint64_t before = r.scorer->n_computed();
            const std::vector<float> scores = scores_of(*r.scorer, lane, text);
            CHECK(r.scorer->n_computed() - before <= kMost);
            const std::vector<float> expected = scores_of(*r.fresh(path), kFirst, text);
            const auto best = std::max_element(expected.begin(), expected.end()) - expected.begin();
            CHECK(scores[static_cast<std::size_t>(best)] ==
                  doctest::Approx(expected[static_cast<std::size_t>(best)]).epsilon(0.2));
        };
        // Beside it, and it goes on itself.
        check_turn(kSecond, joined(Tokens(first.begin(), first.begin() + 1600), some_tokens(150, 55)));
        check_turn(kFirst, joined(first, some_tokens(64, 77)));
        // Later, in any lane.
        r.scorer->forget(kFirst);
        r.scorer->forget(kSecond);
        check_turn(kThird, joined(first, some_tokens(100, 11)));
    }
}

TEST_CASE("cells are had by the texts of lanes, and keys stay of the others") {
    Reading r;
    std::vector<Tokens> texts;
    std::vector<std::vector<float>> scores;
    for (int i = 0; i < kLanes + 2; ++i) {
        texts.push_back(some_tokens(1100, 10 + 31 * i));
        scores.push_back(scores_of(*r.scorer, kFirst, texts.back()));
        r.scorer->forget(kFirst);
    }
    const std::size_t n_keys = r.scorer->usage().keys;
    // Its cells are gone: a window is computed again, and no keys are made anew.
    const std::uint64_t before = r.scorer->n_computed();
    check_close(scores_of(*r.scorer, kSecond, texts[0]), scores[0]);
    CHECK(r.scorer->n_computed() - before < 1100);
    CHECK(r.scorer->usage().keys == n_keys);
    CHECK(n_keys > 0);
}

TEST_CASE("park gives the scorer's memory back, and keys of before stay good") {
    Reading r;
    const Tokens text = some_tokens(700, 3);
    const std::vector<float> before = scores_of(*r.scorer, kFirst, text);
    const std::size_t n_bytes = r.scorer->usage().cells;
    CHECK(n_bytes > 0);
    CHECK(r.scorer->usage().weights > 0);
    r.scorer->unload();
    CHECK(r.scorer->usage().cells + r.scorer->usage().weights == 0);
    CHECK(!r.scorer->begin_scores(kFirst, text, std::vector<PageKeys>(10)));
    REQUIRE(r.scorer->reload());
    CHECK(r.scorer->usage().cells == n_bytes);
    check_close(scores_of(*r.scorer, kFirst, text), before);
}

TEST_CASE("the page with a fact is among the first by the scorer's own attention") {
    constexpr std::array kFiller = {"The library was quiet that evening. ", "A train left the station on time. ",
                                    "The market sold apples and bread. ",   "A dog slept by the door. ",
                                    "The teacher closed the window. ",      "Rain fell on the old roof. ",
                                    "Two boats crossed the bay. ",          "The wind moved over the hills. "};
    Reading r;
    std::mt19937_64 random(1);
    const int n_texts = luce::tests::is_full() ? 6 : 3;
    int n_found = 0;
    for (int i = 0; i < n_texts; ++i) {
        const std::string owner = std::array{"green owl", "red fox", "blue whale", "black cat"}[random() % 4];
        std::string text = "<|im_start|>user\n";
        std::size_t page = 0;
        for (int sentence = 0; sentence < 240; ++sentence) {
            text += kFiller[random() % kFiller.size()];
            if (sentence != 240 * (i + 1) / (n_texts + 2)) continue;
            text += "The access code of the " + owner + " is " + std::to_string(10000 + random() % 89999) + ". ";
            // The last tokens behind the code may begin the next page.
            page = (tokens_of(r.model, text).size() - 3) / kPageSize;
        }
        text += "\n\nWhat is the access code of the " + owner + "?<|im_end|>\n<|im_start|>assistant\n";
        const std::vector<float> scores = scores_of(*r.scorer, kFirst, tokens_of(r.model, text));
        const float score = scores[page];
        const auto n_above = std::count_if(scores.begin(), scores.end(), [score](float s) { return s > score; });
        n_found += static_cast<double>(n_above + 1) <= 0.12 * static_cast<double>(scores.size()) ? 1 : 0;
        r.scorer->forget(kFirst);
    }
    CHECK(n_found >= n_texts - 1);
}

TEST_CASE("scorers that cannot read the target's texts are refused with the reason") {
    struct Case {
        std::string scorer;
        std::string target;
        std::string says;
    };
    const std::array cases = {
        Case{test_model("no_vocab"), LUCE_TINY_MODEL, "its own vocabulary has no texts"},
        Case{LUCE_TINY_SCORER, test_model("no_vocab"), "the model's vocabulary has no texts"},
        Case{test_model("qwen35"), LUCE_TINY_MODEL, "recurrent state"},
        Case{LUCE_TINY_MODEL + std::string(".none"), LUCE_TINY_MODEL, "--kv-offload-scorer"},
    };
    for (const Case& c : cases) {
        CAPTURE(c.scorer);
        const Setup s(Variant{c.target, "q8_0"}, 256);
        const auto loaded = DraftScorer::load(options_of(c.scorer), s.model);
        REQUIRE(!loaded.ok());
        CHECK(loaded.error().text.find(c.says) != std::string::npos);
    }
    // Without texts on either side ids are all there is.
    Reading same(test_model("no_vocab"), Variant{test_model("no_vocab"), "q8_0"});
    CHECK(!scores_of(*same.scorer, kFirst, some_tokens(200, 3)).empty());
    // One with a sliding window reads as well.
    Reading windowed(test_model("gemma4"));
    const std::vector<float> scores = scores_of(*windowed.scorer, kFirst, some_tokens(400, 3));
    (void)scores_of(*windowed.scorer, kFirst, some_tokens(300, 5));
    check_close(scores_of(*windowed.scorer, kFirst, some_tokens(400, 3)), scores);
}

}  // TEST_SUITE("llama")
