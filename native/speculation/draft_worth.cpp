#include "speculation/draft_worth.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace luce::speculation {
namespace {

constexpr std::int32_t kFirstInterval = 8;
constexpr std::int32_t kLastInterval = 512;
constexpr double kAverageText = 0.5;   // asks that the average text counts for in a new one
constexpr double kNewestShare = 0.12;  // at least
constexpr double kTextShare = 0.1;     // of a new text's first ask in the average, at least
constexpr double kCorrectionShare = 0.01;
constexpr double kLeastCorrection = 0.5;
constexpr double kLeastShare = 0.3;  // of a full draft, that its worth may be told from
constexpr std::int32_t kManyAsks = 1 << 20;

}  // namespace

DraftWorth::DraftWorth(std::size_t n_lanes, std::size_t n_sources, std::int32_t n_most)
    : n_sources_(n_sources),
      n_lanes_(n_lanes),
      n_most_(static_cast<std::size_t>(std::max(n_most, 1))),
      records_(n_lanes * n_sources),
      averages_(n_sources),
      profiles_((n_lanes + 1) * n_sources * n_most_) {}

std::size_t DraftWorth::index_of(LaneId lane, SourceIndex source) const {
    return static_cast<std::size_t>(lane) * n_sources_ + source;
}

std::span<float> DraftWorth::profile(std::size_t row) { return std::span(profiles_).subspan(row * n_most_, n_most_); }

std::span<const float> DraftWorth::profile(std::size_t row) const {
    return std::span(profiles_).subspan(row * n_most_, n_most_);
}

Taken DraftWorth::expected(LaneId lane, SourceIndex source, std::int32_t n_tokens) const {
    const Record& record = of(lane, source);
    const Taken& full = record.n_asks > 0 ? record.taken : averages_[source].taken;
    const double width = std::min(full.width, static_cast<double>(n_tokens));
    const double correction =
        std::clamp(averages_[source].n_right / averages_[source].n_expected, kLeastCorrection, 1.0);
    return {correction * full.n_right * share(lane, source, n_tokens), full.share, width};
}

double DraftWorth::share(LaneId lane, SourceIndex source, std::int32_t n_tokens) const {
    const bool is_own = of(lane, source).n_asks > 0;
    const auto chances = profile(is_own ? index_of(lane, source) : n_lanes_ * n_sources_ + source);
    const auto n = std::min(static_cast<std::size_t>(n_tokens), chances.size());
    const float all = std::accumulate(chances.begin(), chances.end(), 0.0F);
    if (!(all > 0)) return static_cast<double>(n) / static_cast<double>(chances.size());
    return std::accumulate(chances.begin(), chances.begin() + static_cast<std::ptrdiff_t>(n), 0.0F) / all;
}

bool DraftWorth::is_due(LaneId lane, SourceIndex source, std::int32_t n_text) const {
    const Record& record = of(lane, source);
    return record.interval == 0 || n_text < record.asked_at || n_text - record.asked_at >= record.interval;
}

void DraftWorth::ask(LaneId lane, SourceIndex source, std::int32_t n_text, std::int32_t n_tokens, double needed) {
    Record& record = records_[index_of(lane, source)];
    record.asked_at = n_text;
    record.n_tokens = n_tokens;
    record.needed = needed;
    const Taken& full = record.n_asks > 0 ? record.taken : averages_[source].taken;
    record.n_expected = full.n_right * share(lane, source, n_tokens);
}

void DraftWorth::observe(LaneId lane, SourceIndex source, double worth, Taken taken, std::span<const float> chances) {
    Record& record = records_[index_of(lane, source)];
    Average& average = averages_[source];
    const auto n_asked = static_cast<std::size_t>(std::max(record.n_tokens, 1));
    record.interval =
        worth > record.needed ? kFirstInterval : std::clamp(2 * record.interval, kFirstInterval, kLastInterval);

    const auto own = profile(index_of(lane, source));
    const auto common = profile(n_lanes_ * n_sources_ + source);
    if (record.n_asks == 0) {
        record.taken = average.taken;
        std::copy(common.begin(), common.end(), own.begin());
    }
    const double before = average.n_asks > 0 ? kAverageText : 0;
    record.n_asks = std::min(record.n_asks + 1, kManyAsks);
    const double weight = std::max(1 / (before + record.n_asks), kNewestShare);
    blend(own, chances, n_asked, static_cast<float>(weight));
    average.n_right += kCorrectionShare * (taken.n_right - average.n_right);
    average.n_expected += kCorrectionShare * (record.n_expected - average.n_expected);
    taken.n_right /= std::max(share(lane, source, static_cast<std::int32_t>(n_asked)), kLeastShare);
    blend(record.taken, taken, weight);

    // Texts that are worth asking about are asked about most; the average is one over texts.
    average.n_asks = std::min(average.n_asks + 1, kManyAsks);
    const double text_weight = std::max(1.0 / average.n_asks, kTextShare / record.n_asks);
    blend(average.taken, taken, text_weight);
    blend(common, chances, n_asked, static_cast<float>(text_weight));
    record.n_tokens = 0;
}

void DraftWorth::blend(Taken& mean, Taken newest, double weight) {
    const double was_taken = mean.share;
    mean.n_right += weight * (newest.n_right - mean.n_right);
    mean.share += weight * (newest.share - mean.share);
    if (newest.share == 0) return;
    mean.width = was_taken == 0 ? newest.width : mean.width + weight * (newest.width - mean.width);
}

// What was not asked for is taken to go on as what was.
void DraftWorth::blend(std::span<float> profile, std::span<const float> chances, std::size_t n_asked, float weight) {
    const bool goes_on = !chances.empty() && n_asked < profile.size() && chances.size() >= n_asked;
    const float last = chances.empty() ? 0 : chances.back();
    const float step = goes_on ? std::pow(last, 1 / static_cast<float>(chances.size())) : 0;
    float beyond = last;
    for (std::size_t i = 0; i < profile.size(); ++i) {
        const float here = i < chances.size() ? chances[i] : (beyond *= step);
        profile[i] += weight * (here - profile[i]);
    }
}

void DraftWorth::begin(LaneId lane) {
    for (SourceIndex s = 0; s < n_sources_; ++s) records_[index_of(lane, s)] = {};
}

}  // namespace luce::speculation
