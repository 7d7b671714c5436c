#include "llama/model/rope_options.h"

#include <llama.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "llama-hparams.h"
#include "llama-model.h"

namespace luce::llama {
namespace {

constexpr double kMostCtx = 1 << 30;

llama_rope_scaling_type scaling_type(RopeScaling scaling) {
    switch (scaling) {
        case RopeScaling::none: return LLAMA_ROPE_SCALING_TYPE_NONE;
        case RopeScaling::linear: return LLAMA_ROPE_SCALING_TYPE_LINEAR;
        case RopeScaling::yarn: return LLAMA_ROPE_SCALING_TYPE_YARN;
    }
    return LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED;
}

const char* name_of(RopeScaling scaling) {
    switch (scaling) {
        case RopeScaling::none: return "none";
        case RopeScaling::linear: return "linear";
        case RopeScaling::yarn: return "yarn";
    }
    return "";
}

llama_rope_scaling_type scaling_of(const llama_model* model, const RopeOptions& rope) {
    return rope.scaling ? scaling_type(*rope.scaling) : model->hparams.rope_scaling_type_train;
}

Error bad_rope(std::string text) { return {ErrorCode::bad_args, std::move(text)}; }

}  // namespace

void RopeOptions::apply(llama_context_params& params) const {
    if (scaling) params.rope_scaling_type = scaling_type(*scaling);
    params.rope_freq_base = freq_base.value_or(params.rope_freq_base);
    params.rope_freq_scale = freq_scale.value_or(params.rope_freq_scale);
    params.yarn_orig_ctx = yarn_orig_ctx.value_or(params.yarn_orig_ctx);
    params.yarn_ext_factor = yarn_ext_factor.value_or(params.yarn_ext_factor);
    params.yarn_attn_factor = yarn_attn_factor.value_or(params.yarn_attn_factor);
    params.yarn_beta_slow = yarn_beta_slow.value_or(params.yarn_beta_slow);
    params.yarn_beta_fast = yarn_beta_fast.value_or(params.yarn_beta_fast);
}

std::int32_t RopeOptions::extended(const llama_model* model, std::int32_t n_ctx_train) const {
    const float scale = freq_scale.value_or(model->hparams.rope_freq_scale_train);
    if (!freq_scale || scaling_of(model, *this) == LLAMA_ROPE_SCALING_TYPE_NONE) return n_ctx_train;
    const std::uint32_t n_of_file = model->hparams.n_ctx_orig_yarn;
    const std::uint32_t n_orig =
        yarn_orig_ctx.value_or(n_of_file != 0 ? n_of_file : static_cast<std::uint32_t>(n_ctx_train));
    return static_cast<std::int32_t>(
        std::clamp(static_cast<double>(n_orig) / static_cast<double>(scale), 1.0, kMostCtx));
}

std::string RopeOptions::text() const {
    std::string all;
    const auto add = [&all](const char* name, const std::string& value) {
        all.append(all.empty() ? "" : ", ").append(name).append(" ").append(value);
    };
    if (scaling) add("scaling", name_of(*scaling));
    if (yarn_orig_ctx) add("yarn-orig-ctx", std::to_string(*yarn_orig_ctx));
    const std::pair<const char*, const std::optional<float>&> numbers[] = {
        {"freq-base", freq_base},
        {"freq-scale", freq_scale},
        {"yarn-ext-factor", yarn_ext_factor},
        {"yarn-attn-factor", yarn_attn_factor},
        {"yarn-beta-slow", yarn_beta_slow},
        {"yarn-beta-fast", yarn_beta_fast},
    };
    for (const auto& [name, number] : numbers) {
        if (!number) continue;
        std::array<char, 32> digits{};
        std::snprintf(digits.data(), digits.size(), "%.9g", static_cast<double>(*number));
        add(name, digits.data());
    }
    return all;
}

Result<void> check_rope(const llama_model* model, const RopeOptions& rope) {
    if (rope.text().empty()) return {};
    if (llama_model_rope_type(model) == LLAMA_ROPE_TYPE_NONE) {
        return bad_rope("--rope-… and --yarn-…: a " + model->arch_name() + " model does not rotate positions");
    }
    const llama_rope_scaling_type scaling = scaling_of(model, rope);
    if (scaling == LLAMA_ROPE_SCALING_TYPE_LONGROPE ||
        model->hparams.rope_scaling_type_train == LLAMA_ROPE_SCALING_TYPE_LONGROPE) {
        return bad_rope(
            "--rope-… and --yarn-…: this model has rope factors of its own (LongRoPE), which they would not go with");
    }
    if (scaling == LLAMA_ROPE_SCALING_TYPE_NONE && rope.freq_scale) {
        return bad_rope(
            "--rope-scale: the model's file says that positions are not scaled; give --rope-scaling linear or yarn "
            "too");
    }
    const bool is_yarn = scaling == LLAMA_ROPE_SCALING_TYPE_YARN;
    const bool has_yarn = rope.yarn_orig_ctx || rope.yarn_ext_factor || rope.yarn_attn_factor || rope.yarn_beta_slow ||
                          rope.yarn_beta_fast;
    if (has_yarn && !is_yarn) return bad_rope("--yarn-… is for --rope-scaling yarn: give that too, or leave it out");
    const float of_file = model->hparams.yarn_ext_factor;
    const float ext = rope.yarn_ext_factor.value_or(of_file >= 0 ? of_file : 1.0F);
    if (rope.yarn_attn_factor && ext != 0) {
        return bad_rope("--yarn-attn-factor counts with --yarn-ext-factor 0 alone: otherwise llama.cpp computes it");
    }
    return {};
}

}  // namespace luce::llama
