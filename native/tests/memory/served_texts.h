// Texts served one after another by a KvCacheManager over a FakeModel, whose counts are looked at after each step.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "memory/manager/kv_cache_manager.h"
#include "tests/engine/fake_model.h"

namespace luce::tests {

constexpr std::int32_t kSlice = 128;

struct ServedTexts {
    explicit ServedTexts(std::int32_t n_pool, std::size_t host_budget = std::size_t{1} << 24,
                         bool is_host_memory = false)
        : model({kVocab, n_pool, kSlice, kSlice, false}, false, is_host_memory),
          memory(model, nullptr, memory::MemoryConfig{"test", host_budget, 4, kVocab, true}, clock) {}

    static Tokens text_of(int number, Position n) {
        Tokens text;
        for (Position i = 0; i < n; ++i) text.push_back(static_cast<Token>((i * 7 + number * 31) % 300));
        return text;
    }

    // Returns how much of it was known.
    memory::PrefillStart begin(LaneId lane, const Tokens& text) {
        const Result<memory::PrefillStart> begun = memory.begin(lane, text, {}, true);
        REQUIRE(begun);
        n_computed[static_cast<std::size_t>(lane)] = begun.value().n;
        check();
        return begun.value();
    }

    void compute(LaneId lane, const Tokens& text, Position end, Position most = kSlice) {
        Position& n = n_computed[static_cast<std::size_t>(lane)];
        while (n < end) {
            const Position n_more = std::min({most, end - n, memory.n_until_cut(lane, n)});
            REQUIRE(memory.make_room(n_more));
            const engine::Slice slice{lane, n, std::span(text).subspan(n, n_more), true};
            REQUIRE(model.decode(std::span(&slice, 1)));
            n += n_more;
            memory.advance(lane, std::span(text).first(static_cast<std::size_t>(n)), n, {});
            check();
        }
    }

    void end(LaneId lane, const Tokens& text) {
        const Position n = n_computed[static_cast<std::size_t>(lane)];
        memory.end(lane, ++n_ended, std::span(text).first(static_cast<std::size_t>(n)), n, {}, true);
        check();
    }

    // Returns how much of it was known.
    Position run(const Tokens& text) {
        const Position n_known = begin(LaneId{0}, text).n;
        compute(LaneId{0}, text, static_cast<Position>(text.size()));
        end(LaneId{0}, text);
        return n_known;
    }

    void check() const {
        REQUIRE_MESSAGE(!model.misuse, model.misuse.value_or(""));
        REQUIRE(memory.check_integrity() == std::nullopt);
        REQUIRE(memory.n_available_cells() >= model.n_more_cells());
    }

    ManualClock clock;
    FakeModel model;
    memory::KvCacheManager memory;
    std::array<Position, 2> n_computed{};
    std::uint64_t n_ended = 0;
};

}  // namespace luce::tests
