// Tests of a page's keys in few bits and of the scores: against the same sums in plain floats, and at the edges where a
// deviation is none.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "llama/model/backend.h"
#include "llama/scoring/key_index.h"
#include "tests/llama/packed_keys.h"
#include "tests/support/volume.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::llama;
using luce::memory::kPageSize;
using luce::memory::PageKeys;
using luce::test::rounded_queries;
using luce::test::unpacked_keys;

namespace {

using Floats = std::vector<float>;

struct Case {
    KeyShape shape;
    std::int32_t n_threads = 1;
};

// A dimension count that fills blocks and ones that do not; every kind of grouping.
const std::vector<Case> kCases = {{{8, 2, 48, 64}, 1},   {{24, 4, 192, 256}, 3}, {{4, 4, 32, 32}, 2},
                                  {{6, 1, 100, 128}, 1}, {{3, 3, 7, 8}, 4},      {{16, 8, 128, 128}, 2}};

std::unique_ptr<KeyIndex> index_of(const Case& c) {
    static const Backend backend;
    Result<std::unique_ptr<KeyIndex>> index = KeyIndex::create(c.shape, c.n_threads);
    REQUIRE(index.ok());
    return std::move(index).value();
}

Floats random_floats(std::mt19937& random, std::size_t n) {
    std::normal_distribution<float> normal;
    Floats floats(n);
    std::generate(floats.begin(), floats.end(), [&] { return normal(random); });
    return floats;
}

Floats random_keys(std::mt19937& random, const KeyShape& shape) {
    return random_floats(random, kPageSize * shape.n_heads_kv * shape.n_dims);
}

// The largest products of the queries with one page's keys, query by query and head by head; without its first ones.
std::vector<double> reference_products(const KeyShape& shape, const Floats& queries, const Floats& keys,
                                       std::size_t first = 0) {
    const std::size_t group = shape.n_heads / shape.n_heads_kv;
    std::vector<double> largest;
    for (std::size_t row = 0; row * shape.n_dims < queries.size(); ++row) {
        const std::size_t head_kv = row % shape.n_heads / group;
        double most = -std::numeric_limits<double>::infinity();
        for (std::size_t key = first; key < kPageSize; ++key) {
            double sum = 0;
            for (std::size_t i = 0; i < shape.n_dims; ++i) {
                sum += static_cast<double>(queries[row * shape.n_dims + i]) *
                       keys[(key * shape.n_heads_kv + head_kv) * shape.n_dims + i];
            }
            most = std::max(most, sum / std::sqrt(static_cast<double>(shape.head_size)));
        }
        largest.push_back(most);
    }
    return largest;
}

// A page is found where the page before it ends with what is asked for.
constexpr std::size_t kBeforeEnd = kPageSize - 16;

// By page, from each page's products.
std::vector<double> reference_scores(const std::vector<std::vector<double>>& products) {
    const auto n_pages = static_cast<double>(products.size());
    std::vector<double> scores(products.size(), -std::numeric_limits<double>::infinity());
    for (std::size_t row = 0; row < products[0].size(); ++row) {
        double mean = 0;
        for (const auto& page : products) mean += page[row] / n_pages;
        double square = 0;
        for (const auto& page : products) square += (page[row] - mean) * (page[row] - mean) / n_pages;
        for (std::size_t page = 0; page < products.size(); ++page) {
            scores[page] = std::max(scores[page], (products[page][row] - mean) / (std::sqrt(square) + 1e-4));
        }
    }
    return scores;
}

}  // namespace

TEST_CASE("keys come back within half a step of their block") {
    std::mt19937 random(1);
    for (const Case& c : kCases) {
        CAPTURE(c.shape.n_dims);
        const auto index = index_of(c);
        const Floats keys = random_keys(random, c.shape);
        const PageKeys encoded = index->encode(keys);
        CHECK(encoded->size() == index->keys_bytes());
        // A scale of two bytes and 16 bytes of 4 bits for 32 values.
        CHECK(index->keys_bytes() == kPageSize * c.shape.n_heads_kv * ((c.shape.n_dims + 31) / 32) * 18);
        const Floats decoded = unpacked_keys(c.shape, *encoded);
        REQUIRE(decoded.size() == keys.size());
        for (std::size_t row = 0; row < keys.size(); row += c.shape.n_dims) {
            for (std::size_t begin = 0; begin < c.shape.n_dims; begin += 32) {
                const std::size_t end = std::min(begin + 32, c.shape.n_dims);
                float largest = 0;
                float error = 0;
                for (std::size_t i = row + begin; i < row + end; ++i) {
                    largest = std::max(largest, std::abs(keys[i]));
                    error = std::max(error, std::abs(keys[i] - decoded[i]));
                }
                // Steps of an eighth of the largest; the side that it is not on has one step less. And 11 bits of
                // scale.
                CHECK(error <= largest / 8 * 1.001F);
            }
        }
    }
}

TEST_CASE("scores are those of the products of the rounded keys and queries") {
    std::mt19937 random(2);
    for (const Case& c : kCases) {
        CAPTURE(c.shape.n_dims);
        CAPTURE(c.shape.n_heads);
        const auto index = index_of(c);
        const bool full = luce::tests::is_full();
        for (const auto& [n_queries, n_pages] : {std::pair{32, full ? 40 : 12}, {1, 7}, {5, full ? 100 : 40}}) {
            const Floats queries =
                random_floats(random, static_cast<std::size_t>(n_queries) * c.shape.n_heads * c.shape.n_dims);
            const Floats rounded = rounded_queries(c.shape, queries);
            std::vector<PageKeys> pages;
            std::vector<std::vector<double>> decoded;
            std::vector<std::vector<double>> at_end;
            for (int page = 0; page < n_pages; ++page) {
                pages.push_back(index->encode(random_keys(random, c.shape)));
                const Floats keys = unpacked_keys(c.shape, *pages.back());
                decoded.push_back(reference_products(c.shape, rounded, keys));
                at_end.push_back(reference_products(c.shape, rounded, keys, kBeforeEnd));
            }
            const std::size_t n_rows = static_cast<std::size_t>(n_queries) * c.shape.n_heads;
            const Floats scores = index->scores(queries, pages);
            for (std::size_t page = decoded.size(); --page > 0;) {
                for (std::size_t row = 0; row < n_rows; ++row) {
                    decoded[page][row] = std::max(decoded[page][row], at_end[page - 1][row]);
                }
            }
            const std::vector<double> expected = reference_scores(decoded);
            REQUIRE(scores.size() == pages.size());
            for (std::size_t page = 0; page < pages.size(); ++page) {
                CHECK(scores[page] == doctest::Approx(expected[page]).epsilon(1e-3));
            }
        }
    }
}

TEST_CASE("a page that holds what is asked for has the highest score, whatever its place and the threads") {
    std::mt19937 random(3);
    for (const Case& c : kCases) {
        if (c.shape.n_dims < 32) continue;
        const auto index = index_of(c);
        const Floats queries = random_floats(random, c.shape.n_heads * c.shape.n_dims);
        const auto n = static_cast<std::ptrdiff_t>(c.shape.n_dims);
        for (const std::size_t place : {0UL, 33UL, 63UL}) {
            std::vector<PageKeys> pages;
            for (std::size_t page = 0; page < 64; ++page) {
                Floats keys = random_keys(random, c.shape);
                // One key of the last KV head is the last head's query.
                const auto behind = static_cast<std::ptrdiff_t>(c.shape.n_heads_kv * c.shape.n_dims * 16);
                if (page == place) std::copy(queries.end() - n, queries.end(), keys.end() - behind - n);
                pages.push_back(index->encode(keys));
            }
            const Floats scores = index->scores(queries, pages);
            CHECK(std::max_element(scores.begin(), scores.end()) - scores.begin() ==
                  static_cast<std::ptrdiff_t>(place));
        }
    }
}

TEST_CASE("what is found at a page's end stands for the page behind it as well, and only there") {
    std::mt19937 random(8);
    const Case& c = kCases[0];
    const auto index = index_of(c);
    const Floats queries = random_floats(random, c.shape.n_heads * c.shape.n_dims);
    const auto n = static_cast<std::ptrdiff_t>(c.shape.n_dims);
    const auto row = static_cast<std::ptrdiff_t>(c.shape.n_heads_kv * c.shape.n_dims);
    for (const std::size_t key : {0UL, kBeforeEnd - 1, kBeforeEnd, std::size_t{kPageSize} - 1}) {
        CAPTURE(key);
        std::vector<PageKeys> pages;
        for (std::size_t page = 0; page < 40; ++page) {
            Floats keys = random_keys(random, c.shape);
            const auto end = keys.begin() + (static_cast<std::ptrdiff_t>(key) + 1) * row;
            if (page == 20 || page == 39) std::copy(queries.end() - n, queries.end(), end - n);
            pages.push_back(index->encode(keys));
        }
        const Floats scores = index->scores(queries, pages);
        REQUIRE(scores.size() == 40);
        const bool is_at_end = key >= kBeforeEnd;
        CHECK((scores[21] == scores[20]) == is_at_end);
        std::vector<std::size_t> order(40);
        std::iota(order.begin(), order.end(), 0UL);
        std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return scores[a] > scores[b]; });
        const auto rank = std::find(order.begin(), order.end(), 21UL) - order.begin();
        CHECK((rank < 3) == is_at_end);
        CHECK(scores[19] < scores[20]);
    }
}

TEST_CASE("scores are the same to the bit however many threads find them") {
    std::mt19937 random(9);
    const KeyShape& shape = kCases[0].shape;
    const auto alone = index_of({shape, 1});
    std::vector<PageKeys> pages;
    for (int i = 0; i < 300; ++i) pages.push_back(alone->encode(random_keys(random, shape)));
    const Floats queries = random_floats(random, 11 * shape.n_heads * shape.n_dims);
    for (const std::size_t n_pages : {1UL, 5UL, 130UL, 300UL}) {
        const auto first = std::span(pages).first(n_pages);
        const Floats expected = alone->scores(queries, first);
        REQUIRE(expected.size() == n_pages);
        for (const std::int32_t n_threads : {1, 2, 3}) {
            CHECK(index_of({shape, n_threads})->scores(queries, first) == expected);
        }
    }
}

TEST_CASE("a page's keys may be in several blocks: the best of them counts") {
    std::mt19937 random(7);
    const Case& c = kCases[0];
    const auto index = index_of(c);
    const Floats queries = random_floats(random, 3 * c.shape.n_heads * c.shape.n_dims);
    std::vector<PageKeys> pages;
    for (int i = 0; i < 20; ++i) pages.push_back(index->encode(random_keys(random, c.shape)));
    const Floats expected = index->scores(queries, pages);
    // The same block twice, or beside one whose keys say nothing to any query: neither changes a maximum above zero.
    const PageKeys nothing = index->encode(Floats(kPageSize * c.shape.n_heads_kv * c.shape.n_dims));
    std::vector<PageKeys> blocks;
    std::vector<std::size_t> ends;
    for (std::size_t i = 0; i < pages.size(); ++i) {
        if (i % 3 == 0) blocks.push_back(nothing);
        blocks.insert(blocks.end(), {i % 2 == 0 ? pages[i] : nothing, pages[i]});
        ends.push_back(blocks.size());
    }
    const Floats scores = index->scores(queries, blocks, ends);
    REQUIRE(scores.size() == expected.size());
    for (std::size_t i = 0; i < scores.size(); ++i) CHECK(scores[i] == doctest::Approx(expected[i]).epsilon(1e-5));
    // One page of all blocks, and the others: the best of the first is no less than any of its blocks'.
    const std::vector<std::size_t> two = {blocks.size() - 1, blocks.size()};
    CHECK(index->scores(queries, blocks, two).size() == 2);
}

TEST_CASE("where pages do not differ no score does") {
    std::mt19937 random(4);
    for (const Case& c : kCases) {
        const auto index = index_of(c);
        const Floats queries = random_floats(random, 3 * c.shape.n_heads * c.shape.n_dims);
        const PageKeys page = index->encode(random_keys(random, c.shape));
        for (const std::size_t n : {1UL, 2UL, 3UL, 50UL}) {
            for (const float score : index->scores(queries, std::vector<PageKeys>(n, page))) {
                CHECK(std::abs(score) < 1e-3F);
            }
        }
        CHECK(index->scores(queries, {}).empty());
        const PageKeys nothing = index->encode(Floats(kPageSize * c.shape.n_heads_kv * c.shape.n_dims, 0.0F));
        for (const float score : index->scores(queries, std::vector<PageKeys>{nothing, nothing})) CHECK(score == 0.0F);
    }
}

TEST_CASE("queries that are no numbers leave the others' scores as they are") {
    std::mt19937 random(5);
    const Case& c = kCases[0];
    const auto index = index_of(c);
    Floats queries = random_floats(random, 2 * c.shape.n_heads * c.shape.n_dims);
    std::vector<PageKeys> pages;
    for (int i = 0; i < 20; ++i) pages.push_back(index->encode(random_keys(random, c.shape)));
    const std::size_t half = queries.size() / 2;
    const Floats expected = index->scores(std::span(queries).first(half), pages);
    std::fill(queries.begin() + static_cast<std::ptrdiff_t>(half), queries.end(),
              std::numeric_limits<float>::quiet_NaN());
    CHECK(index->scores(queries, pages) == expected);
    std::fill(queries.begin(), queries.end(), std::numeric_limits<float>::infinity());
    for (const float score : index->scores(queries, pages)) CHECK(std::isfinite(score));
}

TEST_CASE("heads that do not go together have no index") {
    static const Backend backend;
    for (const KeyShape& shape : {KeyShape{6, 4, 32, 32}, {4, 0, 32, 32}, {0, 4, 32, 32}, {4, 4, 0, 32}}) {
        const auto index = KeyIndex::create(shape, 1);
        REQUIRE(!index.ok());
        CHECK(index.error().code == ErrorCode::unsupported);
    }
}

}  // TEST_SUITE("llama")
