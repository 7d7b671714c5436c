#include "speculation/log_filter.h"

#include <algorithm>
#include <cmath>

namespace luce::speculation {
namespace {

constexpr double kFirstWeight = 10;  // measurements that the first guess of the noise counts for
constexpr double kNewestShare = 0.02;
constexpr double kLeastNoise = 0.0004;
constexpr double kMostNoise = 0.04;
constexpr double kLarge = 4;      // deviations
constexpr int kLasting = 3;       // large surprises in a row
constexpr double kTooLong = 0.7;  // a surprise above this is as likely an accident: twice as long as expected

}  // namespace

// By expectation maximisation; a large surprise is an accident and says nothing beyond that it was large.
void LogNoise::observe(double surprise, double doubt) {
    const double usual = doubt + variance_;
    const double large = kLarge * std::sqrt(usual);
    const double left = std::clamp(surprise, -large, large) * variance_ / usual;
    const double newest = left * left + doubt * variance_ / usual;
    n_seen_ = std::min(n_seen_ + 1, 1 / kNewestShare);
    const double share = std::max(kNewestShare, 1 / (kFirstWeight + n_seen_));
    variance_ = std::clamp(variance_ + share * (newest - variance_), kLeastNoise, kMostNoise);
}

void LogFilter::loosen(std::size_t i, double variance) {
    for (std::size_t j = 0; j < size(); ++j) covariance_[i * size() + j] = covariance_[j * size() + i] = 0;
    covariance_[i * size() + i] = variance;
}

void LogFilter::observe(std::span<const Term> terms, double expected, double measured, std::size_t first,
                        std::size_t last, LogNoise& noise) {
    const double surprise = measured - expected;
    const std::size_t n = size();
    gains_.assign(n, 0);
    const auto weigh = [&] {
        double doubt = 0;
        for (std::size_t i = 0; i < n; ++i) {
            gains_[i] = 0;
            for (const Term& term : terms) gains_[i] += covariance_[i * n + term.index] * term.slope;
        }
        for (const Term& term : terms) doubt += gains_[term.index] * term.slope;
        return std::max(doubt, 0.0);
    };
    double doubt = weigh();
    const bool is_large = std::abs(surprise) > kLarge * std::sqrt(doubt + noise.variance());
    if (!is_large)
        n_large_ = 0;
    else if (surprise > 0)
        n_large_ = std::max(n_large_, 0) + 1;
    else
        n_large_ = std::min(n_large_, 0) - 1;
    // So many alike, one after the other, are no accident: the machine is another one now.
    const bool is_lasting = std::abs(n_large_) >= kLasting;
    noise.observe(surprise, doubt);
    double accident = noise.variance();
    if (is_lasting) {
        for (std::size_t i = first; i <= last; ++i) {
            for (std::size_t j = first; j <= last; ++j) add_covariance(i, j, surprise * surprise / 4);
        }
        doubt = weigh();
    } else if (is_large && surprise > 0) {
        accident = std::max(accident, surprise * surprise);
    } else if (surprise > kTooLong) {
        accident = std::max(accident, surprise * surprise / 4);
    }
    const double sum = doubt + accident;
    for (std::size_t i = 0; i < n; ++i) mean_[i] += gains_[i] / sum * surprise;
    for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < n; ++j) covariance_[i * n + j] -= gains_[i] * gains_[j] / sum;
    }
}

}  // namespace luce::speculation
