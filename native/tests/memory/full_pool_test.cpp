// A lane alone in a pool that it fills to the last cell, while what matters to it changes with each choice: every page
// that is to come finds room, since room is made for it before, and pages on their way stay until they are seen.
#include <doctest/doctest.h>

#include <algorithm>

#include "memory/manager/kv_cache_manager.h"
#include "tests/engine/fake_model.h"
#include "tests/memory/fake_scorer.h"
#include "tests/memory/memory_accounting.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::memory;
using namespace luce::tests;

namespace {

constexpr std::int32_t kSlice = 32;
constexpr Position kPrompt = 900;
constexpr Position kEnd = 1700;

struct FullPool {
    FullPool(std::int32_t n_pool, bool is_host_memory, Position tau)
        : model({kVocab, n_pool, kSlice, kSlice, false}, false, is_host_memory),
          scorer(model.traits().row_bytes),
          memory(model, nullptr, config(scorer, tau), clock) {
        model.may_have_holes = true;
        for (int i = 0; i < kEnd; ++i) text.push_back(static_cast<Token>(i * 7 % 300));
    }

    static MemoryConfig config(FakeScorer& scorer, Position tau) {
        MemoryConfig config{"test", std::size_t{1} << 24, 4, kVocab, true};
        const ResidencyRules rules{1, 4, tau};
        config.residency = ResidencyConfig{rules, least_cells(rules, kSlice), &scorer, {}};
        return config;
    }

    std::span<const Token> first(Position n) const { return std::span(text).first(static_cast<std::size_t>(n)); }

    // n_most tokens a computation.
    void compute(LaneId lane, Position end, std::int32_t n_most) {
        while (n_computed < end) {
            const Position n = std::min({n_most, end - n_computed, memory.n_until_cut(lane, n_computed)});
            REQUIRE(memory.make_room(n));
            const engine::Slice slice{lane, n_computed, std::span(text).subspan(n_computed, n), true};
            REQUIRE(model.decode(std::span(&slice, 1)));
            n_computed += n;
            memory.advance(lane, first(n_computed), n_computed, {});
            REQUIRE(memory.check_integrity() == std::nullopt);
        }
    }

    ManualClock clock;
    FakeModel model;
    FakeScorer scorer;
    KvCacheManager memory;
    Tokens text;
    Position n_computed = 0;
};

}  // namespace

TEST_CASE("a lane alone in a full pool gets every page that it wants") {
    for (std::int32_t n_beside = 0; n_beside <= 4 * kPageSize; n_beside += 48) {
        for (const std::int32_t n_drafted : {0, 4, 16}) {
            for (const bool is_host_memory : {false, true}) {
                for (const Position tau : {1, 16, 64}) {
                    CAPTURE(n_beside);
                    CAPTURE(n_drafted);
                    CAPTURE(is_host_memory);
                    CAPTURE(tau);
                    const std::int32_t n_pool = least_cells(ResidencyRules{}, kSlice) + n_beside;
                    FullPool s(n_pool, is_host_memory, tau);
                    const LaneId lane{0};
                    REQUIRE(s.memory.begin(lane, s.first(kPrompt), {}, true));
                    s.compute(lane, kPrompt, kSlice);
                    s.compute(lane, kEnd, 1 + n_drafted);
                    const ResidencyStatus told = s.memory.status().residency.value();
                    CHECK(told.n_choices > 0);
                    CHECK(told.n_unmade == 0);
                    if (n_beside >= 2 * kPageSize) CHECK(told.n_moved_in > 0);
                }
            }
        }
    }
}

}  // TEST_SUITE("memory")
