#include "llama/gguf_check/draft_fit.h"

#include <llama.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ggml-backend.h"
#include "llama-context.h"
#include "llama-ext.h"
#include "llama-model.h"
#include "speculative.h"

namespace luce::llama {
namespace {

// Architectures whose graph llama.cpp can make for the heads alone.
constexpr std::array kHaveHeadGraph{
    LLM_ARCH_BAILINGMOE3, LLM_ARCH_COHERE2MOE, LLM_ARCH_DEEPSEEK2, LLM_ARCH_DEEPSEEK32, LLM_ARCH_DEEPSEEK4,
    LLM_ARCH_GLM4_MOE,    LLM_ARCH_GLM_DSA,    LLM_ARCH_HY_V3,     LLM_ARCH_MIMO2,      LLM_ARCH_NEMOTRON_H_MOE,
    LLM_ARCH_QWEN35,      LLM_ARCH_QWEN35MOE,  LLM_ARCH_QWEN3NEXT, LLM_ARCH_STEP35};

constexpr std::int32_t kDefaultBlock = 16;  // llama.cpp's, where a DFlash file does not say

Error does_not_fit(const std::string& why) {
    return {ErrorCode::start_failed, "the draft does not fit the model: " + why};
}

std::string number(std::int64_t n) { return std::to_string(n); }

bool has_texts(const llama_model* model) {
    return llama_vocab_type(llama_model_get_vocab(model)) != LLAMA_VOCAB_TYPE_NONE;
}

Result<void> check_vocabulary(const llama_model* draft, const llama_model* target, bool must_be_equal) {
    const std::int32_t n_draft = llama_vocab_n_tokens(llama_model_get_vocab(draft));
    const std::int32_t n_target = llama_vocab_n_tokens(llama_model_get_vocab(target));
    if (must_be_equal && n_draft != n_target) {
        return does_not_fit("its vocabulary has " + number(n_draft) + " tokens, the model's " + number(n_target));
    }
    if (!has_texts(draft) || !has_texts(target)) {
        if (has_texts(draft) == has_texts(target) && n_draft == n_target) return {};
        return does_not_fit("one of them has a vocabulary without texts, so that nothing says that they are the same");
    }
    if (common_speculative_are_compatible(target, draft)) return {};
    return does_not_fit("its vocabulary is another one (its " + number(n_draft) + " tokens and the model's " +
                        number(n_target) + " must have the same texts)");
}

Result<void> check_simple(const llama_model* draft) {
    if (llama_model_has_encoder(draft) || !llama_model_has_decoder(draft) || llama_model_is_diffusion(draft)) {
        return does_not_fit("a " + draft->arch_name() + " model does not go on with a text token by token");
    }
    if (llama_model_is_recurrent(draft) && !llama_model_is_hybrid(draft)) {
        return does_not_fit("a " + draft->arch_name() +
                            " model keeps no cells for the positions of a text; use one with attention, too");
    }
    return {};
}

// Hidden states are handed out by the size that a file names for its outputs.
Result<void> check_hidden_output(const llama_model* model) {
    const std::int32_t n_embd = llama_model_n_embd(model);
    const std::int32_t n_out = llama_model_n_embd_out(model);
    if (n_out == n_embd) return {};
    return does_not_fit("embedding_length_out of a " + model->arch_name() + " model is " + number(n_out) +
                        ", its hidden size " + number(n_embd));
}

// What is not multiplied as a matrix is computed with as it is; ggml asserts that it is of this type.
Result<void> check_vectors(const llama_model* draft) {
    for (const auto& [name, tensor] : draft->tensors_by_name) {
        // A matrix of one row looks like a vector.
        const bool is_matrix = ggml_n_dims(tensor) > 1 || tensor == draft->dspark_conf_proj;
        if (is_matrix || tensor->type == GGML_TYPE_F32 || tensor == draft->d2t) continue;
        return does_not_fit("its " + name + " is of type " + ggml_type_name(tensor->type) + " instead of f32");
    }
    return {};
}

Result<void> check_hidden_size(const llama_model* draft, const llama_model* target) {
    const std::int32_t n_draft = llama_model_n_embd_out(draft);
    const std::int32_t n_target = llama_model_n_embd_out(target);
    if (Result<void> checked = check_hidden_output(target); !checked) return checked;
    if (n_draft == n_target) return {};
    return does_not_fit("it is made for a hidden size of " + number(n_draft) + ", the model's is " + number(n_target));
}

Result<void> check_heads(const llama_model* draft, const llama_model* target) {
    if (llama_model_n_layer_nextn(draft) == 0) return does_not_fit("the file has no MTP heads");
    if (std::find(kHaveHeadGraph.begin(), kHaveHeadGraph.end(), draft->arch) == kHaveHeadGraph.end()) {
        return does_not_fit("llama.cpp does not run the MTP heads of " + draft->arch_name() + " models");
    }
    if (draft->arch != target->arch) {
        return does_not_fit("it has the MTP heads of a " + draft->arch_name() + " model, not of a " +
                            target->arch_name() + " one");
    }
    const auto n_trunk = static_cast<std::size_t>(draft->hparams.n_layer());
    if (draft->layers[n_trunk].nextn.eh_proj == nullptr) {
        return does_not_fit(draft == target ? "the model's MTP heads were not loaded" : "its MTP heads are missing");
    }
    if (Result<void> checked = check_hidden_output(draft); !checked) return checked;
    return check_hidden_size(draft, target);
}

// Its sliding layers read the target's last but one layer, the others the last one, without asking what those are.
Result<void> check_assistant(const llama_model* draft, const llama_model* target) {
    if (target->arch != LLM_ARCH_GEMMA4) {
        return does_not_fit("it is an assistant of Gemma 4 models, the model is a " + target->arch_name() + " one");
    }
    const llama_hparams& own = draft->hparams;
    const llama_hparams& its = target->hparams;
    const std::uint32_t n_layers = its.n_layer();
    if (n_layers < 2 || !its.is_swa(n_layers - 2) || its.is_swa(n_layers - 1)) {
        return does_not_fit("the model's last two layers are not a sliding one and one without a window");
    }
    for (std::uint32_t il = 0; il < own.n_layer_nextn; ++il) {
        const std::uint32_t donor = own.is_swa(il) ? n_layers - 2 : n_layers - 1;
        if (own.n_embd_head_k(il) == its.n_embd_head_k(donor) && own.n_embd_head_v(il) == its.n_embd_head_v(donor) &&
            own.n_head_kv(il) == its.n_head_kv(donor) && own.n_head(il) % own.n_head_kv(il) == 0) {
            continue;
        }
        return does_not_fit("the KV heads of its layer " + number(il) + " are not those of the model's layer " +
                            number(donor));
    }
    return check_hidden_size(draft, target);
}

Result<void> check_token_map(const ggml_tensor* map, std::int32_t n_vocab) {
    if (map->type != GGML_TYPE_I64) return does_not_fit("its d2t is not of 64-bit integers");
    std::vector<std::int64_t> ids(static_cast<std::size_t>(ggml_nelements(map)));
    ggml_backend_tensor_get(map, ids.data(), 0, ids.size() * sizeof ids[0]);
    for (const std::int64_t id : ids) {
        if (id < 0 || id >= n_vocab)
            return does_not_fit("its d2t names token " + number(id) + " of " + number(n_vocab));
    }
    return {};
}

Result<void> check_eagle3(const llama_model* draft, const llama_model* target) {
    for (const llama_model* model : {draft, target}) {
        if (Result<void> checked = check_hidden_output(model); !checked) return checked;
    }
    const llama_hparams& hparams = draft->hparams;
    const std::int32_t n_embd = llama_model_n_embd(target);
    const auto n_read = static_cast<std::int64_t>(llama_model_target_layer_ids_n(draft));
    if (hparams.n_layer() != 1 || hparams.n_embd_head_k() != hparams.n_embd_head_v()) {
        return does_not_fit("an EAGLE-3 draft is one layer whose keys and values have one size");
    }
    if (hparams.n_embd_inp_enc() != n_read * n_embd) {
        return does_not_fit("it reads features of size " + number(hparams.n_embd_inp_enc()) + ", the model's are " +
                            number(n_read) + " times " + number(n_embd));
    }
    for (std::int64_t i = 0; i < n_read; ++i) {
        const std::int32_t layer = llama_model_target_layer_ids(draft)[i];
        const std::int32_t n_layers = llama_model_n_layer(target);
        if (layer >= 0 && layer <= n_layers) continue;
        return does_not_fit("it reads layer " + number(layer) + " of a model with " + number(n_layers));
    }
    const bool borrows = draft->tok_embd == nullptr || draft->output == nullptr;
    if (borrows && (llama_model_n_embd(draft) != n_embd || target->tok_embd == nullptr || target->output == nullptr)) {
        return does_not_fit("it has no embeddings or output of its own, and the model's are of size " + number(n_embd) +
                            ", not " + number(llama_model_n_embd(draft)));
    }
    const std::int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(draft));
    if (draft->tok_embd != nullptr && draft->tok_embd->ne[1] != n_vocab) {
        return does_not_fit("its embeddings are of " + number(draft->tok_embd->ne[1]) + " tokens, its vocabulary has " +
                            number(n_vocab));
    }
    return draft->d2t == nullptr ? Result<void>() : check_token_map(draft->d2t, n_vocab);
}

// None: the file says nonsense.
std::optional<std::int32_t> metadata_number(const llama_model* model, const char* key, std::int32_t otherwise) {
    char text[32] = {};
    if (llama_model_meta_val_str(model, key, text, sizeof text) < 0) return otherwise;
    std::int32_t n = 0;
    const auto [end, error] = std::from_chars(text, text + std::strlen(text), n);
    return error == std::errc() && *end == '\0' ? std::optional(n) : std::nullopt;
}

// llama.cpp's graphs of the heads assert what they need.
Result<void> check_dflash_head(const llama_model* draft) {
    char text[8] = {};
    if (dflash_head(draft) == DflashHead::markov &&
        llama_model_meta_val_str(draft, "dflash.block_size", text, sizeof text) < 0) {
        return does_not_fit("a DSpark drafter's file has to say how large its block is (dflash.block_size)");
    }
    if (llama_model_dflash_selector_top_k(draft) > 0 && draft->dflash_selector_hidden == nullptr) {
        return does_not_fit("it names a selector (dflash.selector_top_k) and has none");
    }
    for (const llama_layer& layer : draft->layers) {
        for (const ggml_tensor* base : {layer.dflash_attn_conv_base, layer.dflash_ffn_conv_base}) {
            if (base == nullptr || base->type == GGML_TYPE_F32) continue;
            return does_not_fit(std::string("its ") + base->name + " is of type " + ggml_type_name(base->type) +
                                " instead of f32");
        }
    }
    return {};
}

Result<void> check_dflash(const llama_model* draft, const llama_model* target) {
    const std::uint32_t n_read = llama_model_target_layer_ids_n(draft);
    if (n_read == 0) return does_not_fit("it names no layers of the target to read");
    const std::int32_t n_layers = llama_model_n_layer(target);
    for (std::uint32_t i = 0; i < n_read; ++i) {
        const std::int32_t layer = llama_model_target_layer_ids(draft)[i];
        if (layer >= 0 && layer < n_layers) continue;
        return does_not_fit("it reads layer " + number(layer) + " of a model with " + number(n_layers));
    }
    const std::int32_t n_embd = llama_model_n_embd(target);
    if (llama_model_n_embd(draft) != n_embd) {
        return does_not_fit("its hidden size is " + number(llama_model_n_embd(draft)) + ", the model's " +
                            number(n_embd));
    }
    const std::int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(draft));
    const llama_token mask = dflash_mask_token(draft);
    if (mask < 0 || mask >= n_vocab) return does_not_fit("it names no mask token (tokenizer.ggml.mask_token_id)");
    if (dflash_block_size(draft) < 2) {
        return does_not_fit("its block has no room for a drafted token (dflash.block_size)");
    }
    if (Result<void> checked = check_dflash_head(draft); !checked) return checked;
    return draft->d2t == nullptr ? Result<void>() : check_token_map(draft->d2t, n_vocab);
}

}  // namespace

Result<void> check_draft_fits(DraftKind kind, const llama_model* draft, const llama_model* target) {
    if (draft != target) {
        if (Result<void> checked = check_vocabulary(draft, target, kind != DraftKind::simple); !checked) return checked;
        if (Result<void> checked = check_vectors(draft); !checked) return checked;
    }
    switch (kind) {
        case DraftKind::simple: return check_simple(draft);
        case DraftKind::mtp: return check_heads(draft, target);
        case DraftKind::assistant: return check_assistant(draft, target);
        case DraftKind::eagle3: return check_eagle3(draft, target);
        case DraftKind::dflash: return check_dflash(draft, target);
    }
    return does_not_fit("its kind is not known");
}

DflashHead dflash_head(const llama_model* draft) {
    if (draft->dspark_markov_w1 != nullptr) return DflashHead::markov;
    return draft->dflash_selector_hidden != nullptr ? DflashHead::selector : DflashHead::none;
}

// llama.cpp's default, where a file does not say.
std::int32_t dflash_first_place(const llama_model* draft) {
    char text[8] = {};
    const bool says = llama_model_meta_val_str(draft, "dflash.sample_from_anchor", text, sizeof text) >= 0;
    return dflash_head(draft) == DflashHead::markov && (!says || std::string_view(text) == "true") ? 0 : 1;
}

std::int32_t dflash_block_size(const llama_model* draft) {
    return metadata_number(draft, "dflash.block_size", kDefaultBlock).value_or(0);
}

// libllama's own reading of the key takes causal for the default, as it is for other models.
bool dflash_is_causal(const llama_model* draft) {
    char text[8] = {};
    return llama_model_meta_val_str(draft, "dflash.attention.causal", text, sizeof text) >= 0 &&
           std::string_view(text) == "true";
}

llama_token dflash_mask_token(const llama_model* draft) {
    const llama_token mask = llama_vocab_mask(llama_model_get_vocab(draft));
    if (mask != LLAMA_TOKEN_NULL) return mask;
    // Of a vocabulary without texts libllama reads no special tokens.
    return metadata_number(draft, "tokenizer.ggml.mask_token_id", LLAMA_TOKEN_NULL).value_or(LLAMA_TOKEN_NULL);
}

Result<void> check_target_gives(llama_context* target, std::span<const std::int32_t> layers, bool wants_hidden) {
    if (layers.empty() && !wants_hidden) return {};
    const llama_model* model = llama_get_model(target);
    if (llama_graph_reserve(target, 1, 1, 1) == nullptr) return does_not_fit("the model's graph cannot be made");
    llm_graph_result* graph = target->get_gf_res_reserve();
    const std::int32_t n_layers = llama_model_n_layer(model);
    for (const std::int32_t layer : layers) {
        wants_hidden = wants_hidden || layer == n_layers;
        if (layer == n_layers || graph->get_layer_inp(layer) != nullptr) continue;
        return does_not_fit("this llama.cpp does not hand out what goes into the layers of " + model->arch_name() +
                            " models (cmake/patches has what is known to be missing)");
    }
    if (wants_hidden && graph->get_h_nextn() == nullptr) {
        return does_not_fit("llama.cpp does not hand out the hidden states of " + model->arch_name() + " models");
    }
    return {};
}

}  // namespace luce::llama
