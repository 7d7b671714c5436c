// TokenCache with a vocabulary of bytes: what it gives is what the vocabulary would, and it stays within its bounds.
#include "llama/text/token_cache.h"

#include <random>
#include <string>

#include <doctest/doctest.h>

TEST_SUITE("llama") {

using luce::llama::TokenCache;

namespace {

std::vector<llama_token> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

std::string text_of(unsigned number, size_t n_bytes) {
    std::string text = std::to_string(number) + ":";
    text.resize(n_bytes, 'x');
    return text;
}

}  // namespace

TEST_CASE("a text that comes again is not tokenised again") {
    int n_calls = 0;
    TokenCache cache(
        [&](std::string_view text) {
            ++n_calls;
            return bytes_of(text);
        },
        1 << 20);
    for (int round = 0; round < 3; ++round) {
        for (unsigned number = 0; number < 10; ++number) {
            const std::string text = text_of(number, 100 + number);
            CHECK(cache.get(text) == bytes_of(text));
        }
    }
    CHECK(n_calls == 10);
    CHECK(cache.get("") == bytes_of(""));
}

TEST_CASE("what came with another salt is made again") {
    int n_calls = 0;
    TokenCache cache(
        [&](std::string_view text) {
            ++n_calls;
            return bytes_of(text);
        },
        1 << 20);
    for (const std::string_view salt : {"", "a", "b", "a", "", "b"}) {
        CHECK(cache.get("some text", salt) == bytes_of("some text"));
        CHECK(TokenCache::Salted(cache, salt).get("another") == bytes_of("another"));
    }
    CHECK(n_calls == 6);
    cache.get("text", "asome ");
    cache.get("some text", "a");
    CHECK(n_calls == 7);
}

TEST_CASE("the longest unused texts leave") {
    std::vector<std::string> tokenised;
    constexpr size_t kMaxBytes = 4 * 5 * 100;
    TokenCache cache(
        [&](std::string_view text) {
            tokenised.emplace_back(text);
            return bytes_of(text);
        },
        kMaxBytes);
    for (unsigned number = 0; number < 4; ++number) {
        cache.get(text_of(number, 100));
    }
    CHECK(cache.n_bytes() == kMaxBytes);
    cache.get(text_of(0, 100));
    cache.get(text_of(4, 100));  // takes the place of 1
    tokenised.clear();
    for (const unsigned number : {0U, 2U, 3U, 4U, 1U}) {
        cache.get(text_of(number, 100));
    }
    CHECK(tokenised == std::vector<std::string>{text_of(1, 100)});
    const std::string large = text_of(9, 10 * kMaxBytes);
    CHECK(cache.get(large) == bytes_of(large));
    CHECK(cache.n_bytes() == 0);
}

TEST_CASE("random texts in little room") {
    std::mt19937 random(3);
    TokenCache cache(bytes_of, 5000);
    for (int round = 0; round < 5000; ++round) {
        const std::string text = text_of(random() % 40, random() % 300);
        REQUIRE(cache.get(text) == bytes_of(text));
        REQUIRE(cache.n_bytes() <= 5000);
    }
}

}  // TEST_SUITE("llama")
