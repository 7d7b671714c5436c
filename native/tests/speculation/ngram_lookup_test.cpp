// Tests of drafts from the text itself: against a plain search, while copying and editing, and what is learnt of them.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "speculation/ngram/ngram_index.h"
#include "speculation/ngram/ngram_lookup.h"

TEST_SUITE("speculation") {

using namespace luce;
using namespace luce::speculation;

namespace {

constexpr auto kLane = static_cast<LaneId>(0);
constexpr std::int32_t kMost = 15;
constexpr std::size_t kLeast = 2;

std::int32_t size_of(std::span<const Token> text) { return static_cast<std::int32_t>(text.size()); }

Draft draft_of(NgramLookup& lookup, std::span<const Token> text, LaneId lane = kLane, std::int32_t n_most = kMost) {
    const DraftAsk ask{lane, text, n_most};
    std::vector<Draft> drafts;
    REQUIRE(lookup.draft(std::span(&ask, 1), drafts));
    REQUIRE(drafts.size() == 1);
    CHECK(drafts[0].lane == lane);
    CHECK(drafts[0].tokens.size() == drafts[0].confidence.size());
    return drafts[0];
}

// The first draft for a text, by a lookup that has seen nothing else.
Tokens first_draft(std::span<const Token> text) {
    NgramLookup lookup(kMost);
    lookup.begin(kLane, text, 0);
    return draft_of(lookup, text).tokens;
}

Tokens count_up(Token first, int n) {
    Tokens tokens(static_cast<std::size_t>(n));
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
}

void append(Tokens& text, std::span<const Token> more) { text.insert(text.end(), more.begin(), more.end()); }

// Random tokens in which passages come again, some of them with a token changed.
Tokens random_text(std::mt19937& random, std::size_t n, Token n_vocab) {
    Tokens text;
    while (text.size() < n) {
        if (text.size() < 4 || random() % 3 == 0) {
            text.push_back(static_cast<Token>(random()) % n_vocab);
            continue;
        }
        const std::size_t from = random() % text.size();
        const std::size_t n_copied = 1 + random() % std::min<std::size_t>(40, text.size() - from);
        for (std::size_t i = 0; i < n_copied; ++i) text.push_back(text[from + i]);
        if (random() % 4 == 0) text.back() = static_cast<Token>(random()) % n_vocab;
    }
    text.resize(n);
    return text;
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
        for (std::vector<std::size_t> at = places; draft.size() < static_cast<std::size_t>(kMost);) {
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

// Decodes `answer` after `prompt` as an engine does, all that is proposed being verified.
struct Decoding {
    std::size_t n_steps = 0;
    std::size_t n_drafts = 0;
    std::size_t n_judged = 0;  // drafted tokens whose predecessors were right
    std::size_t n_hits = 0;
    double sum_of_confidence = 0.0;  // of those judged

    void run(NgramLookup& lookup, Tokens text, std::span<const Token> answer, LaneId lane = kLane) {
        lookup.begin(lane, text, 0);
        lookup.follow(lane, text, size_of(text), size_of(text), 0);
        while (!answer.empty()) {
            const Draft draft = draft_of(lookup, text, lane);
            std::size_t n_right = 0;
            while (n_right < draft.tokens.size() && n_right < answer.size() && draft.tokens[n_right] == answer[n_right])
                ++n_right;
            const std::size_t n_known = std::min({n_right + 1, draft.tokens.size(), answer.size()});
            for (std::size_t i = 0; i < n_known; ++i) sum_of_confidence += static_cast<double>(draft.confidence[i]);
            n_judged += n_known;
            n_hits += n_right;
            n_drafts += draft.tokens.empty() ? 0 : 1;
            ++n_steps;
            const std::size_t n_new = std::min(n_right + 1, answer.size());
            append(text, answer.first(n_new));
            answer = answer.subspan(n_new);
            lookup.follow(lane, text, size_of(text) - 1, static_cast<std::int32_t>(n_new), 0);
        }
    }
};

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
    CHECK(first_draft(prompt).front() == 501);
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
        REQUIRE(draft.tokens.size() == static_cast<std::size_t>(kMost));
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
                CHECK(stands_in(text, draft.tokens));
                for (const float confidence : draft.confidence) CHECK((confidence > 0.0F && confidence < 1.0F));
            }
        }
    }
}

}  // TEST_SUITE("speculation")
