// RopeOptions: how positions are seen where that is not to be as the model's file says: scaled, by YaRN, by another
// base. Part of what a text's memory depends on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"

struct llama_context_params;
struct llama_model;

namespace luce::llama {

enum class RopeScaling { none, linear, yarn };

struct RopeOptions {
    std::optional<RopeScaling> scaling;
    std::optional<float> freq_base;
    std::optional<float> freq_scale;  // of positions: 0.25 for texts four times as long
    std::optional<std::uint32_t> yarn_orig_ctx;
    std::optional<float> yarn_ext_factor;
    std::optional<float> yarn_attn_factor;
    std::optional<float> yarn_beta_slow;
    std::optional<float> yarn_beta_fast;

    void apply(llama_context_params& params) const;

    // Tokens of the longest text that the model is good for with these, of n_ctx_train without.
    std::int32_t extended(const llama_model* model, std::int32_t n_ctx_train) const;

    // The same for equal options, and empty without any.
    std::string text() const;
};

// Whether llama.cpp does with a context made by `params` what `rope` says. Errors: bad_args.
Result<void> check_rope(const llama_model* model, const RopeOptions& rope);

}  // namespace luce::llama
