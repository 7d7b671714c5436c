#include "experts/expert_usage.h"

#include <cmath>
#include <limits>
#include <utility>

namespace luce::experts {
namespace {

// A prompt's use counts as so much of an answer's: enough to begin with, too little to outvote answers.
constexpr double kPrefillWeight = 0.1;
// Tokens of answers after which a use counts half: long enough to tell experts apart that are used alike, short enough
// to follow a conversation from code to prose.
constexpr double kHalfLife = 1024;
constexpr double kMostWeight = 1e12;
// An exchange moves bytes over the link that misses need: it must be worth it, and more than chance.
constexpr double kLeastRatio = 1.25;
constexpr double kLeastGain = 2;

const LayerUse* known_layer(const ExpertProfile& known, const LayerExperts& layer) {
    for (const LayerUse& use : known.layers) {
        if (use.layer == layer.layer && use.decode.size() == layer.place_of.size()) return &use;
    }
    return nullptr;
}

}  // namespace

ExpertUsage::ExpertUsage(const ExpertLayout& layout, const ExpertProfile& known, bool fades) : fades_(fades) {
    for (const LayerExperts& layer : layout.layers) {
        const std::size_t n = layer.place_of.size();
        const LayerUse* use = known_layer(known, layer);
        layers_.push_back(use ? *use : LayerUse{layer.layer, std::vector<double>(n), std::vector<double>(n)});
    }
}

void ExpertUsage::begin_call(std::int32_t n_tokens, bool is_prefill) {
    is_prefill_ = is_prefill;
    if (fades_ && !is_prefill) weight_ *= std::exp2(n_tokens / kHalfLife);
    if (weight_ > kMostWeight) rescale();
}

void ExpertUsage::rescale() {
    for (LayerUse& layer : layers_) {
        for (auto* counts : {&layer.decode, &layer.prefill}) {
            for (double& count : *counts) count /= weight_;
        }
    }
    weight_ = 1;
}

void ExpertUsage::count(std::size_t layer, std::span<const std::int32_t> experts) {
    auto& counts = is_prefill_ ? layers_[layer].prefill : layers_[layer].decode;
    for (const std::int32_t expert : experts) counts[static_cast<std::size_t>(expert)] += weight_;
}

double ExpertUsage::value(std::size_t layer, std::size_t expert) const {
    return (layers_[layer].decode[expert] + kPrefillWeight * layers_[layer].prefill[expert]) / weight_;
}

ExpertUse ExpertUsage::values() const {
    ExpertUse all(layers_.size());
    for (std::size_t l = 0; l < layers_.size(); ++l) {
        for (std::size_t expert = 0; expert < layers_[l].decode.size(); ++expert) all[l].push_back(value(l, expert));
    }
    return all;
}

Exchange ExpertUsage::best(const ExpertLayout& layout, std::size_t l) const {
    const LayerExperts& layer = layout.layers[l];
    if (layer.free_place < 0) return {};
    Exchange next{.layer = l};
    double most = -1, least = std::numeric_limits<double>::max();
    for (std::int32_t place = 0; place < static_cast<std::int32_t>(layer.expert_in.size()); ++place) {
        const std::int32_t expert = layer.expert_in[static_cast<std::size_t>(place)];
        if (expert == kNoExpert) continue;
        const double used = value(l, static_cast<std::size_t>(expert));
        if (place < layer.n_device_places && used < least) {
            least = used;
            next.goes = expert;
        } else if (place >= layer.first_host_place && used > most) {
            most = used;
            next.comes = expert;
        }
    }
    if (next.comes == kNoExpert || most - least < kLeastGain || most < kLeastRatio * least) return {};
    next.gain = most - least;
    return next;
}

ExpertProfile ExpertUsage::profile(const std::string& identity) const {
    ExpertUsage now = *this;
    now.rescale();
    return {identity, std::move(now.layers_)};
}

}  // namespace luce::experts
