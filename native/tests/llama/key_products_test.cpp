// Tests of a page's keys in 4 bits and of queries' largest products with them: by every way that this processor has,
// against the same sums in doubles, and with values that are no numbers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <ggml.h>

#include "llama/model/backend.h"
#include "llama/scoring/key_products.h"

TEST_SUITE_BEGIN("llama");

using namespace luce;
using namespace luce::llama;
using luce::memory::Bytes;
using luce::memory::kPageSize;

namespace {

using Floats = std::vector<float>;

// Dimensions that fill blocks, that end in the middle of one or of a group of four; every kind of grouping.
const std::vector<KeyShape> kShapes = {{8, 2, 48, 64},  {24, 4, 192, 256}, {4, 4, 32, 32}, {6, 1, 100, 128},
                                       {3, 3, 7, 8},    {16, 8, 128, 128}, {5, 5, 1, 1},   {2, 1, 33, 40},
                                       {40, 8, 82, 96}, {1, 1, 512, 512}};

Floats random_floats(std::mt19937& random, std::size_t n) {
    static const Backend backend;
    std::normal_distribution<float> normal;
    Floats floats(n);
    std::generate(floats.begin(), floats.end(), [&] { return normal(random); });
    return floats;
}

Floats random_keys(std::mt19937& random, const KeyShape& shape) {
    return random_floats(random, kPageSize * shape.n_heads_kv * shape.n_dims);
}

struct Found {
    Floats largest;
    Floats at_end;
};

Found found_by(KeyProducts::Way way, const KeyShape& shape, const Floats& queries, const Bytes& page) {
    const RoundedQueries rounded(shape, queries);
    Found found{Floats(rounded.n_rows()), Floats(rounded.n_rows())};
    KeyProducts(shape, way).run(rounded, page, found.largest, found.at_end);
    return found;
}

// The products of a row, in the order of RoundedQueries, with each key of a page.
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
        const Floats unpacked = unpack_keys(shape, packed);
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

TEST_CASE("every way finds the largest products, all of them the same") {
    std::mt19937 random(12);
    for (const KeyShape& shape : kShapes) {
        for (const std::size_t n_queries : {1UL, 2UL, 3UL, 11UL}) {
            CAPTURE(shape.n_dims);
            CAPTURE(n_queries);
            const Floats queries = random_floats(random, n_queries * shape.n_heads * shape.n_dims);
            const Bytes page = pack_keys(shape, random_keys(random, shape));
            const Floats keys = unpack_keys(shape, page);
            const Found portable = found_by(KeyProducts::Way::portable, shape, queries, page);
            const std::size_t n_rows = n_queries * shape.n_heads;
            REQUIRE(portable.largest.size() == n_rows);
            for (std::size_t row = 0; row < n_rows; ++row) {
                const std::vector<double> products = products_of_row(shape, queries, keys, row);
                // A query's rounding: half a step of its largest value, for each value of the key.
                const double most = *std::max_element(products.begin(), products.end());
                const double at_end = *std::max_element(products.end() - kEndKeys, products.end());
                CHECK(std::abs(portable.largest[row] - most) < 1e-3);
                CHECK(std::abs(portable.at_end[row] - at_end) < 1e-3);
            }
            for (const KeyProducts::Way way : KeyProducts::ways()) {
                CAPTURE(static_cast<int>(way));
                const Found found = found_by(way, shape, queries, page);
                for (std::size_t row = 0; row < n_rows; ++row) {
                    CHECK(found.largest[row] == doctest::Approx(portable.largest[row]).epsilon(1e-5));
                    CHECK(found.at_end[row] == doctest::Approx(portable.at_end[row]).epsilon(1e-5));
                }
            }
        }
    }
}

TEST_CASE("whole numbers do not overflow where all values are the largest that there are") {
    for (const KeyShape& shape : kShapes) {
        CAPTURE(shape.n_dims);
        const Floats queries(shape.n_heads * shape.n_dims, -1000.0F);
        const Bytes page = pack_keys(shape, Floats(kPageSize * shape.n_heads_kv * shape.n_dims, -2.0F));
        const double expected =
            2000.0 * static_cast<double>(shape.n_dims) / std::sqrt(static_cast<double>(shape.head_size));
        for (const KeyProducts::Way way : KeyProducts::ways()) {
            for (const float product : found_by(way, shape, queries, page).largest) {
                CHECK(product == doctest::Approx(expected).epsilon(1e-4));
            }
        }
    }
}

TEST_CASE("a query that is no number has no products, a key that is none loses every comparison") {
    std::mt19937 random(13);
    const KeyShape shape = kShapes[0];
    const Floats queries = random_floats(random, 3 * shape.n_heads * shape.n_dims);
    const Bytes page = pack_keys(shape, random_keys(random, shape));
    for (const KeyProducts::Way way : KeyProducts::ways()) {
        CAPTURE(static_cast<int>(way));
        const Found whole = found_by(way, shape, queries, page);
        for (const float none : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
            Floats broken = queries;
            broken[5 * shape.n_dims + 7] = none;  // head 5 of the first query: of the second KV head its second row
            const Found found = found_by(way, shape, broken, page);
            for (std::size_t row = 0; row < found.largest.size(); ++row) {
                const bool is_broken = row == 3 * 4 + 1;
                CHECK(std::isnan(found.largest[row]) == is_broken);
                CHECK((found.largest[row] == whole.largest[row]) != is_broken);
                CHECK((found.at_end[row] == whole.at_end[row]) != is_broken);
            }
        }
        // Of every key of the first KV head but one, and of that one as well.
        Bytes few = page;
        const auto none = ggml_fp32_to_fp16(std::numeric_limits<float>::quiet_NaN());
        for (std::size_t key = 0; key < kPageSize; ++key) {
            if (key != 20) std::memcpy(few.data() + key * sizeof(none), &none, sizeof(none));
        }
        const Found found = found_by(way, shape, queries, few);
        const Floats keys = unpack_keys(shape, page);
        for (std::size_t row = 0; row < found.largest.size(); ++row) {
            const bool is_first_head = row < found.largest.size() / 2;
            if (is_first_head) {
                CHECK(found.largest[row] ==
                      doctest::Approx(products_of_row(shape, queries, keys, row)[20]).epsilon(1e-3));
                CHECK(found.at_end[row] == -std::numeric_limits<float>::infinity());
            } else {
                CHECK(found.largest[row] == whole.largest[row]);
            }
        }
    }
}

TEST_SUITE_END();
