#include "llama/model/kv_cache_type.h"

#include <array>

#include "llama-model.h"

namespace luce::llama {
namespace {

constexpr std::array kTypes = {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q8_0,  GGML_TYPE_Q4_0,
                               GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_IQ4_NL};

// The first head size that the type's block does not divide, or 0.
std::uint32_t undivided_head_size(const llama_model* model, ggml_type type, bool is_key) {
    const auto block = static_cast<std::uint32_t>(ggml_blck_size(type));
    const llama_hparams& hparams = model->hparams;
    for (std::uint32_t layer = 0; layer < hparams.n_layer_all; ++layer) {
        const std::uint32_t size = is_key ? hparams.n_embd_head_k(layer) : hparams.n_embd_head_v(layer);
        if (size % block != 0) return size;
    }
    return 0;
}

}  // namespace

KvCacheTypes default_kv_cache_types(const llama_model* model, bool on_gpu) {
    if (on_gpu) return {GGML_TYPE_F16, GGML_TYPE_F16};
    const auto choose = [model](bool is_key) {
        return undivided_head_size(model, GGML_TYPE_Q8_0, is_key) == 0 ? GGML_TYPE_Q8_0 : GGML_TYPE_BF16;
    };
    return {choose(true), choose(false)};
}

Result<ggml_type> parse_kv_cache_type(const std::string& name) {
    std::string known;
    for (const ggml_type type : kTypes) {
        if (name == ggml_type_name(type)) return type;
        known.append(known.empty() ? "" : ", ").append(ggml_type_name(type));
    }
    return Error{ErrorCode::bad_args, "cache type '" + name + "' is unknown; choose one of " + known};
}

Result<void> check_kv_cache_types(const llama_model* model, KvCacheTypes types, bool flash_attention_off,
                                  const std::string& option) {
    for (const bool is_key : {true, false}) {
        const ggml_type type = is_key ? types.k : types.v;
        if (const std::uint32_t size = undivided_head_size(model, type, is_key)) {
            return Error{ErrorCode::bad_args, option + (is_key ? "k " : "v ") + ggml_type_name(type) +
                                                  " needs head sizes in multiples of " +
                                                  std::to_string(ggml_blck_size(type)) + "; this model has one of " +
                                                  std::to_string(size) + " (use bf16 or f16)"};
        }
    }
    if (flash_attention_off && ggml_is_quantized(types.v)) {
        return Error{ErrorCode::bad_args, option + "v " + ggml_type_name(types.v) +
                                              " needs flash attention; drop --flash-attn off or choose " + option +
                                              "v f16"};
    }
    return {};
}

}  // namespace luce::llama
