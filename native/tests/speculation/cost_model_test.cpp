// Tests of CostModel: what calls cost is learnt from measurements, whichever come.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "speculation/controller/cost_model.h"

TEST_SUITE("speculation") {

using namespace luce::speculation;

namespace {

// A machine's calls with noise, and now and then one that takes ten times too long.
struct Calls {
    explicit Calls(CostModel& costs) : costs(costs) {}

    void measure(std::int32_t n_lanes, std::int32_t n_drafted, std::int32_t n_longest, double true_s) {
        const double noisy_s = true_s * std::exp(0.05 * normal(random));
        costs.observe(n_lanes, n_drafted, n_longest, ++n % 50 == 0 ? 10 * noisy_s : noisy_s);
    }

    CostModel& costs;
    std::mt19937 random{7};
    std::normal_distribution<double> normal;
    int n = 0;
};

double call_s(std::int32_t n_drafted, double plain_s = 0.01) { return plain_s * (1 + 0.2 * n_drafted); }

double ratio(CostModel& costs, std::int32_t n_lanes, std::int32_t n_drafted, std::int32_t n_longest) {
    const CostCurve& curve = costs.curve(n_lanes, n_longest);
    return curve.expected_s(n_drafted) / curve.plain_s();
}

}  // namespace

TEST_CASE("the ladder's rungs are found again") {
    for (std::int32_t n = 0; n < 2000; ++n) {
        const std::size_t index = TokenLadder::index_below(n);
        CHECK(TokenLadder::rung(index) <= n);
        CHECK(TokenLadder::rung(index + 1) > n);
    }
}

TEST_CASE("costs of calls are learnt through noise and outliers") {
    CostModel costs(1, 15);
    Calls calls(costs);
    CHECK(!costs.curve(1, 100).is_known());
    calls.measure(1, 0, 100, call_s(0));
    CHECK(!costs.curve(1, 100).is_known());
    for (int i = 0; i < 400; ++i) calls.measure(1, i % 16, 100, call_s(i % 16));
    CHECK(costs.curve(1, 100).plain_s() == doctest::Approx(0.01).epsilon(0.1));
    for (const std::int32_t n : {1, 4, 8, 15})
        CHECK(ratio(costs, 1, n, 100) == doctest::Approx(1 + 0.2 * n).epsilon(0.1));
}

TEST_CASE("one call refreshes what is believed of all the others") {
    CostModel costs(1, 15);
    Calls calls(costs);
    for (int i = 0; i < 400; ++i) calls.measure(1, i % 16, 100, call_s(i % 16));
    // The machine is half as fast now; only plain calls show it.
    for (int i = 0; i < 10; ++i) calls.measure(1, 0, 100, call_s(0, 0.02));
    CHECK(costs.curve(1, 100).plain_s() == doctest::Approx(0.02).epsilon(0.15));
    CHECK(costs.curve(1, 100).expected_s(8) == doctest::Approx(call_s(8, 0.02)).epsilon(0.15));
}

TEST_CASE("seldom measured calls are not believed dearer because others are measured more") {
    CostModel costs(1, 15);
    Calls calls(costs);
    for (int i = 0; i < 64; ++i) calls.measure(1, i % 16, 100, call_s(i % 16));
    for (int i = 0; i < 5000; ++i) calls.measure(1, i % 128 == 0 ? 0 : 3, 100, call_s(i % 128 == 0 ? 0 : 3));
    CHECK(ratio(costs, 1, 3, 100) == doctest::Approx(1.6).epsilon(0.06));
    CHECK(ratio(costs, 1, 12, 100) == doctest::Approx(3.4).epsilon(0.12));
}

TEST_CASE("a first measurement that took far too long does not keep a width from being tried again") {
    CostModel costs(1, 15);
    for (int i = 0; i < 20; ++i) costs.observe(1, 0, 100, call_s(0));
    costs.observe(1, 8, 100, 10 * call_s(8));
    const CostCurve& curve = costs.curve(1, 100);
    CHECK(curve.hopeful_s(8) < curve.expected_s(8));
    CHECK(curve.expected_s(8) < 5 * call_s(8));
    for (int i = 0; i < 4; ++i) costs.observe(1, 8, 100, call_s(8));
    CHECK(ratio(costs, 1, 8, 100) == doctest::Approx(2.6).epsilon(0.2));
}

TEST_CASE("first plain calls that took far too long do not make plain decoding look dear") {
    for (const std::vector<double>& first : {std::vector{0.006, 0.0138, 0.0061}, {0.03, 0.006, 0.012}}) {
        CostModel costs(4, 15);
        Calls calls(costs);
        for (int i = 0; i < 100; ++i) calls.measure(1, i % 16, 100, call_s(i % 16));
        for (const double seconds : first) costs.observe(4, 0, 100, seconds);
        CHECK(costs.curve(4, 100).plain_s() == doctest::Approx(0.006).epsilon(0.05));
    }
}

TEST_CASE("other contexts and other numbers of lanes start from what is known") {
    CostModel costs(4, 15);
    Calls calls(costs);
    for (int i = 0; i < 400; ++i) calls.measure(1, i % 16, 100, call_s(i % 16));
    // What a plain call costs there has to be seen: drafts held against what it costs on a short text all seem to fail.
    CHECK(!costs.curve(1, 5000).is_known());
    costs.observe(1, 0, 5000, call_s(0, 0.03));
    CHECK(costs.curve(1, 5000).is_known());
    CHECK(costs.curve(1, 5000).plain_s() == doctest::Approx(0.03).epsilon(0.15));
    CHECK(ratio(costs, 1, 8, 5000) == doctest::Approx(2.6).epsilon(0.1));
    // Four lanes and four drafted tokens are eight tokens, as one lane and seven; what four lanes cost without is
    // measured.
    CHECK(!costs.curve(4, 100).is_known());
    for (int i = 0; i < 3; ++i) costs.observe(4, 0, 100, call_s(3));
    CHECK(costs.curve(4, 100).is_known());
    CHECK(ratio(costs, 4, 4, 100) == doctest::Approx(call_s(7) / call_s(3)).epsilon(0.1));
    // Long contexts cost more; only calls of one width tell, and ratios stay.
    for (int i = 0; i < 10; ++i) calls.measure(1, 8, 5000, call_s(8, 0.03));
    CHECK(costs.curve(1, 5000).plain_s() == doctest::Approx(0.03).epsilon(0.15));
    CHECK(costs.curve(1, 100).plain_s() == doctest::Approx(0.01).epsilon(0.1));
}

TEST_CASE("costs never fall as tokens are added") {
    std::mt19937 random(3);
    std::uniform_real_distribution<double> any(0.001, 0.1);
    CostModel costs(3, 15);
    for (int i = 0; i < 2000; ++i) {
        costs.observe(1 + i % 3,
                      static_cast<std::int32_t>(random() % (15U * (1U + static_cast<unsigned>(i) % 3U) + 1U)), 10,
                      any(random));
    }
    for (std::int32_t n_lanes = 1; n_lanes <= 3; ++n_lanes) {
        const CostCurve& curve = costs.curve(n_lanes, 10);
        for (std::int32_t n = 0; n < 15 * n_lanes; ++n) {
            CHECK(curve.expected_s(n + 1) >= curve.expected_s(n));
            CHECK(curve.hopeful_s(n) <= curve.expected_s(n));
        }
    }
}

}  // TEST_SUITE("speculation")
