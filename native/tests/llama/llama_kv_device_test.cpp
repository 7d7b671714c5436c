// Tests of the memory's border on libllama, on real models of each family and KV type: what is read out and written
// back goes on to the bit in the same cells and up to rounding in others, lanes may share rows, and what is damaged is
// an error.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include "test_paths.h"
#include "tests/llama/llama_memory.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::memory_tests;

namespace {

std::vector<Variant> variants() {
    std::vector<Variant> all = {{}};
    for (const char* name : {"qwen3", "qwen3moe", "qwen35", "qwen35moe", "gemma4", "laguna"}) {
        REQUIRE_MESSAGE(std::filesystem::exists(test_model(name)),
                        "make the test models first: scripts/make_test_models.py build/test-models");
        for (const char* type : {"f16", "bf16", "q8_0"}) all.push_back({test_model(name), type});
    }
    all.push_back({LUCE_TINY_MODEL, "q8_0,7:bf16"});
    all.push_back({test_model("gemma4"), "bf16,attn:q8_0"});
    return all;
}

constexpr double kRounding = 0.15;

}  // namespace

TEST_CASE("rows, state and all put back into the same cells go on to the bit") {
    const std::array<Position, 2> cuts = {64, 150};
    for (const Variant& variant : variants()) {
        CAPTURE(variant.path);
        CAPTURE(variant.cache_type);
        Setup s(variant);
        REQUIRE(!s.device.traits().refusal);
        const std::int32_t n_free = s.device.n_free_cells();
        const Tokens text = some_tokens(200, 3);
        const Logits logits = s.compute(kFirst, text, cuts);
        const Snapshot snapshot = s.take(kFirst, text, logits);
        const Cells cells = s.find(kFirst, 0, text.size());
        const Bytes whole = s.whole_state(kFirst);
        if (s.device.traits().has_state()) CHECK(snapshot.state.size() == s.device.traits().state_bytes);
        const std::vector<Logits> untouched = s.go_on(kFirst, 200);

        for (const bool state_first : {true, false}) {
            s.device.forget(kFirst);
            CHECK(s.device.n_free_cells() == n_free);
            if (state_first) s.load_state(kFirst, snapshot);
            s.write(kFirst, snapshot);
            CHECK(s.find(kFirst, 0, text.size()) == cells);
            if (!state_first) s.load_state(kFirst, snapshot);
            CHECK(s.whole_state(kFirst) == whole);
            CHECK(s.go_on(kFirst, 200) == untouched);
        }
    }
}

TEST_CASE("put back into other cells and another lane they go on up to rounding") {
    for (const Variant& variant : variants()) {
        CAPTURE(variant.path);
        CAPTURE(variant.cache_type);
        Setup s(variant);
        const Tokens text = some_tokens(200, 3);
        s.compute(kFirst, text);
        const Snapshot snapshot = s.take(kFirst, text);
        const std::vector<Logits> untouched = s.go_on(kFirst, 200);
        s.device.forget(kFirst);

        // Two lanes in turns, then one of them goes: its cells are scattered over the pool.
        for (Position begin = 0; begin < 120; begin += 10) {
            s.decode(kFirst, begin, some_tokens(10, begin));
            s.decode(kThird, begin, some_tokens(10, begin + 5));
        }
        s.device.forget(kFirst);
        // The last page goes into the lowest cells: attention adds up in another order.
        for (std::size_t i = snapshot.pages.size(); i-- > 0;) s.write_page(kSecond, snapshot, i);
        const Cells cells = s.find(kSecond, 0, text.size());
        CHECK(cells.front() > cells.back());
        CHECK(cells[128] + 63 < cells[191]);
        s.load_state(kSecond, snapshot);
        const std::vector<Logits> moved = s.go_on(kSecond, 200);
        CHECK(logit_distance(untouched, moved) < kRounding);
        const Snapshot again = s.take(kSecond, text);
        CHECK(again.pages == snapshot.pages);

        // The measure tells a lane that lacks two pages.
        s.device.forget(kSecond);
        for (const std::size_t i : {0UL, 3UL}) s.write_page(kSecond, snapshot, i);
        s.load_state(kSecond, snapshot);
        CHECK(logit_distance(untouched, s.go_on(kSecond, 200)) > kRounding);
    }
}

TEST_CASE("pages that are set aside are not looked at, and go on to the bit when they are back") {
    const std::array<Position, 2> cuts = {64, 150};
    for (const Variant& variant : variants()) {
        CAPTURE(variant.path);
        CAPTURE(variant.cache_type);
        Setup s(variant);
        const Tokens text = some_tokens(192, 3);
        const Snapshot snapshot = s.take(kFirst, text, s.compute(kFirst, text, cuts));
        Cells cells = s.find(kFirst, 0, text.size());
        const Cells before = cells;
        const Bytes whole = s.whole_state(kFirst);
        const std::vector<Logits> untouched = s.go_on(kFirst, 192);
        s.device.hold(cells);
        s.device.forget(kFirst);
        const Tokens other = some_tokens(70, 50);
        s.compute(kSecond, other);
        const std::vector<Logits> beside = s.go_on(kSecond, 70);
        s.device.forget(kSecond);
        const std::int32_t n_free = s.device.n_free_cells();
        CHECK(s.device.n_spanned_cells(0) == 192);

        s.device.set_aside(cells);
        CHECK(std::ranges::min(cells) > 192);
        CHECK(s.device.n_free_cells() == n_free);
        CHECK(s.device.n_spanned_cells(0) == 0);
        s.compute(kSecond, other);
        CHECK(s.find(kSecond, 0, 1)[0] == 0);
        CHECK(logit_distance(beside, s.go_on(kSecond, 70)) < kRounding);
        CHECK(s.device.n_spanned_cells(0) == 75);
        Bytes rows(kPageSize * s.device.traits().row_bytes);
        REQUIRE(s.device.read(std::span(cells).subspan(kPageSize, kPageSize), rows, nullptr));
        s.device.settle();
        CHECK(rows == snapshot.pages[1]);

        s.device.forget(kSecond);
        s.device.bring_back(cells);
        CHECK(cells == before);
        s.load_state(kFirst, snapshot);
        s.device.show(kFirst, cells);
        CHECK(s.whole_state(kFirst) == whole);
        CHECK(s.go_on(kFirst, 192) == untouched);
        s.device.forget(kFirst);
        s.device.set_aside(cells);
        s.device.release(cells);
        CHECK(s.device.n_free_cells() == s.device.traits().n_cells);
        CHECK(s.device.usage().n_aside_cells == 0);
    }
}

TEST_CASE("pages that are placed before anybody sees them are what write() makes of them") {
    for (const char* name : {"", "qwen3", "gemma4"}) {
        CAPTURE(name);
        const Variant variant{*name == '\0' ? LUCE_TINY_MODEL : test_model(name), "q8_0"};
        Setup s(variant);
        const Tokens text = some_tokens(5 * kPageSize, 3);
        s.compute(kFirst, text, std::vector<Position>{200});
        const Snapshot snapshot = s.take(kFirst, text);
        s.device.forget(kFirst);
        const std::int32_t n_free = s.device.n_free_cells();
        std::vector<Cells> cells(snapshot.pages.size(), Cells(kPageSize));
        for (std::size_t i = 0; i < cells.size(); ++i) {
            const auto begin = static_cast<Position>(i) * kPageSize;
            const auto tokens = std::span(text).subspan(i * kPageSize, kPageSize);
            REQUIRE(s.device.place(begin, tokens, snapshot.pages[i], nullptr, cells[i]));
        }
        CHECK(s.device.n_free_cells() == n_free - 5 * kPageSize);
        Cells none(kPageSize);
        CHECK_FALSE(s.device.find(kSecond, 0, none).ok());  // nobody's yet
        for (std::size_t i = 0; i < cells.size(); ++i) s.device.show(kSecond, cells[i]);
        for (std::size_t i = 0; i < cells.size(); ++i) {
            Bytes rows(snapshot.pages[i].size());
            REQUIRE(s.device.read(cells[i], rows, nullptr));
            s.device.settle();
            CHECK(rows == snapshot.pages[i]);
            CHECK(s.find(kSecond, static_cast<Position>(i) * kPageSize, kPageSize) == cells[i]);
            s.device.release(cells[i]);
        }
        s.device.forget(kSecond);
        CHECK(s.device.n_free_cells() == n_free);
        const Result<void> odd = s.device.place(0, std::span(text).first(kPageSize), {}, nullptr, cells[0]);
        CHECK(odd.error().code == ErrorCode::internal);
    }
}

TEST_CASE("two lanes share rows and decode in one batch; one goes, the other stays right") {
    for (const Variant& variant : variants()) {
        CAPTURE(variant.path);
        CAPTURE(variant.cache_type);
        Setup s(variant);
        const Tokens text = some_tokens(128, 3);
        s.compute(kFirst, text);
        const Snapshot snapshot = s.take(kFirst, text);
        const Cells cells = s.find(kFirst, 0, 128);
        s.device.hold(cells);
        s.device.forget(kFirst);
        const std::int32_t n_free = s.device.n_free_cells();
        const auto back = [&](LaneId lane, int seed) {
            s.device.show(lane, cells);
            s.load_state(lane, snapshot);
            return some_tokens(10, seed);
        };
        const auto alone = [&](int seed) {
            std::vector<Logits> all;
            Position position = 128;
            for (const Token token : back(kThird, seed)) {
                all.push_back(s.decode(kThird, position++, std::span(&token, 1)));
            }
            s.device.forget(kThird);
            return all;
        };
        const std::vector<Logits> first_alone = alone(91);
        const std::vector<Logits> second_alone = alone(7);
        CHECK(s.device.n_free_cells() == n_free);

        const Tokens first = back(kFirst, 91);
        const Tokens second = back(kSecond, 7);
        std::vector<Logits> first_together;
        std::vector<Logits> second_together;
        for (std::size_t i = 0; i < first.size(); ++i) {
            const auto position = static_cast<Position>(128 + i);
            const std::array<Slice, 2> both = {Slice{kFirst, position, std::span(first).subspan(i, 1), true},
                                               Slice{kSecond, position, std::span(second).subspan(i, 1), true}};
            // Half way nobody but the first lane has the cells any more.
            const bool has_both = i < first.size() / 2;
            if (i == first.size() / 2) {
                CHECK(s.device.n_free_cells() == n_free - 10);
                s.device.hide(kSecond, cells);
                s.device.release(cells);
                s.device.forget(kSecond);
                CHECK(s.device.n_free_cells() == n_free - 5);
            }
            const std::vector<Logits> rows = s.decode(std::span(both).first(has_both ? 2 : 1));
            first_together.push_back(rows[0]);
            if (has_both) second_together.push_back(rows[1]);
        }
        CHECK(logit_distance(first_alone, first_together) < kRounding);
        CHECK(logit_distance({second_alone.begin(), second_alone.begin() + 5}, second_together) < kRounding);
    }
}

TEST_CASE("a state that is damaged is an error, and the lane takes a sound one afterwards") {
    for (const char* name : {"qwen35", "qwen35moe", "gemma4", "laguna"}) {
        CAPTURE(name);
        Setup s({test_model(name), "q8_0"});
        const Tokens text = some_tokens(200, 3);
        s.compute(kFirst, text);
        const Snapshot snapshot = s.take(kFirst, text);
        const std::vector<Logits> untouched = s.go_on(kFirst, 200);
        s.device.forget(kFirst);

        const auto is_taken = [&](const Bytes& state) {
            const bool taken = s.device.load_state(kSecond, state).ok();
            s.device.forget(kSecond);
            return taken;
        };
        CHECK(is_taken(snapshot.state));
        CHECK(!is_taken({}));
        for (const std::size_t n : {1UL, 8UL, 12UL, 16UL, 24UL, 100UL, snapshot.state.size() - 1}) {
            CHECK(!is_taken({snapshot.state.begin(), snapshot.state.begin() + static_cast<std::ptrdiff_t>(n)}));
        }
        Bytes longer = snapshot.state;
        longer.push_back(0);
        CHECK(!is_taken(longer));

        // Every word of the head and of the first cells by values that counts and positions must not have. Word 1 is
        // the sequence that it was saved from, and so is each window cell's third word: no matter.
        const bool has_window = std::string(name) == "gemma4" || std::string(name) == "laguna";
        for (std::size_t word = 0; word < 16; ++word) {
            for (const std::uint32_t value : {2U, 0xffU, 0x7fffffffU, 0x80000000U, 0xffffffffU}) {
                Bytes damaged = snapshot.state;
                std::memcpy(damaged.data() + word * sizeof value, &value, sizeof value);
                if (damaged == snapshot.state) continue;
                const bool matters =
                    word != 1 && (has_window ? word < 4 || (word - 4) % 3 != 2 : word < 7 && word != 3);
                const bool taken = is_taken(damaged);
                CAPTURE(word);
                CAPTURE(value);
                if (matters) CHECK(!taken);
            }
        }
        // Anywhere: whatever libllama makes of it, it goes on living.
        std::mt19937 random(7);
        for (int i = 0; i < 100; ++i) {
            Bytes damaged = snapshot.state;
            for (int j = 0; j < 3; ++j) damaged[random() % damaged.size()] ^= static_cast<std::uint8_t>(random());
            is_taken(damaged);
        }
        s.write(kFirst, snapshot);
        s.load_state(kFirst, snapshot);
        CHECK(s.go_on(kFirst, 200) == untouched);
    }
}

TEST_CASE("what cannot be paged says so, and its model still computes") {
    const llama::Model model = Setup::load({}, 256, llama::FlashAttention::off);
    const llama::LlamaKvDevice device(model, kLanes);
    REQUIRE(device.traits().refusal);
    CHECK(device.traits().refusal->find("flash attention") != std::string::npos);
    CHECK(device.traits().refusal->find(model.info().architecture) != std::string::npos);
    llama::LlamaDecoder decoder(model, kLanes);
    const Tokens text = some_tokens(20, 1);
    const Slice slice{kFirst, 0, text, true};
    CHECK(decoder.decode(std::span(&slice, 1)));

    const llama::LlamaKvDevice too_many(model, 256);
    CHECK(too_many.traits().refusal);
}

TEST_CASE("a model that was loaded anew takes its pages back") {
    Setup s;
    const Tokens text = some_tokens(200, 3);
    s.compute(kFirst, text);
    const Snapshot snapshot = s.take(kFirst, text);
    const std::vector<Logits> untouched = s.go_on(kFirst, 200);
    const DeviceTraits before = s.device.traits();

    s.model = Setup::load({}, 1024, llama::FlashAttention::automatic);
    s.device.rebind();
    CHECK(s.device.traits().row_bytes == before.row_bytes);
    CHECK(s.device.traits().state_bytes == before.state_bytes);
    CHECK(s.device.n_free_cells() == before.n_cells);
    s.write(kFirst, snapshot);
    s.load_state(kFirst, snapshot);
    CHECK(s.go_on(kFirst, 200) == untouched);
}

TEST_CASE("what is paged, by kind of memory") {
    const auto kind = [](const char* name) { return Setup({test_model(name), "q8_0"}).device.traits().kind; };
    CHECK(kind("qwen3") == "attention");
    CHECK(kind("qwen35") == "hybrid");
    CHECK(kind("gemma4") == "sliding window");
    Setup s;
    // K and V of three layers of the packaged model.
    CHECK(s.device.usage().n_tensors == 6);
    CHECK(s.device.traits().has_state());
    CHECK(!Setup({test_model("qwen3"), "q8_0"}).device.traits().has_state());
}

}  // TEST_SUITE("llama")
