#include "llama/gguf_check/model_check.h"

#include <llama.h>

#include <string>
#include <string_view>

#include "llama-model.h"
#include "llama/gguf_check/error_line.h"

namespace luce::llama {
namespace {

Error refused(std::string text) { return {ErrorCode::start_failed, std::move(text)}; }

Result<void> check_numbers(const llama_model* model) {
    char key[256];
    char value[16];
    for (std::int32_t i = 0; i < llama_model_meta_count(model); ++i) {
        llama_model_meta_key_by_index(model, i, key, sizeof key);
        llama_model_meta_val_str_by_index(model, i, value, sizeof value);
        const std::string_view number = value;
        if (number == "nan" || number == "-nan" || number == "inf" || number == "-inf") {
            return refused(printable(key) + " is " + value + ", must be finite");
        }
    }
    return {};
}

// Rope turns pairs of a head's dimensions; ggml asserts that, and loops for ever over none.
Result<void> check_rope(const llama_model* model) {
    if (llama_model_rope_type(model) == LLAMA_ROPE_TYPE_NONE) return {};
    for (std::uint32_t il = 0; il < model->hparams.n_layer_all; ++il) {
        const std::uint32_t n_head = model->hparams.n_embd_head_k(il);
        const std::uint32_t n_rotated = model->hparams.n_rot(il);
        if (n_head == 0 || (n_rotated > 0 && n_rotated % 2 == 0 && n_rotated <= n_head)) continue;
        return refused("rope.dimension_count " + std::to_string(n_rotated) +
                       " must be even and at most the head size, " + std::to_string(n_head));
    }
    return {};
}

// RWKV's heads are computed some numbers at a time, 64 with AVX-512, and nothing looks for a rest: it would be written
// behind the head's end.
Result<void> check_heads(const llama_model* model) {
    constexpr std::uint32_t kStep = 64;
    const std::uint32_t n = model->hparams.wkv_head_size;
    if (n % kStep == 0) return {};
    return refused("wkv.head_size " + std::to_string(n) + " must be a multiple of " + std::to_string(kStep));
}

// Tensors of ids rather than weights: routing by token, a drafter's map of its vocabulary.
bool holds_integers(std::string_view name) {
    return name.find("tid2eid") != std::string_view::npos || name.starts_with("d2t") || name.starts_with("t2d");
}

// The quantisations that exist only for activations have no kernel that reads them as weights, and what is multiplied
// value by value no kernel that reads a quantised one.
Result<void> check_types(const llama_model* model) {
    for (const auto& [name, tensor] : model->tensors_by_name) {
        if (holds_integers(name)) continue;
        const ggml_type type = tensor->type;
        const bool is_plain = type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
        const bool is_quantized = ggml_is_quantized(type) && type != GGML_TYPE_Q8_1 && type != GGML_TYPE_Q8_K;
        const bool is_norm = ggml_n_dims(tensor) == 1 && std::string_view(name).ends_with("norm.weight");
        if (is_plain || (is_quantized && !is_norm)) continue;
        return refused("tensor " + printable(name) + " has type " + ggml_type_name(type) +
                       (is_quantized ? ", must not be quantised" : ", which is no type of weights"));
    }
    return {};
}

}  // namespace

Result<void> check_computable(const llama_model* model) {
    if (Result<void> checked = check_numbers(model); !checked) return checked;
    if (Result<void> checked = check_rope(model); !checked) return checked;
    if (Result<void> checked = check_heads(model); !checked) return checked;
    return check_types(model);
}

}  // namespace luce::llama
