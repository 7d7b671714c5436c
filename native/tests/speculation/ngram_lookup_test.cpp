// Tests of drafts from the text itself: against a plain search, while copying and editing, and what is learnt of them.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "speculation/ngram/ngram_index.h"
#include "speculation/ngram/ngram_lookup.h"
#include "tests/speculation/ngram_decoding.h"

TEST_SUITE("speculation") {

using namespace luce;
using namespace luce::speculation;
using namespace luce::tests::ngram;

namespace {

constexpr std::size_t kLeast = 2;

// The first draft for a text, by a lookup that has seen nothing else.
Tokens first_draft(std::span<const Token> text) {
    NgramLookup lookup(kMost);
    lookup.begin(kLane, text, 0);
    return draft_of(lookup, text).tokens;
}

std::size_t n_equal_at(const Tokens& text, std::size_t place) {
    std::size_t n = 0;
    while (n < std::min<std::size_t>(place, 32) && text[place - 1 - n] == text[text.size() - 1 - n]) ++n;
    return n;
}

// What a lookup proposes, by comparing with every place. `n_places`: where the shortest end stood before.
struct Reference {
    explicit Reference(const Tokens& text) {
        std::size_t n_equal = kLeast;
        for (std::size_t place = text.size(); place-- > 1;) {
            const std::size_t n = n_equal_at(text, place);
            if (n >= kLeast) ++n_places;
            if (n < n_equal) continue;
            if (n > n_equal) places.clear();
            n_equal = n;
            places.push_back(place);
        }
        const std::size_t n_most = n_equal < 32 ? 2 * n_equal : kMost;  // chance ends soon
        for (std::vector<std::size_t> at = places; draft.size() < std::min<std::size_t>(kMost, n_most);) {
            std::erase_if(at, [&](std::size_t place) { return place == text.size(); });
            if (at.empty()) break;
            const auto n_votes = [&](std::size_t place) {
                return std::count_if(at.begin(), at.end(),
                                     [&](std::size_t other) { return text[other] == text[place]; });
            };
            const auto is_less = [&](std::size_t a, std::size_t b) { return n_votes(a) < n_votes(b); };
            const Token token = text[*std::max_element(at.begin(), at.end(), is_less)];
            std::erase_if(at, [&](std::size_t place) { return text[place] != token; });
            for (std::size_t& place : at) ++place;
            draft.push_back(token);
        }
    }

    std::vector<std::size_t> places;
    std::size_t n_places = 0;
    Tokens draft;
};

bool stands_in(const Tokens& text, const Tokens& draft) {
    return std::search(text.begin(), text.end(), draft.begin(), draft.end()) != text.end();
}

}  // namespace

TEST_CASE("a lookup says what it is") {
    const NgramLookup lookup(kMost);
    CHECK(lookup.traits().name == "ngram");
    CHECK(lookup.traits().is_free);
    CHECK(lookup.traits().n_most == kMost);
}

TEST_CASE("the longest end that stood before is found, as by comparing with every place") {
    std::mt19937 random(1);
    int n_exact = 0;
    int n_other = 0;
    int n_voted = 0;
    for (int round = 0; round < 3000; ++round) {
        const Token n_vocab = 5 + static_cast<Token>(random() % 300);
        const Tokens text = random_text(random, 2 + random() % 500, n_vocab);
        const Reference reference(text);
        const Tokens draft = first_draft(text);
        CHECK(draft.empty() == reference.draft.empty());
        CHECK(stands_in(text, draft));
        if (reference.n_places > 10) continue;
        n_other += draft != reference.draft ? 1 : 0;
        n_exact += draft.empty() ? 0 : 1;
        n_voted += reference.places.size() > 2 ? 1 : 0;
    }
    CHECK(n_exact > 500);
    CHECK(n_voted > 50);
    // Only so many places are looked at, those of ngrams with the same hash among them.
    CHECK(n_other < n_exact / 100);
}

TEST_CASE("a text is known the same however it came") {
    std::mt19937 random(2);
    int n_drafts = 0;
    for (int round = 0; round < 300; ++round) {
        const Tokens text = random_text(random, 50 + random() % 300, 40);
        NgramLookup lookup(kMost);
        const bool is_restored = round % 2 == 0;
        std::size_t n = is_restored ? random() % text.size() : 0;
        lookup.begin(kLane, text, static_cast<std::int32_t>(n));
        while (n < text.size() - 1) {
            const std::size_t n_new = 1 + random() % std::min<std::size_t>(32, text.size() - 1 - n);
            n += n_new;
            lookup.follow(kLane, text, static_cast<std::int32_t>(n), static_cast<std::int32_t>(n_new), 0);
        }
        const Tokens draft = draft_of(lookup, text).tokens;
        CHECK(draft == first_draft(text));
        n_drafts += draft.empty() ? 0 : 1;
    }
    CHECK(n_drafts > 100);
}

TEST_CASE("a draft ends with the text that it is copied from") {
    CHECK(first_draft(Tokens{1, 2, 3, 1, 2}) == Tokens{3, 1, 2});
    CHECK(first_draft(Tokens{1, 2, 3, 4}).empty());
    CHECK(first_draft(Tokens{5, 5, 5}) == Tokens{5});
    CHECK(first_draft(Tokens(100, 5)) == Tokens(kMost, 5));
}

TEST_CASE("most occurrences win, and of as many the latest") {
    CHECK(first_draft(Tokens{7, 8, 1, 7, 8, 1, 7, 8, 2, 9, 7, 8}).front() == 1);
    CHECK(first_draft(Tokens{7, 8, 1, 9, 7, 8, 2, 9, 9, 7, 8}).front() == 2);
    // Where they part later on, the latest is followed.
    const Tokens draft = first_draft(Tokens{1, 7, 8, 1, 3, 2, 7, 8, 1, 4, 3, 7, 8});
    CHECK(Tokens(draft.begin(), draft.begin() + 2) == Tokens{1, 4});
}

TEST_CASE("no more is proposed than was asked for") {
    NgramLookup lookup(4);
    const Tokens text(50, 1);
    CHECK(draft_of(lookup, text, kLane, 100).tokens.size() == 4);
    CHECK(draft_of(lookup, text, kLane, 3).tokens.size() == 3);
    CHECK(draft_of(lookup, text, kLane, 0).tokens.empty());
    CHECK(draft_of(lookup, text, kLane, -1).tokens.empty());
}

TEST_CASE("where nothing comes again nothing is proposed") {
    std::mt19937 random(4);
    NgramLookup lookup(kMost);
    Tokens text(3000);
    for (Token& token : text) token = static_cast<Token>(random() % 150'000);
    Decoding decoding;
    decoding.run(lookup, {}, text);
    CHECK(decoding.n_drafts < 10);
}

TEST_CASE("what is never right is not proposed any more, in no lane, until it is right again") {
    std::mt19937 random(5);
    NgramLookup lookup(kMost);
    // Every pair comes again and again, and says nothing about what follows.
    Tokens noise(6000);
    for (Token& token : noise) token = static_cast<Token>(random() % 40);
    Decoding first;
    first.run(lookup, {}, std::span(noise).first(3000));
    CHECK(first.n_drafts > 100);
    Decoding second;
    second.run(lookup, {}, std::span(noise).last(3000), static_cast<LaneId>(1));
    CHECK(second.n_drafts < first.n_drafts / 2);
    // A long copy is another matter, and stays so.
    Tokens prompt = noise;
    Decoding third;
    third.run(lookup, prompt, std::span(noise).subspan(1000, 1000));
    CHECK(third.n_steps < 1000 / 16 + 10);
    // Pairs that are followed by the same token after all.
    Decoding fourth;
    for (int round = 0; round < 40; ++round) {
        Tokens pairs;
        for (int i = 0; i < 200; ++i) {
            const Token pair = static_cast<Token>(random() % 50) * 3;
            append(pairs, Tokens{pair, pair + 1, pair + 2, 500 + static_cast<Token>(random() % 5000)});
        }
        fourth = {};
        fourth.run(lookup, {}, pairs);
    }
    CHECK(fourth.n_hits > 50);
}

TEST_CASE("confidence is how often such proposals are right") {
    std::mt19937 random(6);
    for (const unsigned one_in : {4U, 10U, 40U}) {
        CAPTURE(one_in);
        NgramLookup lookup(kMost);
        Decoding decoding;
        for (int round = 0; round < 12; ++round) {
            const Tokens source = count_up(0, 1000);
            Tokens noisy = source;
            for (Token& token : noisy)
                token = random() % one_in == 0 ? 5000 + static_cast<Token>(random() % 500) : token;
            if (round == 4) decoding = {};  // what came before was to learn from
            decoding.run(lookup, source, noisy);
        }
        const auto n = static_cast<double>(decoding.n_judged);
        CHECK(n > 3000.0);
        CHECK(decoding.sum_of_confidence / n ==
              doctest::Approx(static_cast<double>(decoding.n_hits) / n).epsilon(0.03));
    }
}

TEST_CASE("a longer match is worth more, and no token of a draft is certain") {
    Tokens text = count_up(0, 100);
    float before = 0.0F;
    for (const std::size_t n : {2U, 4U, 8U, 20U, 40U}) {
        Tokens copy = text;
        append(copy, std::span(text).subspan(50 - n, n));
        NgramLookup lookup(kMost);
        const Draft draft = draft_of(lookup, copy);
        REQUIRE(draft.tokens.size() == std::min<std::size_t>(kMost, 2 * n));
        CHECK(draft.confidence.front() > before);
        CHECK(draft.confidence.back() < 1.0F);
        before = draft.confidence.front();
    }
}

TEST_CASE("lanes do not see each other's texts") {
    std::mt19937 random(7);
    NgramLookup shared(kMost);
    std::vector<Tokens> texts;
    for (int i = 0; i < 4; ++i) texts.push_back(random_text(random, 400, 60));
    int n_drafts = 0;
    for (std::size_t n = 1; n <= 400; n += 1 + random() % 5) {
        std::vector<DraftAsk> asks;
        for (std::size_t i = 0; i < texts.size(); ++i)
            asks.push_back({static_cast<LaneId>(i), std::span(texts[i]).first(n), kMost});
        std::vector<Draft> drafts;
        REQUIRE(shared.draft(asks, drafts));
        REQUIRE(drafts.size() == asks.size());
        for (std::size_t i = 0; i < asks.size(); ++i) {
            CHECK(drafts[i].lane == asks[i].lane);
            const Tokens seen(asks[i].text.begin(), asks[i].text.end());
            CHECK(stands_in(seen, drafts[i].tokens));
            n_drafts += drafts[i].tokens.empty() ? 0 : 1;
        }
    }
    CHECK(n_drafts > 100);
    // A lane that begins anew knows nothing of what it was.
    shared.begin(kLane, {}, 0);
    CHECK(draft_of(shared, Tokens{texts[0][10], texts[0][11]}).tokens.empty());
}

TEST_CASE("a long text is made known bit by bit") {
    Tokens text = count_up(0, 200'000);
    append(text, count_up(190'000, 8));
    NgramLookup lookup(kMost);
    lookup.begin(kLane, text, 200'000);
    CHECK(draft_of(lookup, text).tokens.empty());
    for (int i = 0; i < 3; ++i) lookup.follow(kLane, text, size_of(text) - 1, 1, 0);
    CHECK(draft_of(lookup, text).tokens == count_up(190'008, kMost));
}

TEST_CASE("a token costs at most sixteen bytes, and nothing once the lane is empty") {
    std::mt19937 random(8);
    NgramLookup lookup(kMost);
    for (const std::size_t n : {1U, 100U, 3000U, 50'000U, 65'000U}) {
        for (const Token n_vocab : {1, 1000}) {
            const Tokens text = random_text(random, n, n_vocab);
            lookup.begin(kLane, text, 0);
            draft_of(lookup, text);
            CHECK(lookup.n_bytes(kLane) >= 8 * n);
            CHECK(lookup.n_bytes(kLane) <= 16 * n + 4096);
        }
    }
    lookup.forget(kLane);
    CHECK(lookup.n_bytes(kLane) == 0);
    lookup.forget(kLane);
    CHECK(draft_of(lookup, Tokens{1, 2, 3, 1, 2}).tokens.size() == 3);
}

TEST_CASE("places of a ngram are linked from the latest to the earliest") {
    std::mt19937 random(9);
    const Tokens text = random_text(random, 5000, 30);
    NgramIndex index(3);
    for (std::size_t n = 0; n <= text.size(); n += 1 + random() % 700) {
        index.extend(text, n);
        CHECK(index.n_known() == n);
        std::vector<std::size_t> expected;
        for (std::size_t place = std::min(n, text.size() - 1); place >= 3; --place) {
            if (std::equal(text.begin() + static_cast<std::ptrdiff_t>(place) - 3,
                           text.begin() + static_cast<std::ptrdiff_t>(place), text.end() - 3))
                expected.push_back(place);
        }
        std::vector<std::size_t> linked;
        Place last = std::numeric_limits<Place>::max();
        for (Place place = index.latest(text); place != 0; place = index.before(place)) {
            CHECK(place < last);
            last = place;
            if (n_equal_at(text, place) >= 3) linked.push_back(place);
        }
        CHECK(linked == expected);
    }
}

TEST_CASE("nothing that it is told makes it fail") {
    std::mt19937 random(10);
    constexpr Token kLowest = std::numeric_limits<Token>::min();
    constexpr Token kHighest = std::numeric_limits<Token>::max();
    const std::vector<Token> values = {kLowest, -1, 0, 1, kHighest};
    const std::vector<std::int32_t> numbers = {std::numeric_limits<std::int32_t>::min(), -1, 0, 1, 20, kHighest};
    NgramLookup lookup(kMost);
    Tokens text;
    for (int round = 0; round < 20'000; ++round) {
        const auto lane = static_cast<LaneId>(static_cast<std::int32_t>(random() % 3) - 1);
        if (random() % 50 == 0) text.resize(random() % (text.size() + 1));       // shrinks
        if (random() % 50 == 0) std::shuffle(text.begin(), text.end(), random);  // becomes another one
        for (std::size_t i = random() % 8; i > 0; --i) text.push_back(values[random() % values.size()]);
        const std::int32_t a = numbers[random() % numbers.size()];
        const std::int32_t b = numbers[random() % numbers.size()];
        switch (random() % 8) {
            case 0: lookup.begin(lane, text, a); break;
            case 1: lookup.forget(lane); break;
            case 2:
            case 3: lookup.follow(lane, text, a, b, a); break;
            default: {
                const Draft draft = draft_of(lookup, text, lane, a);
                CHECK(draft.tokens.size() <= static_cast<std::size_t>(std::clamp(a, 0, kMost)));
                for (const Token token : draft.tokens) CHECK(stands_in(text, {token}));
                for (const float confidence : draft.confidence) CHECK((confidence > 0.0F && confidence < 1.0F));
            }
        }
    }
}

}  // TEST_SUITE("speculation")
