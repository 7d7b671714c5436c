// LayerChoice: the attention layer whose keys pages are compared by: the one that was asked for, or the one at the
// depth that has proved good, by architecture. Must not know how pages are scored. `luce calibrate` finds out for a
// model.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "llama/decoding/context_owner.h"

namespace luce::llama {

struct LayerChoice {
    std::int32_t layer = 0;
    std::vector<std::int32_t> layers;  // those that can be asked for, ascending
};

// Of these layers, ascending. REQUIRES: at least one.
std::int32_t usual_layer(std::string_view architecture, std::span<const std::int32_t> layers);

// No computation may be under way. Errors: bad_args (the layer asked for is none that can be; says which can),
// unsupported (this model's pages cannot be scored).
Result<LayerChoice> choose_layer(const ContextOwner& owner, std::int32_t n_lanes, std::optional<std::int32_t> asked);

}  // namespace luce::llama
