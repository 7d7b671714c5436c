// Tests of drafts where a text copies another: whole passages, departures, and edits made again and again.
#include <utility>

#include "tests/speculation/ngram_decoding.h"

TEST_SUITE("speculation") {

using namespace luce;
using namespace luce::speculation;
using namespace luce::tests::ngram;

TEST_CASE("what is copied comes in whole drafts") {
    NgramLookup lookup(kMost);
    Tokens prompt = count_up(0, 2000);
    prompt.push_back(5000);
    Decoding decoding;
    decoding.run(lookup, prompt, count_up(0, 1600));
    CHECK(decoding.n_steps <= 1600 / 16 + 4);
    CHECK(decoding.n_hits == decoding.n_judged);
}

TEST_CASE("a text that repeats itself is soon drafted whole") {
    for (const int period : {1, 2, 5, 20}) {
        CAPTURE(period);
        Tokens answer;
        while (answer.size() < 800) append(answer, count_up(1, period));
        NgramLookup lookup(kMost);
        Decoding decoding;
        decoding.run(lookup, {}, answer);
        CHECK(decoding.n_steps < answer.size() / 16 + 40);
    }
}

TEST_CASE("after a departure the lane goes on where it was copying") {
    const Tokens source = count_up(0, 100);
    const auto departed = [&](std::size_t n_copied, const Tokens& own, std::size_t next) {
        Tokens prompt = source;
        prompt.push_back(5000);
        NgramLookup lookup(kMost);
        lookup.begin(kLane, prompt, 0);
        append(prompt, std::span(source).first(n_copied));
        CHECK(draft_of(lookup, prompt).tokens.front() == static_cast<Token>(n_copied));
        append(prompt, own);
        prompt.push_back(source[next]);
        return draft_of(lookup, prompt).tokens;
    };
    SUBCASE("one token for another: one equal token is enough") {
        CHECK(departed(20, {6000}, 21) == count_up(22, kMost));
        CHECK(departed(20, {6000, 6001, 6002}, 23) == count_up(24, kMost));
    }
    SUBCASE("but only on the path: beside it, it may be any token") {
        CHECK(departed(20, {6000, 6001}, 21).empty());
        CHECK(departed(20, {}, 30).empty());
    }
    SUBCASE("two for one, or some left out: where two are equal") {
        CHECK(departed(20, {6000, 6001, 21}, 22) == count_up(23, kMost));
        CHECK(departed(20, {30}, 31) == count_up(32, kMost));
    }
    SUBCASE("not before there was anything to depart from") { CHECK(departed(2, {6000}, 3).empty()); }
}

TEST_CASE("a lane that copies is not led astray by a later occurrence") {
    const Tokens source = count_up(0, 40);
    Tokens prompt = source;
    append(prompt, Tokens{500, 21, 22, 501, 502, 503});
    NgramLookup lookup(kMost);
    lookup.begin(kLane, prompt, 0);
    append(prompt, std::span(source).first(20));
    CHECK(draft_of(lookup, prompt).tokens == count_up(20, kMost));
    append(prompt, Tokens{600, 21, 22});
    CHECK(draft_of(lookup, prompt).tokens == count_up(23, kMost));
    // Without having copied, the latest occurrence it is.
    NgramLookup other(kMost);
    other.begin(kLane, prompt, 0);
    CHECK(draft_of(other, prompt).tokens.front() == 501);
}

TEST_CASE("what was changed once is expected to be changed again") {
    constexpr int kPlaces = 6;
    Tokens source, edited;
    for (int i = 0; i < kPlaces; ++i) {
        const Tokens before = count_up(1000 + 40 * i, 30);
        append(source, before);
        append(source, Tokens{7, 8});
        append(edited, before);
        append(edited, Tokens{7, 500, 501});  // as where a name becomes another one of more tokens
    }
    append(source, Tokens{5000});
    NgramLookup lookup(kMost);
    Decoding decoding;
    decoding.run(lookup, source, edited);
    // One draft fails where it was never changed before; the passage's own end may be another.
    CHECK(decoding.n_judged - decoding.n_hits <= 2);
    CHECK(decoding.n_steps < edited.size() / 16 + 20);
}

TEST_CASE("a copy that keeps what an earlier one changed is not misled for long") {
    Tokens source, edited;
    for (int i = 0; i < 8; ++i) {
        const Tokens before = count_up(1000 + 40 * i, 30);
        append(source, before);
        append(source, Tokens{8});
        append(edited, before);
        append(edited, Tokens{i == 0 ? 500 : 8});
    }
    append(source, Tokens{5000});
    NgramLookup lookup(kMost);
    Decoding decoding;
    decoding.run(lookup, source, edited);
    CHECK(decoding.n_judged - decoding.n_hits <= 3);
}

TEST_CASE("a draft is as long as what is equal allows") {
    const Tokens source = count_up(0, 200);
    for (const auto& [n_equal, n_drafted] : {std::pair{3U, 6U}, {10U, 20U}, {31U, 62U}, {40U, 64U}}) {
        Tokens text = source;
        append(text, Tokens{5000});
        append(text, std::span(source).subspan(50, n_equal));
        NgramLookup lookup(64);
        CHECK(draft_of(lookup, text, kLane, 64).tokens ==
              count_up(50 + static_cast<Token>(n_equal), static_cast<int>(n_drafted)));
    }
}

TEST_CASE("edits cost few steps") {
    std::mt19937 random(3);
    for (int round = 0; round < 5; ++round) {
        // Code: few different tokens, many short passages alike.
        const Tokens source = random_text(random, 2000, 200);
        Tokens edited;
        std::size_t n_edits = 0;
        for (std::size_t i = 0; i < source.size(); ++i) {
            if (random() % 50 != 0) {
                edited.push_back(source[i]);
                continue;
            }
            ++n_edits;
            for (std::size_t k = random() % 4; k > 0; --k) edited.push_back(1000 + static_cast<Token>(random() % 50));
        }
        NgramLookup lookup(kMost);
        Decoding decoding;
        decoding.run(lookup, source, edited);
        CHECK(decoding.n_steps < edited.size() / 16 + 5 * n_edits);
        CHECK(decoding.n_hits > edited.size() / 2);
    }
}

}  // TEST_SUITE("speculation")
