#include "llama/scoring/layer_choice.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/log.h"
#include "llama/model/model_identity.h"
#include "llama/scoring/kept_layer.h"
#include "llama/scoring/layer_calibration.h"
#include "llama/scoring/query_scorer.h"

namespace luce::llama {
namespace {

// Before each line, so that it can be told what it is about.
constexpr const char* kAbout = "pages are chosen by the queries of layer ";

using Layers = std::vector<std::int32_t>;

bool has(const Layers& layers, std::int32_t layer) {
    return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

std::string names_of(const Layers& layers) {
    std::string names;
    for (const std::int32_t layer : layers) names += (names.empty() ? "" : ", ") + std::to_string(layer);
    return names;
}

std::string decimals(double number, int n) {
    char text[32];
    std::snprintf(text, sizeof text, "%.*f", n, number);
    return text;
}

LayerChoice last_of(const Layers& layers, const std::string& why) {
    log_info(kAbout + std::to_string(layers.back()) + ", the last one that has any: " + why);
    return {layers.back(), "last"};
}

LayerChoice by_finding(const Layers& layers, const KeptLayer& found, const char* reason) {
    if (!found.layer)
        return last_of(layers, "no layer of this model finds what its text holds (" + std::string(reason) + ")");
    log_info(kAbout + std::to_string(*found.layer) + " (" + reason + "; it ranks the right page " +
             decimals(found.mean_reciprocal_rank, 2) + ", 1 is always first)");
    return {*found.layer, reason};
}

// All that the finding depends on: the pool decides how many pages are tried.
std::string name_of_finding(const Model& model, const LlamaKvDevice& device, const LayerChoiceOptions& options) {
    return joint_identity(model.info().identity, "layers " + std::to_string(kCalibrationVersion) + " " + options.build +
                                                     " " + std::to_string(n_calibration_pages(device.n_free_cells())));
}

std::optional<KeptLayer> kept_for(const std::string& name, const Layers& layers, const LayerChoiceOptions& options) {
    if (!options.kept_folder) return std::nullopt;
    const Result<std::optional<KeptLayer>> read = read_kept_layer(*options.kept_folder, name);
    if (!read) {
        log_warn("what was found out about this model's layers is found out anew: " + read.error().text);
        return std::nullopt;
    }
    const std::optional<KeptLayer>& kept = read.value();
    if (kept && kept->layer && !has(layers, *kept->layer)) return std::nullopt;
    return kept;
}

void keep(const std::string& name, const KeptLayer& found, const LayerChoiceOptions& options) {
    constexpr const char* kAnew =
        "; every start finds out anew by which layer pages are chosen (--kvflash-layer names one)";
    if (!options.kept_folder) {
        log_warn(std::string("neither XDG_CACHE_HOME nor HOME is a folder's whole path") + kAnew);
    } else if (const Result<void> kept = keep_layer(*options.kept_folder, name, found); !kept) {
        log_warn(kept.error().text + kAnew);
    }
}

Result<KeptLayer> calibrate(const Model& model, LlamaKvDevice& device, std::int32_t n_lanes, const Clock& clock,
                            const LayerChoiceOptions& options) {
    CalibrationLimits limits;
    limits.most_s = options.most_s;
    limits.is_stopped = options.is_stopped;
    limits.on_start = [](std::size_t n_tokens) {
        log_info("finding out by which layer's queries pages are to be chosen: " + std::to_string(n_tokens) +
                 " tokens to compute, once for this model");
    };
    const Result<LayerCalibration> calibrated = calibrate_layers(model, device, n_lanes, clock, limits);
    if (!calibrated) return calibrated.error();
    std::string ranks;
    for (const LayerRank& rank : calibrated.value().ranks) {
        ranks += " " + std::to_string(rank.layer) + "=" + decimals(rank.mean_reciprocal_rank, 3);
    }
    log_info("how the layers rank the right page:" + ranks + " (took " + decimals(calibrated.value().seconds, 1) +
             " s)");
    KeptLayer found;
    if (const auto& best = calibrated.value().best) {
        found = {best->layer, static_cast<float>(best->mean_reciprocal_rank)};
    }
    return found;
}

}  // namespace

Result<LayerChoice> choose_layer(const Model& model, LlamaKvDevice& device, std::int32_t n_lanes, const Clock& clock,
                                 const LayerChoiceOptions& options) {
    const Result<Layers> known = QueryScorer::layers(model, n_lanes);
    if (!known) return known.error();
    const Layers& layers = known.value();
    if (options.asked) {
        if (has(layers, *options.asked)) return LayerChoice{*options.asked, "asked"};
        return Error{ErrorCode::bad_args, "--kvflash-layer " + std::to_string(*options.asked) +
                                              ": pages can be chosen by the queries of layer " + names_of(layers)};
    }
    if (layers.size() == 1) return last_of(layers, "there is no other");
    const std::string name = name_of_finding(model, device, options);
    if (const auto kept = kept_for(name, layers, options)) return by_finding(layers, *kept, "kept");
    const Result<KeptLayer> found = calibrate(model, device, n_lanes, clock, options);
    if (!found) return last_of(layers, "which is best was not found out: " + found.error().text);
    keep(name, found.value(), options);
    return by_finding(layers, found.value(), "calibrated");
}

}  // namespace luce::llama
