#include "llama/scoring/layer_choice.h"

#include <algorithm>
#include <string>
#include <utility>

#include "llama/scoring/query_scorer.h"

namespace luce::llama {
namespace {

// Layers before it know what is said, those behind it what comes next. As a share of the depth, which holds for models
// of other sizes. Measured: of the packaged model's three layers (qwen35) the second and the third find 24 of 24 facts,
// the first 18; of the packaged scorer's four (qwen3) the second ranks 7 of 12 facts among the first 6 % of a text's
// pages, the third 12, the last 10.
constexpr double kUsualDepth = 2.0 / 3;

// Architectures that want another depth than that, by what `luce calibrate` has found.
struct Depth {
    std::string_view architecture;
    double share;
};
constexpr Depth kDepths[] = {
    {"qwen3", kUsualDepth},
    {"qwen35", kUsualDepth},
};

}  // namespace

std::int32_t usual_layer(std::string_view architecture, std::span<const std::int32_t> layers) {
    const auto* const known = std::find_if(std::begin(kDepths), std::end(kDepths),
                                           [&](const Depth& depth) { return depth.architecture == architecture; });
    const double share = known == std::end(kDepths) ? kUsualDepth : known->share;
    const auto index = static_cast<std::size_t>(share * static_cast<double>(layers.size()));
    return layers[std::min(index, layers.size() - 1)];
}

Result<LayerChoice> choose_layer(const ContextOwner& owner, std::int32_t n_lanes, std::optional<std::int32_t> asked) {
    Result<std::vector<std::int32_t>> known = QueryScorer::layers(owner, n_lanes);
    if (!known) return known.error();
    std::vector<std::int32_t>& layers = known.value();
    if (!asked) {
        const std::int32_t layer = usual_layer(owner.architecture(), layers);
        return LayerChoice{layer, std::move(layers)};
    }
    if (std::find(layers.begin(), layers.end(), *asked) != layers.end()) return LayerChoice{*asked, std::move(layers)};
    std::string names;
    for (const std::int32_t layer : layers) names += (names.empty() ? "" : ", ") + std::to_string(layer);
    return Error{ErrorCode::bad_args, "--kv-offload-layer " + std::to_string(*asked) +
                                          ": pages can be chosen by the queries of layer " + names};
}

}  // namespace luce::llama
