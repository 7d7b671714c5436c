// TextSalt: texts of equal tokens have names in common exactly as far as they are to.
#include "memory/pages/text_salt.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

using luce::Position;
using luce::Token;
using luce::Tokens;
using luce::memory::kFirstSaltedName;
using luce::memory::salted;
using luce::memory::TextSalt;

namespace {

Tokens text(std::size_t n) {
    Tokens tokens(n);
    std::iota(tokens.begin(), tokens.end(), 5);
    return tokens;
}

std::size_t n_common(const Tokens& a, const Tokens& b) {
    const auto parting = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    return static_cast<std::size_t>(parting.first - a.begin());
}

}  // namespace

TEST_SUITE("memory") {
TEST_CASE("texts of one salt are one, and of two salts apart from where they are to be") {
    for (const Position from : {0, 1, 63, 64, 99}) {
        const TextSalt one{1, from};
        const TextSalt other{~std::uint64_t{0}, from};
        CHECK(salted(text(100), one) == salted(text(100), one));
        CHECK(n_common(salted(text(100), one), salted(text(100), other)) == static_cast<std::size_t>(from));
        CHECK(n_common(salted(text(100), one), text(100)) == static_cast<std::size_t>(from));
    }
}

TEST_CASE("a name that a salt gives is no token, and follows from the token and the salt alone") {
    const Tokens names = salted(text(100), {7, 10});
    for (std::size_t i = 0; i < names.size(); ++i) {
        CHECK((names[i] >= kFirstSaltedName) == (i >= 10 && i < 14));
    }
    Tokens longer = text(200);
    CHECK(n_common(names, salted(longer, {7, 10})) == 100);
    longer[11] = 1;
    CHECK(n_common(names, salted(longer, {7, 10})) == 11);
}

TEST_CASE("short texts") {
    CHECK(salted({}, {1, 0}).empty());
    CHECK(salted(text(3), {1, 5}) == text(3));
    CHECK(salted(text(3), {1, 2})[2] >= kFirstSaltedName);
}
}  // TEST_SUITE("memory")
