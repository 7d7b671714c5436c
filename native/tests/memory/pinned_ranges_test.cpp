// PinnedRanges as page sets: outwards, joined, and the same as marking each page one by one.
#include <doctest/doctest.h>

#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "memory/residency/pinned_ranges.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::memory;

namespace {

PinnedRanges pins(std::vector<PositionSpan> spans, const std::vector<PositionSpan>& more = {}) {
    return PinnedRanges(spans, more);
}

std::vector<std::pair<Position, Position>> spans(const PinnedRanges& pins) {
    std::vector<std::pair<Position, Position>> all;
    for (const PositionSpan& span : pins.spans()) all.emplace_back(span.begin, span.end);
    return all;
}

using Spans = std::vector<std::pair<Position, Position>>;

}  // namespace

TEST_CASE("pins are rounded outwards and joined where they touch") {
    CHECK(spans(pins({{0, 1}})) == Spans{{0, 64}});
    CHECK(spans(pins({{63, 65}})) == Spans{{0, 128}});
    CHECK(spans(pins({{64, 128}})) == Spans{{64, 128}});
    CHECK(spans(pins({{300, 301}, {0, 64}, {64, 70}})) == Spans{{0, 128}, {256, 320}});
    CHECK(spans(pins({{0, 500}, {100, 200}})) == Spans{{0, 512}});
    CHECK(spans(pins({{0, 64}}, {{32, 192}})) == Spans{{0, 192}});
}

TEST_CASE("what is empty pins nothing") {
    CHECK(spans(PinnedRanges()).empty());
    CHECK(!PinnedRanges().holds(0));
    CHECK(PinnedRanges().n_from(0) == 0);
    CHECK(spans(pins({{5, 5}, {9, 3}})).empty());
}

TEST_CASE("the last positions that there are do not overflow") {
    const Position last = std::numeric_limits<Position>::max();
    const PinnedRanges end = pins({{last - 1, last}, {0, last}});
    CHECK(end.holds(0));
    CHECK(end.n_from(0) == static_cast<std::size_t>(last) / 64);
}

TEST_CASE("random pins are those pages, whichever way they are asked for") {
    std::mt19937_64 random(3);
    for (int round = 0; round < 3000; ++round) {
        std::vector<bool> expected(40);
        std::vector<PositionSpan> given;
        for (std::size_t i = random() % 5; i > 0; --i) {
            const auto begin = static_cast<Position>(random() % (40 * 64));
            const auto end = static_cast<Position>(random() % (40 * 64 + 1));
            given.push_back({begin, end});
            for (Position p = begin; p < end; ++p) expected[static_cast<std::size_t>(p / 64)] = true;
        }
        const PinnedRanges made = pins(given);
        std::size_t n = 0;
        for (std::size_t page = expected.size(); page-- > 0;) {
            n += expected[page] ? 1 : 0;
            REQUIRE(made.holds(page) == expected[page]);
            REQUIRE(made.n_from(page) == n);
        }
        REQUIRE(!made.holds(40));
        REQUIRE(spans(pins(made.spans())) == spans(made));
    }
}

}  // TEST_SUITE("memory")
