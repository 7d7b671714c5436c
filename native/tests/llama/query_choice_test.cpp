// Tests of what scores are for: they find the page that a question asks for, beside what is computed.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>

#include "tests/llama/query_scored.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::memory_tests;

TEST_CASE("scores are found beside computations, of several lanes at once, and can be given up") {
    Scored s;
    const Tokens text = some_tokens(200, 3);
    std::vector<PageKeys> pages;
    for (const LaneId lane : {kFirst, kSecond, kThird}) {
        s.compute(lane, text);
        if (pages.empty()) pages = s.keys_of(s.take(lane, text));
        s.scorer->watch(lane, true);
        s.go_on(lane, 200);
    }
    // Many pages, so that it takes a while.
    std::vector<PageKeys> many;
    while (many.size() < 600) many.insert(many.end(), pages.begin(), pages.end());
    for (const LaneId lane : {kFirst, kSecond, kThird}) REQUIRE(s.scorer->begin_scores(lane, {}, many));
    s.go_on(kFirst, 205);
    s.scorer->forget(kSecond);
    const std::vector<float> third = s.scorer->end_scores(kThird);
    const std::vector<float> first = s.scorer->end_scores(kFirst);
    REQUIRE(first.size() == many.size());
    // All lanes asked the same of the same.
    REQUIRE(third.size() == many.size());
    for (std::size_t i = 0; i < first.size(); ++i) CHECK(first[i] == doctest::Approx(third[i]).epsilon(0.1));
    CHECK(!s.scorer->begin_scores(kSecond, {}, many));
    // What was computed meanwhile is asked next.
    CHECK(s.scorer->begin_scores(kFirst, {}, pages));  // and never waited for: its end is the scorer's
}

TEST_CASE("the page with a fact is among the first when the question comes to it") {
    struct Fact {
        std::string owner;
        std::string code;
        std::size_t page = 0;
    };
    constexpr std::array kFiller = {"The library was quiet that evening. ", "A train left the station on time. ",
                                    "The market sold apples and bread. ",   "A dog slept by the door. ",
                                    "The teacher closed the window. ",      "Rain fell on the old roof. ",
                                    "Two boats crossed the bay. ",          "The wind moved over the hills. "};
    Scored s({}, 4096);
    std::vector<Fact> facts = {{"green owl", "73105"}, {"blue whale", "90417"}, {"black cat", "15926"}};
    std::string before = "<|im_start|>user\n";
    for (std::size_t i = 0; i < 320; ++i) {
        before += kFiller[i * i * 7 % 31 % kFiller.size()];
        if (i % 100 != 50) continue;
        Fact& fact = facts[i / 100];
        before += "The access code of the " + fact.owner + " is " + fact.code + ". ";
        // The last tokens behind the code may begin the next page.
        fact.page = (tokens_of(s.model, before).size() - 3) / kPageSize;
    }
    const Tokens text = tokens_of(s.model, before);
    for (std::size_t begin = 0; begin < text.size(); begin += 256) {
        s.decode(kFirst, static_cast<Position>(begin),
                 std::span(text).subspan(begin, std::min<std::size_t>(256, text.size() - begin)));
    }
    const auto end = static_cast<Position>(text.size());
    const Snapshot snapshot = s.take(kFirst, text);
    const std::vector<PageKeys> pages = s.keys_of(snapshot);
    REQUIRE(pages.size() > 30);
    for (const Fact& fact : facts) {
        CAPTURE(fact.owner);
        s.scorer->watch(kFirst, true);
        s.decode(kFirst, end,
                 tokens_of(s.model,
                           "\nWhat is the access code of the " + fact.owner + "?<|im_end|>\n<|im_start|>assistant\n"));
        const std::vector<float> scores = scores_of(s, kFirst, pages);
        REQUIRE(scores.size() == pages.size());
        const float score = scores[fact.page];
        const auto n_above = static_cast<double>(
            std::count_if(scores.begin(), scores.end(), [score](float other) { return other > score; }));
        CHECK(n_above + 1 <= 0.12 * static_cast<double>(pages.size()));
        REQUIRE(s.device.return_to(kFirst, end, snapshot.state));
    }
}

}  // TEST_SUITE("llama")
