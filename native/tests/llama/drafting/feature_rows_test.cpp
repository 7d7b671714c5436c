// Tests of the features that wait for a drafter: random appends and takes against a deque.
#include "llama/drafting/feature_rows.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <random>

TEST_SUITE("llama") {

using luce::llama::FeatureRows;

TEST_CASE("rows that wait are those that came, in their order") {
    constexpr std::size_t kFloats = 3;
    for (unsigned seed = 1; seed <= 20; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        FeatureRows rows(kFloats);
        std::deque<float> expected;  // what the rows are filled with
        float next = 0;
        for (int step = 0; step < 2000; ++step) {
            const std::size_t n = random() % (random() % 50 == 0 ? 300 : 4);
            switch (random() % 4) {
                case 0:
                case 1: {
                    const std::size_t n_before = rows.size();
                    rows.append(n);
                    for (std::size_t i = 0; i < n; ++i) {
                        std::fill_n(rows.row(n_before + i), kFloats, ++next);
                        expected.push_back(next);
                    }
                    break;
                }
                case 2: {
                    const std::size_t n_taken = std::min(n * 2, rows.size());
                    rows.take_front(n_taken);
                    expected.erase(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(n_taken));
                    break;
                }
                default: {
                    const std::size_t n_taken = std::min(n, rows.size());
                    rows.take_back(n_taken);
                    expected.erase(expected.end() - static_cast<std::ptrdiff_t>(n_taken), expected.end());
                    rows.trim(random() % 200);
                }
            }
            REQUIRE(rows.size() == expected.size());
            REQUIRE(rows.empty() == expected.empty());
            for (std::size_t i = 0; i < rows.size(); ++i) {
                if (rows.row(i)[0] != expected[i] || rows.row(i)[kFloats - 1] != expected[i]) FAIL("row " << i);
            }
        }
    }
}

}  // TEST_SUITE("llama")
