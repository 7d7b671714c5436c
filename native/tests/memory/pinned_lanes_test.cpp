// Lanes with pins in a pool that holds a third of their text: what is pinned is in sight while the text is read,
// while it is written on, and after it was set aside; what it takes is asked for beforehand, and too much of it is
// refused.
#include <doctest/doctest.h>

#include <array>
#include <string>

#include "memory/manager/kv_cache_manager.h"
#include "tests/engine/fake_model.h"
#include "tests/memory/memory_accounting.h"

TEST_SUITE("memory") {

using namespace luce;
using namespace luce::memory;
using namespace luce::tests;

namespace {

constexpr LaneId kLane{0};
constexpr LaneId kOther{1};
constexpr std::int32_t kSlice = 32;
constexpr std::int32_t kPool = 640;  // ten pages
constexpr Position kPinned = 256;
constexpr Position kNotPinned = 384;

struct PinnedLanes {
    explicit PinnedLanes(std::vector<PositionSpan> of_every_text = {})
        : model({kVocab, kPool, kSlice, kSlice, false}),
          memory(model, nullptr, config(std::move(of_every_text)), clock) {
        model.may_have_holes = true;
        for (int i = 0; i < 2000; ++i) text.push_back(static_cast<Token>(i * 7 % 300));
    }

    static MemoryConfig config(std::vector<PositionSpan> pins) {
        MemoryConfig config{"test", std::size_t{1} << 24, 4, kVocab, true};
        const ResidencyRules rules;
        config.residency = ResidencyConfig{rules, least_cells(rules, kSlice), nullptr, std::move(pins)};
        return config;
    }

    void begin(LaneId lane, std::vector<PositionSpan> pins, Position n_prompt) {
        MemoryRequest request;
        request.pins = std::move(pins);
        const auto start = memory.begin(lane, std::span(text).first(static_cast<std::size_t>(n_prompt)), request, true);
        REQUIRE(start);
        n_computed = start.value().n;
    }

    void compute(LaneId lane, Position end) {
        while (n_computed < end) {
            const Position n = std::min(kSlice, end - n_computed);
            REQUIRE(memory.make_room(n));
            const engine::Slice slice{lane, n_computed, std::span(text).subspan(n_computed, n), true};
            REQUIRE(model.decode(std::span(&slice, 1)));
            n_computed += n;
            memory.advance(lane, std::span(text).first(n_computed), n_computed, {});
            REQUIRE(memory.check_integrity() == std::nullopt);
        }
    }

    bool sees(LaneId lane, Position begin) {
        std::array<Cell, kPageSize> cells{};
        return static_cast<bool>(model.find(lane, begin, cells));
    }

    ManualClock clock;
    FakeModel model;
    KvCacheManager memory;
    Tokens text;
    Position n_computed = 0;
};

}  // namespace

TEST_CASE("a pinned page stays while a text is read and written, and the one beside it goes") {
    PinnedLanes lanes;
    lanes.begin(kLane, {{kPinned + 10, kPinned + 11}}, 1500);
    lanes.compute(kLane, 1500);
    CHECK(lanes.sees(kLane, kPinned));
    CHECK(!lanes.sees(kLane, kNotPinned));
    lanes.compute(kLane, 1800);
    CHECK(lanes.sees(kLane, kPinned));
}

TEST_CASE("pins of every text hold in a lane that asks for none") {
    PinnedLanes lanes({{kPinned, kPinned + 1}});
    lanes.begin(kLane, {}, 1500);
    lanes.compute(kLane, 1500);
    CHECK(lanes.sees(kLane, kPinned));
    CHECK(!lanes.sees(kLane, kNotPinned));
}

TEST_CASE("pins survive a suspension, although all of the text had to leave overlapped") {
    PinnedLanes lanes;
    lanes.begin(kLane, {{kPinned, kPinned + kPageSize}}, 1500);
    lanes.compute(kLane, 1400);
    const Suspended suspended = lanes.memory.suspend(kLane, std::span(lanes.text).first(1400), 1400);
    std::swap(lanes.text[0], lanes.text[1]);  // another text
    lanes.begin(kOther, {}, 1900);
    lanes.compute(kOther, 1900);
    lanes.memory.end(kOther, 1, std::span(lanes.text).first(1900), 1900, {}, true);
    REQUIRE(lanes.memory.leave_device());
    std::swap(lanes.text[0], lanes.text[1]);
    const PrefillStart start = lanes.memory.resume(kLane, std::span(lanes.text).first(1500), suspended);
    lanes.n_computed = start.n;
    CHECK(start.n == 1400);
    CHECK(lanes.sees(kLane, kPinned));
    CHECK(!lanes.sees(kLane, kNotPinned));
    lanes.compute(kLane, 1900);
    CHECK(lanes.sees(kLane, kPinned));
    CHECK(!lanes.sees(kLane, kNotPinned));
}

TEST_CASE("a restored prefix brings its pinned pages in") {
    PinnedLanes lanes;
    lanes.begin(kLane, {}, 1500);
    lanes.compute(kLane, 1500);
    CHECK(!lanes.sees(kLane, kPinned));
    lanes.memory.end(kLane, 1, std::span(lanes.text).first(1500), 1500, {}, true);
    lanes.begin(kLane, {{kPinned, kPinned + kPageSize}}, 1600);
    CHECK(lanes.n_computed >= 1472);
    CHECK(lanes.sees(kLane, kPinned));
    CHECK(!lanes.sees(kLane, kNotPinned));
}

TEST_CASE("what pins take counts in what a lane needs, until it is there") {
    const PinnedLanes lanes;
    const std::int32_t n_least = least_cells(ResidencyRules{}, kSlice);
    MemoryRequest request;
    CHECK(lanes.memory.n_least_cells(1500, request, 0) == n_least);
    request.pins = {{0, 64}, {kPinned, kPinned + 1}, {600, 700}};  // the first page stays anyhow
    CHECK(lanes.memory.n_least_cells(1500, request, 0) == n_least + 3 * kPageSize);
    CHECK(lanes.memory.n_least_cells(1500, request, 330) == n_least + 2 * kPageSize);
    CHECK(lanes.memory.n_least_cells(1500, request, 1000) == n_least);
    CHECK(lanes.memory.n_least_cells(70, request, 0) == 70);
}

TEST_CASE("pins outside the prompt, and more than the pool holds, are refused with what it would hold") {
    const PinnedLanes lanes;
    const auto refusal = [&](PositionSpan pin) -> std::string {
        MemoryRequest request;
        request.pins = {pin};
        const Result<void> checked = lanes.memory.check(request, 1000);
        if (checked) return "";
        CHECK(checked.error().code == ErrorCode::bad_args);
        return checked.error().text;
    };
    const std::int32_t n_most = (kPool - least_cells(ResidencyRules{}, kSlice)) / kPageSize;
    CHECK(refusal({0, kPageSize * (1 + n_most)}).empty());
    CHECK(refusal({kPageSize, kPageSize * (1 + n_most)}).empty());
    CHECK(refusal({kPageSize, kPageSize * (1 + n_most) + 1}).find(std::to_string(n_most * kPageSize)) !=
          std::string::npos);
    CHECK(refusal({999, 1000}).empty());
    for (const PositionSpan outside : {PositionSpan{999, 1001}, {1000, 1001}, {-1, 5}, {5, 5}, {9, 5}}) {
        CHECK(refusal(outside).find("not within the prompt") != std::string::npos);
    }
}

}  // TEST_SUITE("memory")
