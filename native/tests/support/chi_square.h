// ChiSquare: whether counts could have come from a distribution, or two rows of counts from the same one (Pearson's
// tests). Cells that are expected to hold little are put together.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "speculation/rejection.h"

namespace luce::tests {

struct ChiSquare {
    using Counts = std::map<Token, std::int64_t>;

    double statistic = 0;
    int n_free = 0;               // degrees of freedom
    bool has_impossible = false;  // something came that cannot

    // What chance exceeds once in a million times (Wilson and Hilferty's approximation, 1931, which is a little high
    // for few degrees of freedom: those are looked up).
    double limit() const {
        static constexpr double kFew[] = {0, 23.93, 27.63, 30.66, 33.38};
        if (n_free < 5) return kFew[std::max(n_free, 0)];
        const double spread = 2.0 / (9.0 * n_free);
        const double cube = 1 - spread + 4.7534 * std::sqrt(spread);
        return n_free * cube * cube * cube;
    }

    // Above 1: not by chance.
    double excess() const {
        if (has_impossible) return INFINITY;
        return n_free <= 0 ? 0.0 : statistic / limit();
    }

    static ChiSquare against(const Counts& counts, std::span<const speculation::TokenProbability> expected) {
        ChiSquare result;
        double n = 0;
        Counts left = counts;
        for (const auto& [token, count] : counts) n += static_cast<double>(count);
        std::pair<double, double> rest;  // seen, expected
        for (const speculation::TokenProbability& entry : expected) {
            const auto seen = static_cast<double>(std::exchange(left[entry.token], 0));
            const double mean = n * static_cast<double>(entry.probability);
            if (mean >= kLeast) {
                result.add(seen, mean);
            } else {
                rest.first += seen;
                rest.second += mean;
            }
        }
        if (rest.second >= kLeast) result.add(rest.first, rest.second);
        for (const auto& [token, count] : left) result.has_impossible = result.has_impossible || count > 0;
        --result.n_free;
        return result;
    }

    static ChiSquare between(const Counts& a, const Counts& b) {
        std::map<Token, std::pair<double, double>> cells;
        std::pair<double, double> all;
        for (const auto& [token, count] : a) cells[token].first += static_cast<double>(count);
        for (const auto& [token, count] : b) cells[token].second += static_cast<double>(count);
        for (const auto& [token, counts] : cells) all = {all.first + counts.first, all.second + counts.second};
        ChiSquare result;
        const double share = all.first / (all.first + all.second);
        const double least = kLeast / std::min(share, 1 - share);
        const auto add_both = [&](const std::pair<double, double>& cell) {
            const double n = cell.first + cell.second;
            result.add(cell.first, n * share);
            result.add(cell.second, n * (1 - share));
            --result.n_free;
        };
        std::pair<double, double> rest;
        for (const auto& [token, cell] : cells) {
            if (cell.first + cell.second >= least) {
                add_both(cell);
            } else {
                rest = {rest.first + cell.first, rest.second + cell.second};
            }
        }
        if (rest.first + rest.second >= least) add_both(rest);
        --result.n_free;
        return result;
    }

private:
    static constexpr double kLeast = 5;  // expected in a cell

    void add(double seen, double mean) {
        statistic += (seen - mean) * (seen - mean) / mean;
        ++n_free;
    }
};

}  // namespace luce::tests
