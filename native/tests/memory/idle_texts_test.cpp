// Texts that nobody runs cost no computation anything: what a step looks at is what runs, however much lies cached
// beside it, and a text that comes back finds all of its tokens, in the lowest cells.
#include <doctest/doctest.h>

#include <tuple>

#include "memory/manager/kv_cache_manager.h"
#include "tests/engine/fake_model.h"
#include "tests/memory/served_texts.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::memory;
using namespace luce::tests;

namespace {

constexpr Position kText = 16 * kPageSize;
constexpr std::int32_t kFewCells = 256;  // beside what runs: libllama looks at cells by as many

struct Served : ServedTexts {
    using ServedTexts::ServedTexts;

    static Tokens text_of(int number, Position n = kText) { return ServedTexts::text_of(number, n); }
};

}  // namespace

TEST_CASE("what a computation looks at does not grow by cached texts, and their return finds all tokens") {
    // Plenty of room; a pool that is full of them; the host's memory, with a host tier and without one.
    for (const auto& [n_pool, is_host_memory, host_budget] :
         {std::tuple{32768, false, std::size_t{1} << 24}, std::tuple{10 * kText, false, std::size_t{1} << 24},
          std::tuple{32768, true, std::size_t{1} << 24}, std::tuple{32768, true, std::size_t{0}}}) {
        CAPTURE(n_pool);
        CAPTURE(is_host_memory);
        CAPTURE(host_budget);
        Served s(n_pool, host_budget, is_host_memory);
        for (int number = 0; number < 16; ++number) {
            s.model.n_most_spanned = 0;
            s.run(Served::text_of(number));
            const std::int32_t n_few = is_host_memory ? kFewCells + kText / 4 : kFewCells;
            CHECK(s.model.n_most_spanned <= kText + n_few);
        }
        for (int number = n_pool > 16 * kText ? 0 : 8; number < 16; ++number) {
            const Tokens text = Served::text_of(number);
            CHECK(s.begin(LaneId{0}, text).n == kText - 1);
            s.model.n_most_spanned = 0;
            s.compute(LaneId{0}, text, kText);
            CHECK(s.model.n_most_spanned <= kText + (is_host_memory ? kFewCells + kText / 4 : kFewCells));
            s.end(LaneId{0}, text);
        }
    }
}

TEST_CASE("a conversation alone moves nothing") {
    Served s(32768);
    for (Position n = kText; n <= 2 * kText; n += 200) {
        const Tokens text = Served::text_of(1, n);
        s.begin(LaneId{0}, text);
        s.compute(LaneId{0}, text, n);
        s.end(LaneId{0}, text);
    }
    CHECK(s.model.n_moved == 0);
    CHECK(s.memory.status().n_aside_pages == 0);
}

TEST_CASE("beside a running lane an ended one makes way a few pages at a time") {
    Served s(32768);
    const Tokens first = Served::text_of(1);
    const Tokens second = Served::text_of(2, 2 * kText);
    s.begin(LaneId{0}, first);
    s.begin(LaneId{1}, second);
    for (Position n = kSlice; n <= kText; n += kSlice) {  // in turns
        s.compute(LaneId{0}, first, n);
        s.compute(LaneId{1}, second, n);
    }
    s.end(LaneId{0}, first);
    CHECK(s.memory.status().n_spanned_cells >= 2 * kText - kSlice);
    std::int64_t n_moved = s.model.n_moved;
    for (Position n = kText + 1; n < kText + 200; ++n) {
        s.compute(LaneId{1}, second, n);
        CHECK(s.model.n_moved - n_moved <= 16 * kPageSize);
        n_moved = s.model.n_moved;
    }
    CHECK(s.memory.status().n_aside_pages >= 12);
    // What it shares stays where it is.
    const Tokens beside = Served::text_of(2);
    CHECK(s.begin(LaneId{0}, beside).n == kText - 1);
    CHECK(s.model.n_moved == n_moved);
}

TEST_CASE("what a lane has computed again of a text that is set aside becomes that text's") {
    Served s(32768);
    s.run(Served::text_of(1));
    s.run(Served::text_of(2));
    CHECK(s.memory.status().n_aside_pages == 16);
    const Tokens text = Served::text_of(1);
    MemoryRequest request;
    request.reuse = false;
    REQUIRE(s.memory.begin(LaneId{0}, text, request, true));
    s.n_computed[0] = 0;
    s.compute(LaneId{0}, text, kText);
    CHECK(s.memory.status().cache.n_resident == 32);
    s.end(LaneId{0}, text);
    CHECK(s.begin(LaneId{0}, text).n == kText - 1);
}

}  // TEST_SUITE("memory")
