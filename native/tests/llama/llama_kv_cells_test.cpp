// Tests of whose the cells are: held, shown, hidden, written and computed in any order, they are free when nobody has
// them and the lowest free ones go first.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <random>
#include <set>

#include "tests/llama/llama_memory.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::memory_tests;

namespace {

constexpr Cell kCells = 1024;

// Does what comes to its mind with a small pool's cells and keeps its own books of whose they are.
class CellWalk {
public:
    CellWalk() {
        for (Cell cell = 0; cell < kCells; ++cell) free_.insert(cell);
    }

    void step(int number) {
        const std::size_t i = random_() % kLanes;
        const Tokens tokens = some_tokens(static_cast<int>(1 + random_() % 150), number);
        switch (random_() % 8) {
            case 0:
            case 1: compute(i, tokens); break;
            case 2: write(i, tokens); break;
            case 3: leave(i); break;
            case 4: drop(i); break;
            case 5: set_aside(); break;
            case 6: bring_back(); break;
            default: let_go(i); break;
        }
    }

    void check() {
        REQUIRE(setup_.device.n_free_cells() == static_cast<std::int32_t>(free_.size()));
        Cell end = 0;
        const auto reach = [&end](const Cells& cells) {
            for (const Cell cell : cells) end = std::max(end, cell + 1);
        };
        std::size_t n_aside = 0;
        for (const Cells& aside : aside_) n_aside += aside.size();
        REQUIRE(setup_.device.usage().n_aside_cells == static_cast<std::int32_t>(n_aside));
        REQUIRE(setup_.device.usage().n_used_cells == static_cast<std::int32_t>(kCells - free_.size() - n_aside));
        for (const Cells& held : held_) reach(held);
        for (const Cells& seen : lanes_) reach(seen);
        REQUIRE(setup_.device.usage().n_spanned_cells == static_cast<std::int32_t>(end));
        if (!free_.empty()) {
            REQUIRE(setup_.device.n_spanned_cells(1) == static_cast<std::int32_t>(std::max(end, *free_.begin() + 1)));
        }
        for (std::size_t i = 0; i < kLanes; ++i) {
            const auto lane = static_cast<LaneId>(i);
            REQUIRE(setup_.find(lane, 0, lanes_[i].size()) == lanes_[i]);
            Cells beyond(lanes_[i].size() + 1);
            REQUIRE(!setup_.device.find(lane, 0, beyond));
        }
    }

private:
    void compute(std::size_t i, const Tokens& tokens) {
        const auto lane = static_cast<LaneId>(i);
        const auto begin = static_cast<Position>(lanes_[i].size());
        const Slice slice{lane, begin, tokens, false};
        const Result<void> computed = setup_.decoder.decode(std::span(&slice, 1));
        CHECK(computed.ok() == (tokens.size() <= free_.size()));
        if (computed) take(i, setup_.find(lane, begin, tokens.size()));
    }

    void write(std::size_t i, const Tokens& tokens) {
        const Bytes rows(tokens.size() * setup_.device.traits().row_bytes);
        Cells cells(tokens.size());
        const Result<void> written =
            setup_.device.write(static_cast<LaneId>(i), static_cast<Position>(lanes_[i].size()), tokens, rows,
                                static_cast<std::int32_t>(tokens.size()), cells);
        CHECK(written.ok() == (tokens.size() <= free_.size()));
        if (written) take(i, cells);
    }

    // As far back as may be, into what the lane was shown.
    void drop(std::size_t i) {
        const auto begin = static_cast<std::ptrdiff_t>(random_() % (lanes_[i].size() + 1));
        REQUIRE(setup_.device.drop(static_cast<LaneId>(i), static_cast<Position>(begin)));
        const Cells dropped(lanes_[i].begin() + begin, lanes_[i].end());
        lanes_[i].resize(static_cast<std::size_t>(begin));
        give_back(dropped);
    }

    // A lane goes; perhaps its cells stay, held.
    void leave(std::size_t i) {
        const auto lane = static_cast<LaneId>(i);
        const Cells cells = std::exchange(lanes_[i], {});
        const bool is_held = std::any_of(held_.begin(), held_.end(), [&](const Cells& held) {
            return std::find_first_of(held.begin(), held.end(), cells.begin(), cells.end()) != held.end();
        });
        if (!is_held && random_() % 2 == 0) {
            setup_.device.hold(cells);
            held_.push_back(cells);
        }
        if (random_() % 2 == 0)
            setup_.device.forget(lane);
        else
            setup_.device.hide(lane, cells);
        give_back(cells);
    }

    // Held cells are held no more; a lane without any sees them from now on.
    void let_go(std::size_t i) {
        if (held_.empty()) return;
        const auto at = held_.begin() + static_cast<std::ptrdiff_t>(random_() % held_.size());
        const Cells cells = *at;
        held_.erase(at);
        if (lanes_[i].empty()) {
            setup_.device.show(static_cast<LaneId>(i), cells);
            lanes_[i] = cells;
        }
        setup_.device.release(cells);
        give_back(cells);
    }

    // The books: whoever can go higher does.
    void set_aside() {
        const auto is_unseen = [&](const Cells& held) {
            return !held.empty() && std::none_of(lanes_.begin(), lanes_.end(), [&](const Cells& seen) {
                return std::find_first_of(seen.begin(), seen.end(), held.begin(), held.end()) != seen.end();
            });
        };
        const auto at = std::find_if(held_.begin(), held_.end(), is_unseen);
        if (at != held_.end()) {
            aside_.push_back(*at);
            held_.erase(at);
        } else if (aside_.empty()) {
            return;
        } else {  // once more
            std::swap(aside_.back(), aside_[random_() % aside_.size()]);
        }
        Cells& cells = aside_.back();
        const Cells before = cells;
        setup_.device.set_aside(cells);
        move(before, cells);
        for (const Cell cell : cells)
            CHECK((free_.empty() || cell > *free_.rbegin() || !std::ranges::count(before, cell)));
    }

    void bring_back() {
        if (aside_.empty()) return;
        Cells cells = aside_.front();
        const Cells before = cells;
        aside_.erase(aside_.begin());
        const auto n_lower = std::distance(free_.begin(), free_.lower_bound(std::ranges::min(cells)));
        setup_.device.bring_back(cells);
        if (n_lower >= std::ssize(cells)) {
            Cells ascending = cells;
            std::ranges::sort(ascending);
            CHECK(std::ranges::equal(
                ascending, std::ranges::subrange(free_.begin(), std::next(free_.begin(), std::ssize(cells)))));
        }
        move(before, cells);
        held_.push_back(cells);
    }

    void move(const Cells& from, const Cells& to) {
        for (const Cell cell : to) CHECK((free_.contains(cell) || std::ranges::count(from, cell) == 1));
        free_.insert(from.begin(), from.end());
        for (const Cell cell : to) free_.erase(cell);
    }

    void take(std::size_t i, const Cells& cells) {
        for (const Cell cell : cells) {
            CHECK(cell == *free_.begin());
            free_.erase(cell);
        }
        lanes_[i].insert(lanes_[i].end(), cells.begin(), cells.end());
    }

    void give_back(const Cells& cells) {
        for (const Cell cell : cells) {
            const auto has = [&](const Cells& some) { return std::find(some.begin(), some.end(), cell) != some.end(); };
            const bool is_seen = std::any_of(lanes_.begin(), lanes_.end(), has);
            if (!is_seen && !std::any_of(held_.begin(), held_.end(), has)) free_.insert(cell);
        }
    }

    Setup setup_{{test_model("qwen3"), "q8_0"}, kCells};
    std::mt19937 random_{3};
    std::set<Cell> free_;
    std::array<Cells, kLanes> lanes_;
    std::vector<Cells> held_;
    std::vector<Cells> aside_;  // held as well
};

}  // namespace

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
    CellWalk walk;
    for (int step = 0; step < 600; ++step) {
        CAPTURE(step);
        walk.step(step);
        walk.check();
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
    REQUIRE(s.device.read(fewer, rows, nullptr));
    REQUIRE(s.device.read(s.find(kFirst, 0, fewer.size()), original, nullptr));
    s.device.settle();
    CHECK(rows == original);

    // Rows that are not what they are said to be.
    s.device.forget(kSecond);
    const std::span<const std::uint8_t> page = snapshot.pages[0];
    CHECK(!s.device.write(kSecond, 0, tokens.first(10), page.first(page.size() - 1), kPageSize,
                          std::span(fewer).first(10)));
    CHECK(!s.device.write(kSecond, 0, tokens.first(10), page, kPageSize, std::span(fewer).first(11)));
    CHECK(!s.device.write(kSecond, 0, tokens.first(10), page, -1, std::span(fewer).first(10)));
    CHECK(!s.device.write(kSecond, 0, tokens.first(10), {}, 0, std::span(fewer).first(10)));
    CHECK(!s.device.read(fewer, std::span(rows).first(rows.size() - 1), nullptr));
    CHECK(s.device.n_free_cells() == n_free);
}

}  // TEST_SUITE("llama")
