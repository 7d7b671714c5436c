// AcceptanceEstimator: how likely a drafted token is right, learnt from verdicts. A source's confidence says something,
// but not in the unit it claims: counts of what came true, by confidence and by place in the draft, turn it into a
// probability, for each source, all lanes together. Texts differ from one another more than that: each lane has an
// offset on the logit for each source, found by the gradient of its own verdicts.
//
// Whether a token is right matters only if those before it were, and only then is it counted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/token.h"
#include "speculation/draft_source.h"

namespace luce::speculation {

class AcceptanceEstimator {
public:
    // REQUIRES in all calls: lane and source within these numbers.
    AcceptanceEstimator(std::size_t n_lanes, std::size_t n_sources);

    // By token: the chance that it and all before it are right. Confidences may be any floats.
    void chances(LaneId lane, SourceIndex source, std::span<const float> confidence, std::span<float> chances) const;

    // A token by itself, so many after the draft's first: the chance that it is right if those before it are, and
    // whether it was.
    double chance_of(LaneId lane, SourceIndex source, float confidence, std::size_t index) const;
    void observe_one(LaneId lane, SourceIndex source, float confidence, std::size_t index, bool was_right);

    // Of these tokens the first n_accepted were right; the one after them, if it is among them, was not.
    void observe(LaneId lane, SourceIndex source, std::span<const float> confidence, std::int32_t n_accepted);

    // A step went by: what was seen in the lane counts a little less.
    void fade(LaneId lane);

    // The lane serves another text.
    void begin(LaneId lane);

private:
    static constexpr std::size_t kConfidences = 12;
    static constexpr std::size_t kPlaces = 4;

    struct Count {
        float right = 0;
        float all = 0;
    };
    struct Calibration {
        std::array<Count, kConfidences> common{};
        std::array<std::array<Count, kPlaces>, kConfidences> by_place{};
    };
    struct Offset {
        float logit = 0;
        float n_seen = 0;
    };

    static std::size_t bucket_of(float confidence);
    static std::size_t place_of(std::size_t index);
    static void count(Count& count, bool was_right);

    double calibrated(SourceIndex source, float confidence, std::size_t index) const;
    double chance(const Offset& offset, SourceIndex source, float confidence, std::size_t index) const;
    Offset& offset_of(LaneId lane, SourceIndex source);
    const Offset& offset_of(LaneId lane, SourceIndex source) const;

    std::size_t n_sources_;
    std::vector<Calibration> calibrations_;  // by source
    std::vector<Offset> offsets_;            // by lane, then by source
};

}  // namespace luce::speculation
