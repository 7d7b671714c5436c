// Tests of what is read from a row of logits for drafts.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "llama/decoding/logit_choice.h"

TEST_SUITE("llama") {

using namespace luce;
using namespace luce::llama;

TEST_CASE("the likeliest few are the first of all in order, with their probabilities") {
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0, 4);
    for (int round = 0; round < 50; ++round) {
        std::vector<float> logits(1 + random() % 3000);
        for (float& logit : logits) logit = std::round(normal(random) * 8) / 8;  // with ties
        std::vector<Token> order(logits.size());
        for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<Token>(i);
        const auto logit = [&](Token token) { return logits[static_cast<std::size_t>(token)]; };
        std::stable_sort(order.begin(), order.end(), [&](Token a, Token b) { return logit(a) > logit(b); });
        double sum = 0;
        for (const float l : logits) sum += std::exp(static_cast<double>(l));
        const std::size_t n = 1 + random() % 10;
        const auto few = likeliest_few(logits, n);
        REQUIRE(few.size() == std::min(n, logits.size()));
        for (std::size_t i = 0; i < few.size(); ++i) {
            CHECK(few[i].token == order[i]);
            CHECK(static_cast<double>(few[i].probability) ==
                  doctest::Approx(std::exp(static_cast<double>(logit(order[i]))) / sum).epsilon(0.001));
        }
        CHECK(few[0].token == likeliest(logits).token);
        CHECK(few[0].probability == doctest::Approx(likeliest(logits).probability));
    }
}

TEST_CASE("logits that are none name no tokens") {
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
    constexpr float kInf = std::numeric_limits<float>::infinity();
    CHECK(likeliest_few({}, 3).empty());
    CHECK(likeliest_few(std::vector<float>{kNaN, -kInf}, 3).empty());
    CHECK(likeliest_few(std::vector<float>{kInf, 1}, 3).empty());
    CHECK(likeliest_few(std::vector<float>{1, 2}, 0).empty());
    const auto few = likeliest_few(std::vector<float>{kNaN, 1, -kInf, 2}, 3);
    REQUIRE(few.size() == 2);
    CHECK(few[0].token == 3);
    CHECK(few[1].token == 1);
}

}  // TEST_SUITE("llama")
