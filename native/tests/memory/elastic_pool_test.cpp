// A pool whose cells have memory only when they are needed: they come for what runs, go when it has not needed them for
// long, and no text is lost by it.
#include <doctest/doctest.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "memory/manager/kv_cache_manager.h"
#include "memory/residency/pool_limit.h"
#include "tests/engine/fake_model.h"
#include "tests/memory/served_texts.h"
#include "tests/support/volume.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::memory;
using namespace luce::tests;

namespace {

constexpr std::int32_t kPool = 8192;
constexpr std::int32_t kStep = 512;

struct Elastic : ServedTexts {
    explicit Elastic(std::size_t host_budget = std::size_t{1} << 24) : ServedTexts(kPool, host_budget) {
        model.make_elastic(kStep);
    }

    Position run(int number, Position n) { return ServedTexts::run(text_of(number, n)); }

    // Calls of a token each, as of an answer to a short text.
    void answer(int number, Position n) {
        const Tokens text = text_of(number, 64 + n);
        begin(LaneId{1}, text);
        compute(LaneId{1}, text, 64);
        compute(LaneId{1}, text, 64 + n, 1);
        end(LaneId{1}, text);
    }
};

}  // namespace

TEST_CASE("cells come for a text that needs them, and go when calls have not needed them for long") {
    Elastic e;
    CHECK(e.memory.n_available_cells() == kPool);
    e.run(1, 4000);
    const std::int32_t n_grown = e.model.n_cells();
    CHECK(n_grown >= 4000);
    CHECK(n_grown < 4000 + 2 * kStep);
    e.run(1, 4100);  // a turn later it is all there
    CHECK(e.model.n_cells() <= n_grown + kStep);
    e.answer(2, PoolLimit::kCalm - 8);
    CHECK(e.model.n_cells() >= n_grown);
    e.answer(3, 400);
    CHECK(e.model.n_cells() <= 3 * kStep);
    CHECK(e.model.n_cells() >= kStep);
    CHECK(e.memory.status().cache.n_dropped == 0);
    CHECK(e.run(1, 4100) == 4099);  // from the host
}

TEST_CASE("idle texts that are kept elsewhere leave before cells come") {
    Elastic e;
    for (int number = 0; number < 12; ++number) e.run(number, 900);
    CHECK(e.model.n_cells() <= 3 * kStep);
    CHECK(e.memory.status().cache.n_dropped == 0);
    for (int number = 0; number < 12; ++number) CHECK(e.run(number, 900) == 899);
}

TEST_CASE("without another place for idle texts cells come for them, and none goes with a text") {
    Elastic e(0);
    for (int number = 0; number < 8; ++number) e.run(number, 900);
    CHECK(e.model.n_cells() >= 8 * 896);
    e.answer(20, 600);
    CHECK(e.model.n_cells() >= 8 * 896);
    for (int number = 0; number < 8; ++number) CHECK(e.run(number, 900) >= 896);
}

TEST_CASE("where no more cells can be had the pool is as full as any other") {
    Elastic e;
    e.run(1, 1000);
    const std::int32_t n_cells = e.model.n_cells();
    e.model.elastic.refuses = true;
    for (int number = 2; number < 6; ++number) e.run(number, 1000);  // in place of those before
    const Tokens text = Elastic::text_of(9, 4000);
    e.begin(LaneId{0}, text);
    e.compute(LaneId{0}, text, n_cells / kSlice * kSlice);
    const Result<void> room = e.memory.make_room(kSlice);
    REQUIRE(!room);
    CHECK(room.error().code == ErrorCode::no_room);
    CHECK(e.model.n_cells() == n_cells);
    CHECK(e.memory.n_available_cells() < kSlice);
    e.end(LaneId{0}, text);
}

TEST_CASE("texts at random find what is known of them, whatever cells come and go") {
    Elastic e;
    std::mt19937 random(11);
    std::vector<Position> known(6);
    for (int turn = 0; turn < (is_full() ? 60 : 30); ++turn) {
        const auto number = random() % known.size();
        const auto n = static_cast<Position>(known[number] + 1 + static_cast<Position>(random() % 700));
        if (n > 6000) continue;
        CHECK(e.run(static_cast<int>(number), n) >= known[number] / kPageSize * kPageSize);
        known[number] = n;
        if (random() % 4 == 0) e.answer(100 + turn, 300);
    }
    CHECK(e.model.elastic.n_grown > 3);
}

TEST_CASE("a limit grows at once and falls slowly") {
    CHECK(PoolLimit::grown(512, 1, 512, 8192) == 1024);
    CHECK(PoolLimit::grown(512, 512, 512, 8192) == 1024);
    CHECK(PoolLimit::grown(7680, 513, 512, 8000) == 8000);
    PoolLimit limit;
    int n_calls = 0;
    std::vector<int> went;
    for (std::int32_t n_now = 8000; n_now > 1024; ++n_calls) {
        const auto fewer = limit.note_call(100, n_now, 512);
        if (!fewer) continue;
        CHECK(*fewer % 512 == 0);
        CHECK(*fewer < n_now);
        CHECK(n_now - *fewer <= 512);
        n_now = *fewer;
        went.push_back(n_calls);
    }
    CHECK(went.front() == PoolLimit::kCalm - 1);
    CHECK(went[1] - went[0] == PoolLimit::kBetween);
    for (int call = 0; call < 3 * PoolLimit::kCalm; ++call) {
        CHECK(!limit.note_call(call % PoolLimit::kCalm == 0 ? 2000 : 100, 2048, 512));  // now and then it is needed
        CHECK(!limit.note_call(100, 512, 512));
    }
}

}  // TEST_SUITE("memory")
