// Which pages a lane sees, as a rule: the ends stay, half of the rest is the newest, the other half matters most.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <utility>

#include "memory/residency/residency.h"

TEST_SUITE("memory") {

using namespace luce::memory;

namespace {

std::vector<PageView> pages(std::size_t n) { return std::vector<PageView>(n, PageView{true, false, std::nullopt}); }

std::vector<std::size_t> chosen(const std::vector<PageView>& views, std::size_t n_most,
                                const ResidencyRules& rules = {}) {
    const std::vector<bool> flags = choose_pages(views, n_most, rules);
    std::vector<std::size_t> indices;
    for (std::size_t i = 0; i < flags.size(); ++i) {
        if (flags[i]) indices.push_back(i);
    }
    return indices;
}

using Indices = std::vector<std::size_t>;

}  // namespace

TEST_CASE("without scores the first page and the newest stay") {
    CHECK(chosen(pages(20), 8) == Indices{0, 13, 14, 15, 16, 17, 18, 19});
    CHECK(chosen(pages(3), 8) == Indices{0, 1, 2});
    CHECK(chosen(pages(0), 8).empty());
}

TEST_CASE("of the room beside what has to stay half goes to the newest, half to what matters most") {
    std::vector<PageView> views = pages(20);
    for (std::size_t i = 0; i < 15; ++i) views[i].score = static_cast<float>(i == 3 || i == 7 ? 10 : -1);
    CHECK(chosen(views, 9) == Indices{0, 3, 7, 14, 15, 16, 17, 18, 19});
    // A score is worth more than none, whatever it is; of equals the newer stays.
    CHECK(chosen(views, 11) == Indices{0, 3, 7, 12, 13, 14, 15, 16, 17, 18, 19});
}

TEST_CASE("what has to stay does so, even where there is no room for it") {
    std::vector<PageView> views = pages(20);
    views[5].is_pinned = true;
    CHECK(chosen(views, 0) == Indices{0, 5, 16, 17, 18, 19});
    CHECK(chosen(views, 0, ResidencyRules{0, 1, 64}) == Indices{5, 19});
}

TEST_CASE("the first to go is the oldest that nobody asked for, then what matters least") {
    std::vector<PageView> views = pages(20);
    const ResidencyRules rules;
    CHECK(first_to_go(views, rules) == 1);
    views[1].is_pinned = true;
    views[2].is_seen = false;
    CHECK(first_to_go(views, rules) == 3);
    for (std::size_t i = 3; i < 12; ++i) views[i].score = static_cast<float>(100 - i);
    views[6].score = -3.0F;
    CHECK(first_to_go(views, rules) == 6);
    // The newer half goes last, and from its oldest on.
    for (std::size_t i = 2; i < 12; ++i) views[i].is_seen = false;
    CHECK(first_to_go(views, rules) == 12);
    CHECK(!first_to_go(pages(5), rules));
    CHECK(!first_to_go(pages(0), rules));
}

TEST_CASE("random views: as many as asked for, what has to stay among them, and going agrees with choosing") {
    std::mt19937_64 random(5);
    for (int round = 0; round < 2000; ++round) {
        const ResidencyRules rules{random() % 3, random() % 6, 64};
        std::vector<PageView> views = pages(random() % 40);
        std::size_t n_must = 0;
        for (std::size_t i = 0; i < views.size(); ++i) {
            views[i].is_seen = random() % 3 != 0;
            views[i].is_pinned = random() % 10 == 0;
            if (random() % 2 == 0) views[i].score = static_cast<float>(random() % 7);
        }
        for (std::size_t i = 0; i < views.size(); ++i) n_must += has_to_stay(views, i, rules) ? 1 : 0;
        const std::size_t n_most = random() % 45;
        const std::vector<bool> flags = choose_pages(views, n_most, rules);
        std::size_t n_chosen = 0;
        for (std::size_t i = 0; i < views.size(); ++i) {
            n_chosen += flags[i] ? 1 : 0;
            if (has_to_stay(views, i, rules)) REQUIRE(flags[i]);
        }
        REQUIRE(n_chosen == std::min(views.size(), std::max(n_most, n_must)));
        const std::optional<std::size_t> first = first_to_go(views, rules);
        bool can_go = false;
        for (std::size_t i = 0; i < views.size(); ++i)
            can_go = can_go || (views[i].is_seen && !has_to_stay(views, i, rules));
        REQUIRE(first.has_value() == can_go);
        if (first) REQUIRE((views[*first].is_seen && !has_to_stay(views, *first, rules)));
    }
}

TEST_CASE("a plan lets in what matters most, in the place of what matters least, and no more than it may") {
    std::vector<PageView> views = pages(10);
    for (const std::size_t i : {2, 3, 4}) views[i].is_seen = false;
    for (std::size_t i = 0; i < views.size(); ++i) views[i].score = static_cast<float>(i);
    std::vector<bool> wanted(10, true);
    for (const std::size_t i : {1, 5}) wanted[i] = false;
    const auto told = [&](std::size_t n_most) {
        std::vector<std::pair<int, int>> moves;
        for (const PageMove& move : plan_moves(views, wanted, n_most)) {
            moves.emplace_back(move.out ? static_cast<int>(*move.out) : -1, static_cast<int>(move.in));
        }
        return moves;
    };
    using Moves = std::vector<std::pair<int, int>>;
    CHECK(told(9) == Moves{{-1, 4}, {1, 3}, {5, 2}});  // three for two: there is room for one
    CHECK(told(2) == Moves{{-1, 4}, {1, 3}});
    CHECK(told(0).empty());
    wanted[4] = wanted[3] = false;
    CHECK(told(9) == Moves{{1, 2}});  // what nobody takes the place of may stay
    CHECK(plan_moves(pages(3), std::vector<bool>(3, true), 3).empty());
}

TEST_CASE("a plan that is carried out leaves what was chosen") {
    std::mt19937 random(5);
    for (int round = 0; round < 2000; ++round) {
        std::vector<PageView> views = pages(1 + random() % 40);
        for (PageView& view : views) {
            view.is_seen = random() % 2 == 0;
            if (random() % 4 != 0) view.score = static_cast<float>(random() % 100);
        }
        const auto n_seen = static_cast<std::size_t>(
            std::count_if(views.begin(), views.end(), [](const PageView& view) { return view.is_seen; }));
        const std::size_t n_room = random() % 4;
        const std::vector<bool> wanted = choose_pages(views, n_seen + n_room, {});
        std::vector<bool> seen;
        for (const PageView& view : views) seen.push_back(view.is_seen);
        std::size_t n = n_seen;
        for (const PageMove& move : plan_moves(views, wanted, views.size())) {
            if (move.out) {
                CHECK(seen[*move.out]);
                seen[*move.out] = false;
                --n;
            }
            CHECK_FALSE(seen[move.in]);
            seen[move.in] = true;
            ++n;
        }
        for (std::size_t i = 0; i < views.size(); ++i) CHECK((!wanted[i] || seen[i]));
        CHECK(n <= std::max<std::size_t>(n_seen + n_room, 5));
    }
}

}  // TEST_SUITE("memory")
