// LayerChoice: the layer whose keys pages are compared by: the one that was asked for, the one that an earlier start
// has found, the one that calibrating finds now, or the last one. Composes; says in the log what it does and why.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "llama/kv_cache/kv_device.h"
#include "llama/model/model.h"

namespace luce::llama {

struct LayerChoice {
    std::int32_t layer = 0;
    std::string reason;  // one word: asked, kept, calibrated or last
};

struct LayerChoiceOptions {
    std::optional<std::int32_t> asked;       // unset: as calibrating finds
    std::optional<std::string> kept_folder;  // where findings are kept; none: nowhere
    std::string build;                       // of llama.cpp: another one computes other queries
    std::function<bool()> is_stopped = [] { return false; };
    double most_s = 20;  // that calibrating may take
};

// REQUIRES: nothing is computed or kept on the device yet. Errors: bad_args (the layer asked for is none that can be;
// says which can), unsupported (this model's pages cannot be scored).
Result<LayerChoice> choose_layer(const Model& model, LlamaKvDevice& device, std::int32_t n_lanes, const Clock& clock,
                                 const LayerChoiceOptions& options);

}  // namespace luce::llama
