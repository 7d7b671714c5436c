// Tests of a page's keys in 4 bits and of queries' largest products with them: against the same sums in doubles, and
// with values that are no numbers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include <ggml.h>

#include "llama/scoring/key_products.h"
#include "tests/llama/packed_keys.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::llama;
using luce::memory::Bytes;
using luce::memory::kPageSize;
using luce::memory::PageKeys;
using luce::test::rounded_queries;
using luce::test::unpacked_keys;

namespace {

using Floats = std::vector<float>;

// Dimensions that fill blocks, that end in the middle of one or of a group of four; every kind of grouping.
const std::vector<KeyShape> kShapes = {{8, 2, 48, 64},  {24, 4, 192, 256}, {4, 4, 32, 32}, {6, 1, 100, 128},
                                       {3, 3, 7, 8},    {16, 8, 128, 128}, {5, 5, 1, 1},   {2, 1, 33, 40},
                                       {40, 8, 82, 96}, {1, 1, 512, 512}};

Floats random_floats(std::mt19937& random, std::size_t n) {
    std::normal_distribution<float> normal;
    Floats floats(n);
    std::generate(floats.begin(), floats.end(), [&] { return normal(random); });
    return floats;
}

Floats random_keys(std::mt19937& random, const KeyShape& shape) {
    return random_floats(random, kPageSize * shape.n_heads_kv * shape.n_dims);
}

LargestProducts found_of(const KeyShape& shape, const Floats& queries, const Bytes& page, std::int32_t n_threads = 1) {
    static const Backend backend;
    KeyProducts products(shape, n_threads);
    REQUIRE(products.is_there());
    const std::vector<PageKeys> pages = {std::make_shared<Bytes>(page)};
    return products.run(queries, pages);
}

// The products of a row, in the order of LargestProducts, with each key of a page.
std::vector<double> products_of_row(const KeyShape& shape, const Floats& queries, const Floats& keys, std::size_t row) {
    const std::size_t group = shape.n_heads / shape.n_heads_kv;
    const std::size_t n_rows_of_head = queries.size() / shape.n_dims / shape.n_heads_kv;
    const std::size_t head_kv = row / n_rows_of_head;
    const std::size_t query = row % n_rows_of_head / group;
    const std::size_t head = head_kv * group + row % group;
    std::vector<double> products;
    for (std::size_t key = 0; key < kPageSize; ++key) {
        double sum = 0;
        for (std::size_t i = 0; i < shape.n_dims; ++i) {
            sum += static_cast<double>(queries[(query * shape.n_heads + head) * shape.n_dims + i]) *
                   keys[(key * shape.n_heads_kv + head_kv) * shape.n_dims + i];
        }
        products.push_back(sum / std::sqrt(static_cast<double>(shape.head_size)));
    }
    return products;
}

}  // namespace

TEST_CASE("keys that were packed are those that ggml rounds them to") {
    std::mt19937 random(11);
    for (const KeyShape& shape : kShapes) {
        CAPTURE(shape.n_dims);
        const Floats keys = random_keys(random, shape);
        const Bytes packed = pack_keys(shape, keys);
        REQUIRE(packed.size() == packed_bytes(shape));
        const Floats unpacked = unpacked_keys(shape, packed);
        REQUIRE(unpacked.size() == keys.size());
        const std::size_t n_padded = (shape.n_dims + 31) / 32 * 32;
        for (std::size_t begin = 0; begin < keys.size(); begin += shape.n_dims) {
            Floats row(n_padded, 0.0F);
            std::copy_n(keys.begin() + static_cast<std::ptrdiff_t>(begin), shape.n_dims, row.begin());
            std::vector<std::uint8_t> rounded(ggml_row_size(GGML_TYPE_Q4_0, static_cast<std::int64_t>(n_padded)));
            ggml_quantize_chunk(GGML_TYPE_Q4_0, row.data(), rounded.data(), 0, 1, static_cast<std::int64_t>(n_padded),
                                nullptr);
            ggml_get_type_traits(GGML_TYPE_Q4_0)
                ->to_float(rounded.data(), row.data(), static_cast<std::int64_t>(n_padded));
            REQUIRE(std::equal(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(shape.n_dims),
                               unpacked.begin() + static_cast<std::ptrdiff_t>(begin)));
        }
    }
}

TEST_CASE("the largest products are those of the rounded keys and queries, and near those of the keys themselves") {
    std::mt19937 random(12);
    for (const KeyShape& shape : kShapes) {
        for (const std::size_t n_queries : {1UL, 2UL, 3UL, 11UL, 300UL}) {
            if (n_queries == 300 && shape.n_dims != 48) continue;
            CAPTURE(shape.n_dims);
            CAPTURE(n_queries);
            const Floats queries = random_floats(random, n_queries * shape.n_heads * shape.n_dims);
            const Floats rounded = rounded_queries(shape, queries);
            const Floats keys = random_keys(random, shape);
            const Bytes page = pack_keys(shape, keys);
            const Floats unpacked = unpacked_keys(shape, page);
            const LargestProducts found = found_of(shape, queries, page);
            const std::size_t n_rows = n_queries * shape.n_heads;
            REQUIRE(found.of_page.size() == n_rows);
            REQUIRE(found.at_end.size() == n_rows);
            double square = 0;
            for (std::size_t row = 0; row < n_rows; ++row) {
                const std::vector<double> products = products_of_row(shape, rounded, unpacked, row);
                CHECK(std::abs(found.of_page[row] - *std::max_element(products.begin(), products.end())) < 1e-4);
                const double at_end = *std::max_element(products.end() - kEndKeys, products.end());
                CHECK(std::abs(found.at_end[row] - at_end) < 1e-4);
                const std::vector<double> exact = products_of_row(shape, queries, keys, row);
                const double error = found.of_page[row] - *std::max_element(exact.begin(), exact.end());
                square += error * error;
            }
            // Products have a deviation of sqrt(n_dims / head_size), at most 1; rounding to steps of a quarter
            // deviation or so leaves less than a tenth of it.
            CHECK(std::sqrt(square / static_cast<double>(n_rows)) < 0.15);
        }
    }
}

TEST_CASE("pages are found in any number, by any number of threads, each as if it were alone") {
    std::mt19937 random(14);
    const KeyShape shape = kShapes[0];
    const Floats queries = random_floats(random, 40 * shape.n_heads * shape.n_dims);  // some pages a batch
    std::vector<PageKeys> pages;
    LargestProducts expected;
    for (int i = 0; i < 70; ++i) {
        pages.push_back(std::make_shared<Bytes>(pack_keys(shape, random_keys(random, shape))));
        const LargestProducts alone = found_of(shape, queries, *pages.back());
        expected.of_page.insert(expected.of_page.end(), alone.of_page.begin(), alone.of_page.end());
        expected.at_end.insert(expected.at_end.end(), alone.at_end.begin(), alone.at_end.end());
    }
    for (const std::int32_t n_threads : {1, 2, 3}) {
        const LargestProducts found = KeyProducts(shape, n_threads).run(queries, pages);
        CHECK(found.of_page == expected.of_page);
        CHECK(found.at_end == expected.at_end);
    }
    CHECK(KeyProducts(shape, 1).run(queries, {}).of_page.empty());
    CHECK(KeyProducts(shape, 1).run({}, pages).of_page.empty());
}

TEST_CASE("whole numbers do not overflow where all values are the largest that there are") {
    for (const KeyShape& shape : kShapes) {
        CAPTURE(shape.n_dims);
        const Floats queries(shape.n_heads * shape.n_dims, -1000.0F);
        const Bytes page = pack_keys(shape, Floats(kPageSize * shape.n_heads_kv * shape.n_dims, -2.0F));
        const double expected =
            2000.0 * static_cast<double>(shape.n_dims) / std::sqrt(static_cast<double>(shape.head_size));
        for (const float product : found_of(shape, queries, page).of_page) {
            CHECK(product == doctest::Approx(expected).epsilon(1e-3));
        }
    }
}

TEST_CASE("a query that is no number has no products, a key that is none loses every comparison") {
    std::mt19937 random(13);
    const KeyShape shape = kShapes[0];
    const Floats queries = random_floats(random, 3 * shape.n_heads * shape.n_dims);
    const Bytes page = pack_keys(shape, random_keys(random, shape));
    const LargestProducts whole = found_of(shape, queries, page);
    for (const float none : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        Floats broken = queries;
        broken[5 * shape.n_dims + 7] = none;  // head 5 of the first query: of the second KV head its second row
        const LargestProducts found = found_of(shape, broken, page);
        for (std::size_t row = 0; row < found.of_page.size(); ++row) {
            const bool is_broken = row == 3 * 4 + 1;
            CHECK(std::isnan(found.of_page[row]) == is_broken);
            CHECK((found.of_page[row] == whole.of_page[row]) != is_broken);
            CHECK((found.at_end[row] == whole.at_end[row]) != is_broken);
        }
    }
    // Of every key of the first KV head but one the first block's scale.
    Bytes few = page;
    const auto none = ggml_fp32_to_fp16(std::numeric_limits<float>::quiet_NaN());
    const std::size_t row_bytes = few.size() / (shape.n_heads_kv * kPageSize);
    for (std::size_t key = 0; key < kPageSize; ++key) {
        if (key != 20) std::memcpy(few.data() + key * row_bytes, &none, sizeof(none));
    }
    const LargestProducts found = found_of(shape, queries, few);
    const Floats keys = unpacked_keys(shape, page);
    const Floats rounded = rounded_queries(shape, queries);
    for (std::size_t row = 0; row < found.of_page.size(); ++row) {
        const bool is_first_head = row < found.of_page.size() / 2;
        if (is_first_head) {
            CHECK(found.of_page[row] == doctest::Approx(products_of_row(shape, rounded, keys, row)[20]).epsilon(1e-3));
            CHECK(found.at_end[row] == -std::numeric_limits<float>::infinity());
        } else {
            CHECK(found.of_page[row] == whole.of_page[row]);
        }
    }
}

}  // TEST_SUITE("llama")
