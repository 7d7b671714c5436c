#include "speculation/controller/draft_value.h"

#include <cmath>
#include <numeric>

namespace luce::speculation {
namespace {

constexpr std::int32_t kFirstProbeInterval = 8;
constexpr std::int32_t kLastInterval = 512;
constexpr double kAverageText = 0.5;   // asks that the average text counts for in a new one
constexpr double kNewestShare = 0.12;  // at least
constexpr double kTextShare = 0.1;     // of a new text's first ask in the average, at least
constexpr double kLeastAsked = 0.3;    // of a full draft, that its worth may be told from
constexpr double kCorrectionShare = 0.01;
constexpr double kLeastCorrection = 0.5;
constexpr std::int32_t kManyAsks = 1 << 20;

}  // namespace

DraftValue::DraftValue(std::size_t n_lanes, std::size_t n_sources, std::int32_t n_most)
    : records_(n_lanes * n_sources), averages_(n_sources), right_(n_sources, 1), expected_(n_sources, 1) {
    for (auto* all : {&records_, &averages_}) {
        for (Record& record : *all) record.mean.chances.resize(static_cast<std::size_t>(std::max(n_most, 1)));
    }
}

double DraftValue::Mean::share(std::int32_t n_tokens) const {
    const auto n = static_cast<std::ptrdiff_t>(std::min(static_cast<std::size_t>(n_tokens), chances.size()));
    const double all = std::accumulate(chances.begin(), chances.end(), 0.0);
    if (!(all > 0)) return static_cast<double>(n) / static_cast<double>(chances.size());
    return std::accumulate(chances.begin(), chances.begin() + n, 0.0) / all;
}

// What was not asked for is taken to go on as what was.
void DraftValue::Mean::blend(const Taken& newest, std::span<const float> newest_chances, std::size_t n_asked,
                             double weight) {
    double last = newest_chances.empty() ? 0 : static_cast<double>(newest_chances.back());
    const bool goes_on = !newest_chances.empty() && newest_chances.size() >= n_asked && n_asked < chances.size();
    const double step = goes_on ? std::pow(last, 1 / static_cast<double>(newest_chances.size())) : 0;
    for (std::size_t i = 0; i < chances.size(); ++i) {
        const double here = i < newest_chances.size() ? static_cast<double>(newest_chances[i]) : (last *= step);
        chances[i] += weight * (here - chances[i]);
    }
    const bool was_taken = taken.share > 0;
    const double full = newest.n_right / std::max(share(static_cast<std::int32_t>(n_asked)), kLeastAsked);
    taken.n_right += weight * (full - taken.n_right);
    taken.share += weight * (newest.share - taken.share);
    if (newest.share > 0) taken.width += (was_taken ? weight : 1) * (newest.width - taken.width);
}

Taken DraftValue::expected(LaneId lane, SourceIndex source, std::int32_t n_tokens) const {
    const Record& own = of(lane, source);
    const Mean& mean = own.n_asks > 0 ? own.mean : averages_[source].mean;
    return {correction(source) * mean.taken.n_right * mean.share(n_tokens), mean.taken.share,
            std::min(mean.taken.width, static_cast<double>(n_tokens))};
}

Taken DraftValue::average(SourceIndex source) const {
    Taken taken = averages_[source].mean.taken;
    taken.n_right *= correction(source);
    return taken;
}

double DraftValue::correction(SourceIndex source) const {
    return std::clamp(right_[source] / expected_[source], kLeastCorrection, 1.0);
}

bool DraftValue::is_due(LaneId lane, SourceIndex source, std::int32_t n_text) const {
    const Record& record = of(lane, source);
    return record.interval == 0 || n_text < record.asked_at || n_text - record.asked_at >= record.interval;
}

void DraftValue::ask(LaneId lane, SourceIndex source, std::int32_t n_text, std::int32_t n_tokens, double needed) {
    Record& record = of(lane, source);
    record.asked_at = n_text;
    record.n_tokens = n_tokens;
    record.needed = needed;
    const Mean& mean = record.n_asks > 0 ? record.mean : averages_[source].mean;
    record.n_expected = mean.taken.n_right * mean.share(n_tokens);
}

void DraftValue::observe(LaneId lane, SourceIndex source, double worth, Taken taken, std::span<const float> chances) {
    Record& record = of(lane, source);
    Record& average = averages_[source];
    const auto n_asked = static_cast<std::size_t>(std::max(record.n_tokens, 1));
    record.interval = worth > record.needed ? kFirstProbeInterval
                                            : std::clamp(2 * record.interval, kFirstProbeInterval, kLastInterval);
    right_[source] += kCorrectionShare * (taken.n_right - right_[source]);
    expected_[source] += kCorrectionShare * (record.n_expected - expected_[source]);
    if (record.n_asks == 0) record.mean = average.mean;
    const double before = average.n_asks > 0 ? kAverageText : 0;
    record.n_asks = std::min(record.n_asks + 1, kManyAsks);
    record.mean.blend(taken, chances, n_asked, std::max(1 / (before + record.n_asks), kNewestShare));
    // Texts that are worth asking about are asked about most; the average is one over texts.
    average.n_asks = std::min(average.n_asks + 1, kManyAsks);
    average.mean.blend(taken, chances, n_asked, std::max(1.0 / average.n_asks, kTextShare / record.n_asks));
    record.n_tokens = 0;
}

void DraftValue::begin(LaneId lane) {
    for (SourceIndex s = 0; s < averages_.size(); ++s) {
        Record& record = of(lane, s);
        record.n_asks = record.asked_at = record.interval = record.n_tokens = 0;
        record.needed = 0;
    }
}

}  // namespace luce::speculation
