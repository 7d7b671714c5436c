#include "memory/eviction_curves.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace luce::memory {
namespace {

constexpr double kPriorWeight = 4;     // conversations that the first guess counts for
constexpr double kBorrow = 4;          // conversations' worth of the common curve in each pace's own
constexpr double kOldQuantile = 0.98;  // of the returns seen: idle for longer counts as given up

constexpr std::size_t kBuckets = ReuseCurves::kBuckets;

double edge_s(std::size_t bucket) {
    return bucket == 0 ? 0 : std::exp2((static_cast<double>(bucket) - 1) / ReuseCurves::kPerOctave);
}

const std::array<double, kBuckets>& widths_s() {
    static const auto widths = [] {
        std::array<double, kBuckets> w{};
        for (std::size_t b = 0; b < kBuckets; ++b) w[b] = edge_s(b + 1) - edge_s(b);
        return w;
    }();
    return widths;
}

// max over h of P(return in buckets from..h) / E[time kept]
double best_rate(const std::array<double, kBuckets>& chance, std::size_t from) {
    const auto& width_s = widths_s();
    double best = 0, waiting = 1, returned = 0, kept_s = 0;
    for (std::size_t b = from; b < kBuckets && waiting > 1e-3; ++b) {
        kept_s += waiting * width_s[b] * (1 - chance[b] / 2);
        returned += waiting * chance[b];
        waiting *= 1 - chance[b];
        best = std::max(best, returned / kept_s);
    }
    return best;
}

}  // namespace

ReuseCurves::ReuseCurves() {
    // Before anything is seen: a return grows unlikely as 1 / age. Soon outvoted.
    for (std::size_t b = 0; b < kBuckets; ++b) {
        const double middle_s = (edge_s(b) + edge_s(b + 1)) / 2;
        all_.reached[b] = kPriorWeight;
        all_.returned[b] = kPriorWeight * (1 - std::exp(-widths_s()[b] * 0.8 / (middle_s + 8)));
    }
    relearn();
}

std::size_t ReuseCurves::bucket_of(double age_s) {
    if (!(age_s >= 1)) return 0;
    return std::min(1 + static_cast<std::size_t>(std::log2(age_s) * kPerOctave), kBuckets - 1);
}

Pace ReuseCurves::pace_of(float log2_mean_gap_s) {
    const float step = std::ceil(log2_mean_gap_s - std::log2(5.0F));
    const auto first = static_cast<float>(Pace::up_to_5s);
    return static_cast<Pace>(std::clamp(first + step, first, static_cast<float>(Pace::longer)));
}

void ReuseCurves::count_reached(Pace pace, std::size_t bucket) {
    of_pace_[static_cast<std::size_t>(pace)].reached[bucket] += 1;
    all_.reached[bucket] += 1;
}

void ReuseCurves::count_returned(Pace pace, std::size_t bucket) {
    of_pace_[static_cast<std::size_t>(pace)].returned[bucket] += 1;
    all_.returned[bucket] += 1;
}

void ReuseCurves::relearn() {
    std::array<double, kBuckets> chance{};
    for (std::size_t pace = 0; pace < kPaces; ++pace) {
        const Curve& own = of_pace_[pace];
        for (std::size_t b = 0; b < kBuckets; ++b) {
            const double common = all_.returned[b] / all_.reached[b];
            chance[b] = std::min(1.0, (own.returned[b] + kBorrow * common) / (own.reached[b] + kBorrow));
        }
        for (std::size_t b = 0; b < kBuckets; ++b) worth_[pace][b] = best_rate(chance, b);
        worth_[pace][kBuckets] = worth_[pace][kBuckets - 1];
    }
    old_age_s_ = quantile_of_gaps_s(kOldQuantile);
}

double ReuseCurves::worth(Pace pace, double age_s) const {
    const double at = age_s < 1 ? std::max(0.0, age_s) : std::min(1 + kPerOctave * std::log2(age_s), kBuckets - 1.0);
    const auto bucket = static_cast<std::size_t>(at);
    const auto& w = worth_[static_cast<std::size_t>(pace)];
    return w[bucket] + (at - static_cast<double>(bucket)) * (w[bucket + 1] - w[bucket]);
}

double ReuseCurves::quantile_of_gaps_s(double quantile) const {
    double left = quantile * std::accumulate(all_.returned.begin(), all_.returned.end(), 0.0);
    std::size_t b = 0;
    while (b + 1 < kBuckets && (left -= all_.returned[b]) > 0) ++b;
    return edge_s(b + 1);
}

}  // namespace luce::memory
