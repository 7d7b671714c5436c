// LayerChoice: the attention layer whose keys pages are compared by: the one that was asked for, else the one that
// copies best (CopyTrial), else one at a depth that is good in many models. Must not know how pages are scored.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "llama/decoding/context_owner.h"
#include "llama/scoring/copy_trial.h"

namespace luce::llama {

struct LayerChoice {
    std::int32_t layer = 0;
    std::vector<std::int32_t> layers;  // those that can be asked for, ascending
};

// Of these layers, ascending, where none copies. REQUIRES: at least one.
std::int32_t usual_layer(std::span<const std::int32_t> layers);

// By a trial, which computes some tokens of sequence 0 and leaves it full. Fails over to the usual layer, and says so.
// REQUIRES: sequence 0 is empty, and no computation is under way; a layer of the cache has keys that can be found.
std::int32_t best_layer(llama_context& context, llama_kv_cache& cache, const CopyTrial::Compute& compute);

// Unless a layer is asked for, the context is tried, and empty afterwards. REQUIRES: it is empty, and no computation is
// under way. Errors: bad_args (the layer asked for is none that can be; says which can), unsupported (this model's
// pages cannot be scored).
Result<LayerChoice> choose_layer(const ContextOwner& owner, std::int32_t n_lanes, std::optional<std::int32_t> asked);

}  // namespace luce::llama
