// Tests of rows that take fewer bits outside the device: how much of a number three bits keep, and what real models
// make of texts that were packed, for each packed type and several formats of the cache.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "llama/kv_cache/packed_kv_device.h"
#include "llama/kv_cache/three_bits.h"
#include "tests/llama/llama_memory.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::memory_tests;

namespace {

std::vector<float> normal_numbers(std::size_t n, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 3);
    std::vector<float> numbers(n);
    for (float& number : numbers) number = normal(random);
    return numbers;
}

std::vector<float> through(const std::vector<float>& numbers, bool is_rotated) {
    std::vector<std::uint8_t> blocks(numbers.size() / llama::kThreeBitBlock * llama::kThreeBitBlock_bytes);
    llama::to_three_bits(numbers, is_rotated, blocks.data());
    std::vector<float> back(numbers.size());
    llama::from_three_bits(blocks.data(), is_rotated, back);
    return back;
}

// The error's squares over the numbers'.
double lost(const std::vector<float>& numbers, const std::vector<float>& back) {
    double error = 0;
    double squares = 0;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        error += std::pow(numbers[i] - back[i], 2);
        squares += std::pow(numbers[i], 2);
    }
    return error / squares;
}

// Of rows that have been packed and put back, in another lane.
struct PackedTrip {
    PackedTrip(const Variant& variant, const std::string& type)
        : s(variant), packed(s.device, s.device.packer(type), 2) {}

    std::vector<Bytes> read(LaneId lane, std::size_t n) {
        std::vector<Bytes> pages;
        for (std::size_t begin = 0; begin < n; begin += kPageSize) {
            const std::size_t n_rows = std::min<std::size_t>(kPageSize, n - begin);
            const Cells cells = s.find(lane, static_cast<Position>(begin), n_rows);
            auto page = std::make_shared<Bytes>(n_rows * packed.traits().row_bytes);
            REQUIRE(packed.read(cells, *page, page));
            packed.settle();
            pages.push_back(*page);
        }
        return pages;
    }

    void write(LaneId lane, const Tokens& text, const std::vector<Bytes>& pages) {
        std::size_t begin = 0;
        for (const Bytes& page : pages) {
            Cells cells(page.size() / packed.traits().row_bytes);
            REQUIRE(packed.write(lane, static_cast<Position>(begin), std::span(text).subspan(begin, cells.size()), page,
                                 static_cast<std::int32_t>(cells.size()), cells));
            begin += cells.size();
        }
    }

    Setup s;
    llama::PackedKvDevice packed;
};

}  // namespace

TEST_CASE("three bits keep what Lloyd and Max promise of normal numbers") {
    const std::vector<float> numbers = normal_numbers(64 * 500, 1);
    for (const bool is_rotated : {true, false}) {
        const double error = lost(numbers, through(numbers, is_rotated));
        CHECK(error > 0.025);
        CHECK(error < 0.0355);  // 0.03454, and a scale that fits each block
    }
}

TEST_CASE("rotation saves an outlier, which would be cut off") {
    std::vector<float> numbers = normal_numbers(64 * 100, 2);
    for (std::size_t i = 5; i < numbers.size(); i += 64) numbers[i] *= 40;
    CHECK(lost(numbers, through(numbers, /*is_rotated=*/true)) > 0.2);
    CHECK(lost(numbers, through(numbers, /*is_rotated=*/false)) < 0.05);
}

TEST_CASE("nothing but zeros stays so, and so do the smallest and the largest scales") {
    CHECK(through(std::vector<float>(128, 0), false) == std::vector<float>(128, 0));
    std::vector<float> numbers = normal_numbers(64, 3);
    for (const float scale : {1e-4F, 1e3F}) {
        std::vector<float> scaled = numbers;
        for (float& number : scaled) number *= scale;
        CHECK(lost(scaled, through(scaled, false)) < 0.05);
    }
}

TEST_CASE("a packed text goes on as its bits allow, and not if it lacks two pages") {
    struct Expected {
        const char* type;
        double most_apart;  // standard deviations of the logits
    };
    for (const Variant& variant : {Variant{LUCE_TINY_MODEL, "f16"}, Variant{LUCE_TINY_MODEL, "q8_0"},
                                   Variant{test_model("gemma4"), "bf16"}, Variant{LUCE_TINY_MODEL, "q8_0,7:f32"}}) {
        for (const auto& [type, most] : {Expected{"q8_0", 0.3}, Expected{"q4_0", 0.8}, Expected{"tq3", 1.5}}) {
            CAPTURE(variant.path);
            CAPTURE(variant.cache_type);
            CAPTURE(type);
            PackedTrip trip(variant, type);
            Setup& s = trip.s;
            if (std::string(type) == "q8_0" && variant.cache_type == "q8_0") {
                CHECK(trip.packed.traits().row_bytes == s.device.traits().row_bytes);
                continue;
            }
            CHECK(trip.packed.traits().row_bytes < s.device.traits().row_bytes);
            const Tokens text = some_tokens(200, 3);
            s.compute(kFirst, text);
            const std::vector<Bytes> pages = trip.read(kFirst, text.size());
            const Snapshot whole = s.take(kFirst, text);
            const std::vector<Logits> untouched = s.go_on(kFirst, 200);
            s.device.forget(kFirst);

            trip.write(kSecond, text, pages);
            s.load_state(kSecond, whole);
            const double distance = logit_distance(untouched, s.go_on(kSecond, 200));
            CHECK(distance < most);
            s.device.forget(kSecond);

            for (const std::size_t i : {0UL, 3UL}) s.write_page(kSecond, whole, i);
            s.load_state(kSecond, whole);
            CHECK(logit_distance(untouched, s.go_on(kSecond, 200)) > distance);
        }
    }
}

TEST_CASE("the first rows of a packed page are those of a page that was packed with these alone") {
    PackedTrip trip({LUCE_TINY_MODEL, "f16"}, "tq3");
    trip.s.compute(kFirst, some_tokens(64, 3));
    const Bytes page = trip.read(kFirst, 64)[0];
    CHECK(trip.packed.first_rows(page, 64, 23) == trip.read(kFirst, 23)[0]);
}

TEST_CASE("several pages are packed beside each other's reading, and bytes of another size are refused") {
    PackedTrip trip({LUCE_TINY_MODEL, "f16"}, "q4_0");
    trip.s.compute(kFirst, some_tokens(256, 3));
    const std::vector<Bytes> expected = trip.read(kFirst, 256);
    std::vector<std::shared_ptr<Bytes>> pages;
    for (Position begin = 0; begin < 256; begin += kPageSize) {
        const Cells cells = trip.s.find(kFirst, begin, kPageSize);
        pages.push_back(std::make_shared<Bytes>(kPageSize * trip.packed.traits().row_bytes));
        REQUIRE(trip.packed.read(cells, *pages.back(), pages.back()));
    }
    trip.packed.settle();
    CHECK(trip.packed.n_bytes_under_way() == 0);
    for (std::size_t i = 0; i < pages.size(); ++i) CHECK(*pages[i] == expected[i]);
    CHECK(pages[0].use_count() == 1);

    Bytes odd(100);
    Cells cells = trip.s.find(kFirst, 0, 2);
    CHECK(!trip.packed.read(cells, odd, nullptr));
    CHECK(!trip.packed.write(kSecond, 0, some_tokens(2, 1), odd, 2, cells));
}

}  // TEST_SUITE("llama")
