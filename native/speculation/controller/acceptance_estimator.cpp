#include "speculation/controller/acceptance_estimator.h"

#include <algorithm>
#include <cmath>

namespace luce::speculation {
namespace {

constexpr float kOwnWord = 4;      // verdicts that a source's own claim counts for
constexpr float kCommonWord = 12;  // verdicts that all places together count for in one place's
constexpr float kMemory = 400;     // verdicts remembered in each count
constexpr double kLeast = 0.005;   // nothing is certain
constexpr double kMostOffset = 4;
constexpr double kFirstRate = 0.5;  // of the lane's gradient
constexpr double kLastRate = 0.12;
constexpr double kRateHalf = 8;  // verdicts
constexpr float kFading = 0.995F;

// Lower edges; finer where a little more confidence carries a draft much further.
constexpr std::array<float, 12> kEdges = {0, 0.05F, 0.15F, 0.3F, 0.45F, 0.6F, 0.7F, 0.8F, 0.9F, 0.95F, 0.98F, 0.995F};

double within(double chance) { return std::clamp(chance, kLeast, 1 - kLeast); }

// Whatever a source says, as a probability.
float as_claim(float confidence) { return confidence > 0 ? std::min(confidence, 1.0F) : 0.0F; }  // NaN: 0

}  // namespace

AcceptanceEstimator::AcceptanceEstimator(std::size_t n_lanes, std::size_t n_sources)
    : n_sources_(n_sources), calibrations_(n_sources), offsets_(n_lanes * n_sources) {}

std::size_t AcceptanceEstimator::bucket_of(float confidence) {
    const auto above = std::upper_bound(kEdges.begin() + 1, kEdges.end(), confidence);
    return static_cast<std::size_t>(above - kEdges.begin()) - 1;
}

std::size_t AcceptanceEstimator::place_of(std::size_t index) {
    return index == 0 ? 0 : index < 3 ? 1 : index < 7 ? 2 : 3;
}

double AcceptanceEstimator::calibrated(SourceIndex source, float confidence, std::size_t index) const {
    const Calibration& calibration = calibrations_[source];
    const std::size_t bucket = bucket_of(confidence);
    const Count& common = calibration.common[bucket];
    const Count& here = calibration.by_place[bucket][place_of(index)];
    const double all_places = (common.right + kOwnWord * confidence) / (common.all + kOwnWord);
    return within((here.right + kCommonWord * all_places) / (here.all + kCommonWord));
}

double AcceptanceEstimator::chance(const Offset& offset, SourceIndex source, float confidence,
                                   std::size_t index) const {
    const double common = calibrated(source, confidence, index);
    if (offset.logit == 0) return common;
    const double odds = common / (1 - common) * std::exp(static_cast<double>(offset.logit));
    return within(odds / (1 + odds));
}

void AcceptanceEstimator::chances(LaneId lane, SourceIndex source, std::span<const float> confidence,
                                  std::span<float> chances) const {
    const Offset& offset = offset_of(lane, source);
    double all_right = 1;
    for (std::size_t i = 0; i < chances.size(); ++i) {
        all_right *= chance(offset, source, as_claim(confidence[i]), i);
        chances[i] = static_cast<float>(all_right);
    }
}

void AcceptanceEstimator::count(Count& count, bool was_right) {
    count.all += 1;
    count.right += was_right ? 1 : 0;
    if (count.all <= kMemory) return;
    count.right *= kMemory / count.all;
    count.all = kMemory;
}

void AcceptanceEstimator::observe(LaneId lane, SourceIndex source, std::span<const float> confidence,
                                  std::int32_t n_accepted) {
    const std::size_t n_right = std::min(static_cast<std::size_t>(std::max(n_accepted, 0)), confidence.size());
    const std::size_t n_judged = std::min(n_right + 1, confidence.size());
    for (std::size_t i = 0; i < n_judged; ++i) observe_one(lane, source, confidence[i], i, i < n_right);
}

double AcceptanceEstimator::chance_of(LaneId lane, SourceIndex source, float confidence, std::size_t index) const {
    return chance(offset_of(lane, source), source, as_claim(confidence), index);
}

void AcceptanceEstimator::observe_one(LaneId lane, SourceIndex source, float confidence, std::size_t index,
                                      bool was_right) {
    Offset& offset = offset_of(lane, source);
    const float claim = as_claim(confidence);
    const double surprise = (was_right ? 1 : 0) - chance(offset, source, claim, index);
    const double rate = kLastRate + (kFirstRate - kLastRate) * kRateHalf / (kRateHalf + offset.n_seen);
    offset.logit = static_cast<float>(std::clamp(offset.logit + rate * surprise, -kMostOffset, kMostOffset));
    offset.n_seen = std::min(offset.n_seen + 1, kMemory);
    const std::size_t bucket = bucket_of(claim);
    count(calibrations_[source].common[bucket], was_right);
    count(calibrations_[source].by_place[bucket][place_of(index)], was_right);
}

void AcceptanceEstimator::fade(LaneId lane) {
    for (SourceIndex s = 0; s < n_sources_; ++s) offset_of(lane, s).logit *= kFading;
}

void AcceptanceEstimator::begin(LaneId lane) {
    for (SourceIndex s = 0; s < n_sources_; ++s) offset_of(lane, s) = {};
}

AcceptanceEstimator::Offset& AcceptanceEstimator::offset_of(LaneId lane, SourceIndex source) {
    return offsets_[static_cast<std::size_t>(lane) * n_sources_ + source];
}

const AcceptanceEstimator::Offset& AcceptanceEstimator::offset_of(LaneId lane, SourceIndex source) const {
    return offsets_[static_cast<std::size_t>(lane) * n_sources_ + source];
}

}  // namespace luce::speculation
