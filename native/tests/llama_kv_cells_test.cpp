// Tests of whose the cells are: held, shown, hidden, written and computed in any order, they are free when nobody has
// them and the lowest free ones go first.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>

#include "llama_memory.h"

TEST_SUITE_BEGIN("llama");

using namespace luce;
using namespace luce::memory_tests;

TEST_CASE("held cells outlive their lanes and are free when let go, the lowest first") {
    Setup s;
    const std::int32_t n_free = s.device.n_free_cells();
    CHECK(n_free == s.device.traits().n_cells);
    s.compute(kFirst, some_tokens(128, 1));
    const Cells cells = s.find(kFirst, 0, 128);
    const Cells page = s.find(kFirst, 64, 64);
    s.device.hold(page);
    s.device.forget(kFirst);
    CHECK(s.device.n_free_cells() == n_free - 64);
    Cells none(1);
    CHECK(!s.device.find(kFirst, 64, none));

    // Two holders of the same positions, as two texts have them.
    s.compute(kFirst, some_tokens(128, 50));
    const Cells second = s.find(kFirst, 64, 64);
    CHECK(s.find(kFirst, 0, 1)[0] == 0);  // not behind the held page
    s.device.hold(second);
    s.device.forget(kFirst);
    CHECK(s.device.n_free_cells() == n_free - 128);
    s.device.release(page);
    CHECK(s.device.n_free_cells() == n_free - 64);
    s.device.show(kSecond, second);
    s.device.release(second);
    CHECK(s.device.n_free_cells() == n_free - 64);
    s.device.hide(kSecond, second);
    CHECK(s.device.n_free_cells() == n_free);
    CHECK(s.device.usage().n_used_cells == 0);
    CHECK(s.device.usage().n_spanned_cells == 0);
}

TEST_CASE("whatever came and went, the lowest free cells are taken next") {
    Setup s({test_model("qwen3"), "q8_0"}, 512);
    std::mt19937 random(3);
    std::set<Cell> free;
    for (Cell cell = 0; cell < 512; ++cell) free.insert(cell);
    std::array<Cells, kLanes> lanes;
    std::vector<Cells> held;
    const auto take_lowest = [&](const Cells& cells) {
        for (const Cell cell : cells) {
            CHECK(cell == *free.begin());
            free.erase(cell);
        }
    };
    const auto is_seen = [&](Cell cell) {
        const auto has = [&](const Cells& cells) { return std::count(cells.begin(), cells.end(), cell) > 0; };
        return std::any_of(lanes.begin(), lanes.end(), has) || std::any_of(held.begin(), held.end(), has);
    };
    const auto give_back = [&](const Cells& cells) {
        for (const Cell cell : cells) {
            if (!is_seen(cell)) free.insert(cell);
        }
    };
    for (int step = 0; step < 400; ++step) {
        const auto i = static_cast<std::size_t>(random() % kLanes);
        const auto lane = static_cast<LaneId>(i);
        const auto begin = static_cast<Position>(lanes[i].size());
        const std::size_t n = 1 + random() % 40;
        const Tokens tokens = some_tokens(static_cast<int>(n), step);
        Cells cells(n);
        switch (random() % 5) {
            case 0:
            case 1: {
                const Slice slice{lane, begin, tokens, false};
                if (n > free.size()) {
                    CHECK(s.decoder.decode(std::span(&slice, 1)).error().code == ErrorCode::no_room);
                    break;
                }
                REQUIRE(s.decoder.decode(std::span(&slice, 1)));
                cells = s.find(lane, begin, n);
                take_lowest(cells);
                lanes[i].insert(lanes[i].end(), cells.begin(), cells.end());
                break;
            }
            case 2: {
                const Bytes rows(n * s.device.traits().row_bytes);
                const bool fits = n <= free.size();
                CHECK(s.device.write(lane, begin, tokens, rows, static_cast<std::int32_t>(n), cells).ok() == fits);
                if (!fits) break;
                take_lowest(cells);
                lanes[i].insert(lanes[i].end(), cells.begin(), cells.end());
                break;
            }
            case 3: {
                const Cells all = std::exchange(lanes[i], {});
                if (random() % 2 == 0 && !all.empty() && !std::any_of(held.begin(), held.end(), [&](const Cells& h) {
                        return std::find_first_of(h.begin(), h.end(), all.begin(), all.end()) != h.end();
                    })) {
                    s.device.hold(all);
                    held.push_back(all);
                }
                if (random() % 2 == 0)
                    s.device.forget(lane);
                else
                    s.device.hide(lane, all);
                give_back(all);
                break;
            }
            default: {
                if (held.empty()) break;
                const std::size_t j = random() % held.size();
                if (lanes[i].empty()) {
                    s.device.show(lane, held[j]);
                    lanes[i] = held[j];
                }
                const Cells let_go = held[j];
                held.erase(held.begin() + static_cast<std::ptrdiff_t>(j));
                s.device.release(let_go);
                give_back(let_go);
            }
        }
        REQUIRE(s.device.n_free_cells() == static_cast<std::int32_t>(free.size()));
    }
}

TEST_CASE("a lane does not hold what it never computed") {
    Setup s;
    s.compute(kFirst, some_tokens(50, 1));
    Cells cells(10);
    CHECK(s.device.find(kFirst, 40, cells));
    CHECK(!s.device.find(kFirst, 41, cells));
    CHECK(!s.device.find(kSecond, 0, cells));
    const Cells middle = s.find(kFirst, 20, 10);
    s.device.hide(kFirst, middle);
    CHECK(!s.device.find(kFirst, 15, cells));
    CHECK(s.device.find(kFirst, 30, cells));
}

TEST_CASE("rows for more cells than are free are no_room and change nothing") {
    Setup s({}, 256);
    s.compute(kFirst, some_tokens(128, 1));
    const Snapshot snapshot = s.take(kFirst, some_tokens(128, 1));
    s.decode(kFirst, 128, some_tokens(70, 9));
    const std::int32_t n_free = s.device.n_free_cells();
    REQUIRE(n_free == 58);
    const Bytes whole = s.whole_state(kFirst);
    Cells cells(kPageSize);
    const auto tokens = std::span(snapshot.text).first(kPageSize);
    const Result<void> full = s.device.write(kSecond, 0, tokens, snapshot.pages[0], kPageSize, cells);
    REQUIRE(!full);
    CHECK(full.error().code == ErrorCode::no_room);
    CHECK(s.device.n_free_cells() == n_free);
    CHECK(s.whole_state(kFirst) == whole);

    // What fits of the page does go in.
    Cells fewer(static_cast<std::size_t>(n_free));
    REQUIRE(s.device.write(kSecond, 0, tokens.first(fewer.size()), snapshot.pages[0], kPageSize, fewer));
    CHECK(s.device.n_free_cells() == 0);
    Bytes rows(fewer.size() * s.device.traits().row_bytes);
    Bytes original(rows.size());
    REQUIRE(s.device.read(fewer, rows));
    REQUIRE(s.device.read(s.find(kFirst, 0, fewer.size()), original));
    CHECK(rows == original);

    // Rows that are not what they are said to be.
    s.device.forget(kSecond);
    const std::span<const std::uint8_t> page = snapshot.pages[0];
    CHECK(!s.device.write(kSecond, 0, tokens.first(10), page.first(page.size() - 1), kPageSize,
                          std::span(fewer).first(10)));
    CHECK(!s.device.write(kSecond, 0, tokens.first(10), page, kPageSize, std::span(fewer).first(11)));
    CHECK(!s.device.write(kSecond, 0, tokens.first(10), page, -1, std::span(fewer).first(10)));
    CHECK(!s.device.write(kSecond, 0, tokens.first(10), {}, 0, std::span(fewer).first(10)));
    CHECK(!s.device.read(fewer, std::span(rows).first(rows.size() - 1)));
    CHECK(s.device.n_free_cells() == n_free);
}

TEST_SUITE_END();
