#include "memory/eviction/reuse_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace luce::memory {
namespace {

constexpr double kPriorWeight = 4;  // conversations that the first guess counts for
// Conversations without a second request that are taken to have stayed away before any is seen: agents send many a side
// request (a title, a topic, a check) beside each conversation that they go on with.
constexpr double kPriorNewcomers = 12;
constexpr double kBorrow = 4;          // conversations' worth of the common curve in each interval's own
constexpr double kOldQuantile = 0.98;  // of the returns seen: idle for longer counts as given up

constexpr std::size_t kBuckets = ReuseModel::kBuckets;

double edge_s(std::size_t bucket) {
    return bucket == 0 ? 0 : std::exp2((static_cast<double>(bucket) - 1) / ReuseModel::kPerOctave);
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
    double waiting = 1, returned = 0, kept_s = 0;
    double best_returned = 0, best_kept_s = 1;
    for (std::size_t b = from; b < kBuckets && waiting > 1e-3; ++b) {
        kept_s += waiting * width_s[b] * (1 - chance[b] / 2);
        returned += waiting * chance[b];
        waiting *= 1 - chance[b];
        if (returned * best_kept_s <= best_returned * kept_s) continue;
        best_returned = returned;
        best_kept_s = kept_s;
    }
    return best_returned / best_kept_s;
}

}  // namespace

ReuseModel::ReuseModel() {
    // Before anything is seen: a return grows unlikely as 1 / age. Soon outvoted.
    for (std::size_t b = 0; b < kBuckets; ++b) {
        const double middle_s = (edge_s(b) + edge_s(b + 1)) / 2;
        all_.reached[b] = kPriorWeight;
        all_.returned[b] = kPriorWeight * (1 - std::exp(-widths_s()[b] * 0.8 / (middle_s + 8)));
    }
    of_interval_[static_cast<std::size_t>(ReuseInterval::unknown)].reached.fill(kPriorNewcomers);
    relearn();
}

std::size_t ReuseModel::bucket_of(double age_s) {
    if (!(age_s >= 1)) return 0;
    return std::min(1 + static_cast<std::size_t>(std::log2(age_s) * kPerOctave), kBuckets - 1);
}

ReuseInterval ReuseModel::interval_of(float log2_mean_gap_s) {
    const float step = std::ceil(log2_mean_gap_s - std::log2(5.0F));
    const auto first = static_cast<float>(ReuseInterval::up_to_5s);
    return static_cast<ReuseInterval>(std::clamp(first + step, first, static_cast<float>(ReuseInterval::longer)));
}

void ReuseModel::count_reached(ReuseInterval interval, std::size_t bucket) {
    of_interval_[static_cast<std::size_t>(interval)].reached[bucket] += 1;
    all_.reached[bucket] += 1;
}

void ReuseModel::count_returned(ReuseInterval interval, std::size_t bucket) {
    of_interval_[static_cast<std::size_t>(interval)].returned[bucket] += 1;
    all_.returned[bucket] += 1;
}

void ReuseModel::relearn() {
    old_age_s_ = quantile_of_gaps_s(kOldQuantile);
    n_young_ = std::min(kBuckets, bucket_of(old_age_s_) + kPerOctave);
    for (std::size_t interval = 0; interval < kIntervals; ++interval) {
        const Curve& own = of_interval_[interval];
        Chances chances{};
        for (std::size_t b = 0; b < kBuckets; ++b) {
            const double common = all_.returned[b] / all_.reached[b];
            chances[b] = std::min(1.0, (own.returned[b] + kBorrow * common) / (own.reached[b] + kBorrow));
        }
        priorities_[interval] = priorities(chances);
    }
}

// At old ages it is not asked for: there the order is by age alone.
ReuseModel::Priorities ReuseModel::priorities(const Chances& chances) const {
    Priorities priorities{};
    for (std::size_t b = 0; b < n_young_; ++b) priorities[b] = static_cast<float>(best_rate(chances, b));
    for (std::size_t b = n_young_; b <= kBuckets; ++b) priorities[b] = priorities[n_young_ - 1];
    return priorities;
}

double ReuseModel::priority_at(const Priorities& priorities, double age_s) {
    const double at = age_s < 1 ? std::max(0.0, age_s) : std::min(1 + kPerOctave * std::log2(age_s), kBuckets - 1.0);
    const auto bucket = static_cast<std::size_t>(at);
    return priorities[bucket] + (at - static_cast<double>(bucket)) * (priorities[bucket + 1] - priorities[bucket]);
}

double ReuseModel::quantile_of_gaps_s(double quantile) const {
    double left = quantile * std::accumulate(all_.returned.begin(), all_.returned.end(), 0.0);
    std::size_t b = 0;
    while (b + 1 < kBuckets && (left -= all_.returned[b]) > 0) ++b;
    return edge_s(b + 1);
}

}  // namespace luce::memory
