// Tests of what is read of a prompt: which parts, under which names, and what is remembered of it.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

#include "prefill/part_choice.h"
#include "prefill/reading_log.h"
#include "prefill/sparse_text.h"

TEST_SUITE("prefill") {

using namespace luce;
using namespace luce::prefill;

namespace {

constexpr std::int32_t kVocab = 1000;

Tokens counting(int n) {
    Tokens tokens;
    for (int i = 0; i < n; ++i) tokens.push_back(i % kVocab);
    return tokens;
}

using Spans = std::vector<PositionSpan>;

bool holds(const Spans& spans, PositionSpan wanted) {
    return std::any_of(spans.begin(), spans.end(),
                       [wanted](const auto& span) { return span.begin <= wanted.begin && wanted.end <= span.end; });
}

}  // namespace

TEST_CASE("spans are joined where they touch, and cut to the text") {
    CHECK(joined({{5, 9}, {0, 2}, {8, 12}, {2, 3}, {20, 20}, {30, 10}}, 11) == Spans{{0, 3}, {5, 11}});
    CHECK(joined({{-4, 2}}, 10) == Spans{{0, 2}});
    CHECK(joined({}, 10).empty());
    CHECK(n_in(Spans{{0, 3}, {5, 11}}) == 9);
}

TEST_CASE("memory sees the parts as one text, and RoPE each token where it stands") {
    const SparseText text(counting(100), {{0, 10}, {30, 40}, {90, 100}}, kVocab);
    CHECK(text.tokens().size() == 30);
    CHECK(text.tokens()[10] == 30);
    for (std::size_t i = 0; i < 30; ++i) CHECK(static_cast<Token>(i) + text.shifts()[i] == text.tokens()[i]);
    CHECK(text.read_position(5) == 5);
    CHECK(text.read_position(10) == 10);
    CHECK(text.read_position(20) == 10);  // left out: where the next part begins
    CHECK(text.read_position(35) == 15);
    CHECK(text.read_position(100) == 30);
    CHECK(text.read_spans(Spans{{5, 35}, {12, 20}}) == Spans{{5, 15}});
}

TEST_CASE("what stands behind a hole has names that no vocabulary has, of the hole and of the token") {
    const Tokens prompt = counting(400);
    const SparseText text(prompt, {{0, 64}, {128, 400}}, kVocab);
    const Tokens& names = text.names();
    CHECK(std::equal(names.begin(), names.begin() + 64, prompt.begin()));
    for (std::size_t i = 64; i < 68; ++i) CHECK(names[i] >= kVocab);
    CHECK(std::equal(names.begin() + 68, names.end(), prompt.begin() + 132));
    // The same hole again, another one, and another token behind it.
    CHECK(SparseText(prompt, {{0, 64}, {128, 400}}, kVocab).names() == names);
    CHECK(SparseText(prompt, {{0, 64}, {129, 400}}, kVocab).names()[64] != names[64]);
    Tokens other = prompt;
    other[128] = 7;
    CHECK(SparseText(other, {{0, 64}, {128, 400}}, kVocab).names()[64] != names[64]);
    std::set<Token> seen;
    for (int hole = 1; hole < 2000; ++hole) {
        seen.insert(SparseText(counting(2100), {{0, 1}, {1 + hole, 2100}}, kVocab).names()[1]);
    }
    CHECK(seen.size() == 1999);
}

TEST_CASE("the best pages are read until the budget is spent, with the first and the last") {
    std::vector<float> scores(100);
    scores[40] = 3;
    scores[41] = 2;
    scores[70] = 1;
    PartRules rules;
    rules.n_budget = 8 * kChunk;
    const Spans parts = choose_parts(100 * kChunk, scores, rules);
    CHECK(n_in(parts) == 8 * kChunk);
    CHECK(holds(parts, {40 * kChunk, 42 * kChunk}));
    CHECK(holds(parts, {70 * kChunk, 71 * kChunk}));
    CHECK(holds(parts, {0, kChunk}));
    CHECK(holds(parts, {96 * kChunk, 100 * kChunk}));
}

TEST_CASE("what must be read is read beyond the budget, and what was decided stays") {
    PartRules rules;
    rules.begin = 1000;
    rules.n_budget = 64;
    rules.keep = {{0, 10}, {2000, 2100}};
    const Spans parts = choose_parts(5000, {}, rules);
    CHECK(parts.front().begin >= 1000);
    CHECK(holds(parts, {2000, 2100}));
    CHECK(parts.back().end == 5000);
    CHECK(n_in(parts) < 600);
    rules.begin = 5000;
    CHECK(choose_parts(5000, {}, rules).empty());
}

TEST_CASE("a block is read whole or not at all, unless it is too large for one") {
    std::vector<float> scores(100);
    scores[50] = 5;
    PartRules rules;
    rules.n_budget = 32 * kChunk;
    rules.blocks = {{48 * kChunk, 53 * kChunk}};
    CHECK(holds(choose_parts(100 * kChunk, scores, rules), {48 * kChunk, 53 * kChunk}));
    scores[50] = 0;
    scores[48] = -1;
    for (std::size_t i = 0; i < 40; ++i) scores[i] = 1;
    const Spans without = choose_parts(100 * kChunk, scores, rules);
    for (Position i = 48; i < 53; ++i) CHECK(!holds(without, {i * kChunk, (i + 1) * kChunk}));
    scores[50] = 5;
    rules.blocks = {{41 * kChunk, 90 * kChunk}};
    CHECK(holds(choose_parts(100 * kChunk, scores, rules), {50 * kChunk, 51 * kChunk}));
    CHECK(n_in(choose_parts(100 * kChunk, scores, rules)) == 32 * kChunk);
}

TEST_CASE("parts are in order, apart, within the text and near the budget, whatever is asked") {
    std::mt19937 random(11);
    for (int round = 0; round < 300; ++round) {
        const auto n = static_cast<Position>(1 + random() % 5000);
        std::vector<float> scores(random() % 90);
        for (float& score : scores) score = static_cast<float>(random() % 100);
        PartRules rules;
        rules.begin = static_cast<Position>(random() % static_cast<unsigned>(n));
        rules.n_budget = static_cast<Position>(random() % 4000);
        for (unsigned i = random() % 4; i-- > 0;) {
            const auto begin = static_cast<Position>(random() % 6000);
            rules.keep.push_back({begin, begin + static_cast<Position>(random() % 300)});
            rules.blocks.push_back({begin + 100, begin + static_cast<Position>(random() % 900)});
        }
        const Spans parts = choose_parts(n, scores, rules);
        REQUIRE(!parts.empty());
        CHECK(parts.front().begin >= rules.begin);
        CHECK(parts.back().end == n);
        for (std::size_t i = 1; i < parts.size(); ++i) CHECK(parts[i - 1].end < parts[i].begin);
        Position n_forced = n_in(joined(rules.keep, n)) + 2 * kChunk * static_cast<Position>(rules.keep.size());
        CHECK(n_in(parts) <= std::max(rules.n_budget, n_forced + 6 * kChunk));
        for (const PositionSpan& keep : joined(rules.keep, n)) {
            if (keep.begin >= rules.begin) CHECK(holds(parts, keep));
        }
    }
}

TEST_CASE("the next turn goes on from what was read of the last one") {
    ReadingLog log(1 << 20);
    Tokens text = counting(900);
    CHECK(!log.find(text, 0.2));
    log.add(text, 900, {{0, 64}, {640, 900}}, 0.2);
    Tokens next = text;
    next.insert(next.end(), 100, 5);
    const auto found = log.find(next, 0.2);
    REQUIRE(found);
    CHECK(found->n_common == 900);
    CHECK(found->parts == Spans{{0, 64}, {640, 900}});
    // It has become part of a longer one.
    log.add(next, 1000, {{0, 64}, {640, 1000}}, 0.2);
    CHECK(log.size() == 1);
    // How an answer begins may be shown otherwise once it is there. Another question is another text.
    Tokens other = next;
    other[950] = 1;
    CHECK(log.find(other, 0.2)->parts == Spans{{0, 64}, {640, 950}});
    other[700] = 1;
    CHECK(!log.find(other, 0.2));
    CHECK(!log.find(std::span(text).first(500), 0.2));
    // Who wants more read gets more.
    CHECK(log.find(next, 0.1));
    CHECK(!log.find(next, 0.3));
}

TEST_CASE("the log forgets the oldest texts") {
    ReadingLog log(2000);
    for (Token first = 0; first < 5; ++first) {
        Tokens text = counting(900);
        text[0] = 100 + first;
        log.add(text, 900, {{0, 1}, {500, 900}}, 0.2);
    }
    CHECK(log.size() == 2);
    Tokens text = counting(900);
    text[0] = 104;
    CHECK(log.find(text, 0.2));
    text[0] = 101;
    CHECK(!log.find(text, 0.2));
}

}  // TEST_SUITE("prefill")
