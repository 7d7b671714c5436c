// Tests of rejection sampling by itself: by chi-square what comes out has the target's distribution, whatever the draft
// was drawn from; and a rule that is slightly wrong is found out by the same test.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "speculation/rejection.h"
#include "tests/support/chi_square.h"

TEST_SUITE_BEGIN("speculation");

using namespace luce;
using namespace luce::speculation;
using namespace luce::tests;

namespace {

constexpr std::uint64_t kSeed = 20261120;
constexpr int kDraws = 40000;

// Of n tokens from `first` on, in no order; the larger `spread`, the more unequal.
Distribution random_distribution(std::mt19937_64& random, Token first, int n, double spread) {
    std::normal_distribution<double> normal;
    std::vector<double> weights;
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += weights.emplace_back(std::exp(spread * normal(random)));
    Distribution distribution;
    for (int i = 0; i < n; ++i) {
        distribution.push_back({first + i, static_cast<float>(weights[static_cast<std::size_t>(i)] / sum)});
    }
    std::shuffle(distribution.begin(), distribution.end(), random);
    return distribution;
}

struct Case {
    std::string name;
    Distribution p;
    Distribution q;
};

std::vector<Case> cases() {
    std::mt19937_64 random(kSeed);
    const Distribution point = {{7, 1.0F}};
    const Distribution some = random_distribution(random, 0, 12, 1.0);
    std::vector<Case> all = {
        {"equal", some, some},
        {"disjoint", some, random_distribution(random, 50, 8, 1.0)},
        {"q a point mass inside p", some, point},
        {"q a point mass outside p", random_distribution(random, 20, 12, 1.0), point},
        {"p a point mass inside q", point, some},
        {"p a point mass outside q", point, random_distribution(random, 20, 12, 1.0)},
        {"both the same point mass", point, point},
    };
    for (int i = 0; i < 24; ++i) {
        const int n_p = 1 + static_cast<int>(random() % 40);
        const int n_q = 1 + static_cast<int>(random() % 32);
        const auto first_q = static_cast<Token>(random() % 30);
        Distribution p = random_distribution(random, 0, n_p, 0.5 + i % 3);
        all.push_back({"random " + std::to_string(i), std::move(p), random_distribution(random, first_q, n_q, 1.5)});
    }
    return all;
}

using Rule = std::function<Token(std::span<const TokenProbability>, const DrawnToken&, double, double)>;

// How far what the rule gives is from p, in units of what chance allows: above 1 is not chance.
double excess(const Case& c, const Rule& rule) {
    std::map<Token, std::int64_t> counts;
    for (std::uint64_t i = 0; i < kDraws; ++i) {
        const Token drafted = draw_from(c.q, uniform_at(kSeed, i, Draw::draft));
        ++counts[rule(c.p, {drafted, c.q}, uniform_at(kSeed, i, Draw::keep), uniform_at(kSeed, i, Draw::replace))];
    }
    return ChiSquare::against(counts, c.p).excess();
}

}  // namespace

TEST_CASE("rejection sampling gives the target's distribution, whatever was drafted") {
    for (const Case& c : cases()) {
        CAPTURE(c.name);
        CHECK(excess(c, keep_or_replace) < 1.0);
    }
}

TEST_CASE("the chi-square test finds rules that are nearly right") {
    const auto is_found = [](const Rule& rule) {
        int n_found = 0;
        for (const Case& c : cases()) n_found += excess(c, rule) >= 1.0 ? 1 : 0;
        return n_found;
    };
    const auto keeps = [](auto p, const DrawnToken& drafted, double keep) {
        return keep_or_replace(p, drafted, keep, 0.5) == drafted.token;
    };
    CHECK_MESSAGE(is_found([&](auto p, const DrawnToken& drafted, double keep, double replace) {
                      return keeps(p, drafted, keep) ? drafted.token : draw_from(p, replace);
                  }) >= 5,
                  "q is not subtracted from what replaces a token");
    CHECK_MESSAGE(is_found([](auto, const DrawnToken& drafted, double, double) { return drafted.token; }) >= 5,
                  "all is kept");
    CHECK_MESSAGE(is_found([](auto p, const DrawnToken& drafted, double keep, double) {
                      return keep_or_replace(p, drafted, keep, keep);
                  }) >= 5,
                  "one random number serves for both choices");
}

TEST_CASE("as much is kept as can be: what both distributions have in common") {
    for (const Case& c : cases()) {
        CAPTURE(c.name);
        double common = 0;
        for (const TokenProbability& of_p : c.p) {
            for (const TokenProbability& of_q : c.q) {
                if (of_p.token == of_q.token) common += std::min(of_p.probability, of_q.probability);
            }
        }
        std::int64_t n_kept = 0;
        for (std::uint64_t i = 0; i < kDraws; ++i) {
            const Token drafted = draw_from(c.q, uniform_at(kSeed, i, Draw::draft));
            const double keep = uniform_at(kSeed, i, Draw::keep);
            n_kept += keep_or_replace(c.p, {drafted, c.q}, keep, uniform_at(kSeed, i, Draw::replace)) == drafted;
        }
        CHECK(std::abs(static_cast<double>(n_kept) / kDraws - common) < 5.5 * 0.5 / std::sqrt(double{kDraws}));
    }
}

TEST_CASE("a token that is refused is replaced by another one, and the ends of the scale are tokens too") {
    const Distribution p = {{1, 0.0F}, {2, 0.5F}, {3, 0.5F}, {4, 0.0F}};
    const double last = 1.0 - 0x1p-53;
    CHECK(draw_from(p, 0.0) == 2);
    CHECK(draw_from(p, last) == 3);
    const Distribution q = {{4, 0.5F}, {2, 0.5F}};
    CHECK(keep_or_replace(p, {4, q}, 0.0, 0.0) == 3);
    CHECK(keep_or_replace(p, {4, q}, last, last) == 3);
    CHECK(keep_or_replace(p, {2, q}, last, 0.0) == 2);
    // Rounded apart, so that a token can be refused though nothing is left to replace it by.
    const Distribution less = {{2, 0.49999997F}, {3, 0.5F}};
    CHECK(keep_or_replace(less, {2, Distribution{{2, 0.5F}, {3, 0.5F}}}, last, 0.5) == 2);
}

TEST_CASE("streams of random numbers depend on seed, place and purpose, and on nothing else") {
    std::set<double> seen;
    double sum = 0;
    for (std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
        for (std::uint64_t index = 0; index < 1000; ++index) {
            for (const Draw draw : {Draw::draft, Draw::keep, Draw::replace}) {
                const double uniform = uniform_at(seed, index, draw);
                CHECK((uniform >= 0.0 && uniform < 1.0));
                CHECK(uniform == uniform_at(seed, index, draw));
                seen.insert(uniform);
                sum += uniform;
            }
        }
    }
    CHECK(seen.size() == 9000);
    CHECK(std::abs(sum / 9000 - 0.5) < 0.02);
}

TEST_SUITE_END();
