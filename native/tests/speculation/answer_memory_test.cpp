// Earlier answers as what a draft is copied from.
#include <doctest/doctest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "speculation/ngram/answer_memory.h"
#include "speculation/ngram/ngram_lookup.h"

using namespace luce;
using namespace luce::speculation;

TEST_SUITE("speculation") {

namespace {

constexpr LaneId kLane{0};
constexpr std::int32_t kMost = 15;

Tokens joined(std::initializer_list<Tokens> parts) {
    Tokens all;
    for (const Tokens& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
}

Tokens draft_of(NgramLookup& lookup, const Tokens& text) {
    lookup.begin(kLane, text, 0);
    const DraftAsk ask{kLane, text, kMost};
    std::vector<Draft> drafts;
    REQUIRE(lookup.draft(std::span(&ask, 1), drafts));
    return drafts.front().tokens;
}

const Tokens kTurn = {1, 2, 3, 4, 5, 6, 7, 8};  // what stands before each answer

}  // namespace

TEST_CASE("an answer is drafted from earlier ones, up to their end and no further") {
    NgramLookup lookup(kMost);
    const Tokens frame = {100, 101, 102, 103}, end = {104, 105};
    const auto n_prompt = [](const Tokens& prompt) { return static_cast<std::int32_t>(prompt.size()); };
    const Tokens first = joined({{50, 51, 52}, kTurn}), second = joined({{60, 61}, kTurn});
    CHECK(draft_of(lookup, joined({first, {100}})).empty());
    lookup.answered(joined({first, frame, {70}, end}), n_prompt(first));
    CHECK(draft_of(lookup, joined({second, {100}})) == joined({{101, 102, 103}, {70}, end}));
    SUBCASE("where they part, what most of them went on with") {
        lookup.answered(joined({second, frame, {71}, end}), n_prompt(second));
        lookup.answered(joined({second, frame, {71}, end}), n_prompt(second));
        CHECK(draft_of(lookup, joined({first, {100, 101}})) == joined({{102, 103}, {71}, end}));
    }
    SUBCASE("prompts are nobody's answer") {
        CHECK(draft_of(lookup, joined({{40, 41, 42, 43, 44}, {50, 51}})).empty());
    }
    SUBCASE("what the text itself shows better comes first") {
        const Tokens shown = joined({frame, {72, 73, 74}});
        CHECK(draft_of(lookup, joined({{30, 31, 32, 33}, shown, {30, 31, 32, 33}, frame})) ==
              joined({{72, 73, 74}, {30, 31, 32, 33}, frame}));
    }
}

TEST_CASE("who keeps no answers drafts from none") {
    NgramLookup lookup(kMost, 2, false);
    lookup.answered(joined({kTurn, {100, 101, 102}}), static_cast<std::int32_t>(kTurn.size()));
    CHECK(draft_of(lookup, joined({kTurn, {100}})).empty());
}

TEST_CASE("answers are forgotten, the oldest first, and memory has an end") {
    AnswerMemory answers(2, 8);
    std::size_t n_most = 0;
    for (Token i = 0; i < 3000; ++i) {
        answers.add(joined({kTurn, {10 + i, 11 + i, 12 + i, 13 + i, 14 + i}}), 8);
        n_most = std::max(n_most, answers.text().size());
    }
    CHECK(n_most <= 1U << 14U);
    const auto is_known = [&](Token i) {
        const Tokens end = {10 + i, 11 + i, 12 + i};
        Place place = answers.shorter().latest_like(end);
        while (place != 0 && answers.text()[place - 1] != end.back()) place = answers.shorter().before(place);
        return place != 0;
    };
    CHECK(is_known(2990));
    CHECK_FALSE(is_known(3));
    answers.add(Tokens(100000, 7), 10);  // longer than all that is kept
    CHECK(answers.text().size() <= 1U << 14U);
    answers.add({}, 0);
    answers.add(kTurn, 100);
    answers.add(kTurn, -5);
}

}  // TEST_SUITE("speculation")
