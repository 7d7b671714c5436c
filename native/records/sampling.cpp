#include "records/sampling.h"

#include <algorithm>

namespace luce::records {

bool is_greedy(const SamplingArgs& sampling) {
    return sampling.temperature < kMinTemperature && sampling.dynatemp_range <= 0.0F;
}

bool has_penalties(const SamplingArgs& sampling) {
    const bool changes =
        sampling.repeat_penalty != 1.0F || sampling.presence_penalty != 0.0F || sampling.frequency_penalty != 0.0F;
    return changes && sampling.repeat_last_n > 0;
}

bool has_dry(const SamplingArgs& sampling) {
    return sampling.dry_multiplier > 0.0F && sampling.dry_base >= 1.0F && sampling.dry_last_n > 0;
}

bool is_ordered(const SamplingArgs& sampling, SamplerKind kind) {
    return std::find(sampling.order.begin(), sampling.order.end(), kind) != sampling.order.end();
}

}  // namespace luce::records
