#include "llama/model/context_sizes.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "common.h"
#include "llama-hparams.h"
#include "llama-model.h"

namespace luce::llama {
namespace {

// Rows of logits that a call may have beside those that tokens are chosen from: reading a prompt for its own
// log-probabilities takes a call for as many tokens. Each costs a vocabulary of floats in the computation's buffers.
constexpr std::int32_t kPromptLogits = 32;
// On a processor ggml computes attention over an f16 cache otherwise for fewer than 64 tokens (GGML_FA_TILE_Q): half of
// these are not fewer, so that a prompt of 64 tokens or more has the log-probabilities that one long call gives.
constexpr std::int32_t kPromptLogitsOnCpu = 128;
// At least, where drafts are verified: a lane that decodes alone may copy long passages.
constexpr std::int32_t kCopyLogits = 48;

Error refused(std::string text) { return {ErrorCode::start_failed, std::move(text)}; }

llama_flash_attn_type flash_attn_type(FlashAttention choice) {
    switch (choice) {
        case FlashAttention::on: return LLAMA_FLASH_ATTN_TYPE_ENABLED;
        case FlashAttention::off: return LLAMA_FLASH_ATTN_TYPE_DISABLED;
        case FlashAttention::automatic: break;
    }
    return LLAMA_FLASH_ATTN_TYPE_AUTO;
}

// How many recurrent states each lane keeps to go back to when drafted tokens are rejected: one a token, as many as the
// budget holds. libllama refuses a context whose ubatch does not take them all.
std::uint32_t n_rollback_states(const llama_model* model, const ModelOptions& options, std::size_t state_bytes) {
    if (options.n_draft_most == 0) return 0;
    if (!llama_model_is_recurrent(model) && !llama_model_is_hybrid(model)) return 0;
    const std::size_t all_lanes_bytes =
        std::max<std::size_t>(1, state_bytes * static_cast<std::size_t>(options.n_lanes));
    const auto n_affordable = static_cast<std::int64_t>(options.rollback_bytes / all_lanes_bytes);
    const std::int64_t n = std::min<std::int64_t>({options.n_draft_most, n_affordable, options.n_ubatch - 2});
    return static_cast<std::uint32_t>(std::max<std::int64_t>(0, n));
}

bool has_attention(const llama_model* model) {
    const llama_hparams& hparams = model->hparams;
    for (std::uint32_t il = 0; il < hparams.n_layer(); ++il) {
        if (!hparams.is_recr(il)) return true;
    }
    return false;
}

// Of one lane.
std::size_t recurrent_state_bytes(const llama_model* model) {
    const llama_hparams& hparams = model->hparams;
    std::size_t state_bytes = 0;
    for (std::uint32_t il = 0; il < hparams.n_layer(); ++il) {
        if (hparams.is_recr(il)) state_bytes += sizeof(float) * (hparams.n_embd_r() + hparams.n_embd_s());
    }
    return state_bytes;
}

// Why drafts with branches cannot be verified, for models that these are asked of.
std::optional<std::string> tree_refusal(const llama_model* model) {
    if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model)) {
        return "each branch would need a recurrent state of its own";
    }
    if (model->hparams.ple_n_heads > 0) return "its embeddings look back along a text, which has to be one";
    return std::nullopt;
}

}  // namespace

Result<void> check_is_decoder(const llama_model* model) {
    const enum llama_pooling_type pooling = model->hparams.pooling_type;
    if (pooling != LLAMA_POOLING_TYPE_NONE && pooling != LLAMA_POOLING_TYPE_UNSPECIFIED) {
        const bool is_rank = pooling == LLAMA_POOLING_TYPE_RANK;
        return refused(std::string("the model is ") + (is_rank ? "a reranker" : "an embedding model") +
                       " and writes no answers: give it as " + (is_rank ? "--rerank-model" : "--embedding-model") +
                       " (luced --embedding)");
    }
    if (llama_model_has_encoder(model)) return refused("the model has an encoder; luced runs decoder-only models");
    if (!llama_model_has_decoder(model)) return refused("the model has no decoder (an embedding model?)");
    if (llama_model_is_diffusion(model)) return refused("the model is a diffusion model; luced runs causal ones");
    if (llama_model_is_hybrid(model) && !has_attention(model)) {
        return refused("the model's file says that all of its " + std::to_string(model->hparams.n_layer()) +
                       " layers are recurrent, and llama.cpp asserts that a " + model->arch_name() +
                       " model has one of attention (full_attention_interval, attention.recurrent_layers)");
    }
    return {};
}

Result<ContextSizes> context_sizes(const llama_model* model, const ModelOptions& options, bool uses_gpu) {
    ContextSizes sizes;
    if (Result<void> checked = check_rope(model, options.rope); !checked) return checked.error();
    sizes.n_ctx_train = options.rope.extended(model, llama_model_n_ctx_train(model));
    const std::int32_t n_default = std::min(kDefaultMaxCtx, options.n_pool.value_or(kDefaultMaxCtx));
    const std::int32_t n_most = options.outgrows_pool ? std::max(sizes.n_ctx_train, 1) : n_default;
    sizes.n_ctx = options.n_ctx.value_or(std::clamp(sizes.n_ctx_train, 1, n_most));
    sizes.n_pool = options.n_pool.value_or(sizes.n_ctx);
    const KvRules rules = {options.cache_type_k, options.cache_type_v, options.captured_layers,
                           options.flash_attention == FlashAttention::off};
    Result<KvLayerTypes> types = KvLayerTypes::make(model, rules, uses_gpu);
    if (!types) return types.error();
    sizes.types = std::move(types).value();
    if (options.n_tree > 0) sizes.tree_refusal = tree_refusal(model);
    sizes.n_tree = sizes.tree_refusal ? 0 : options.n_tree;
    sizes.state_bytes = recurrent_state_bytes(model);

    llama_context_params& params = sizes.params;
    params = llama_context_default_params();
    params.n_ctx = static_cast<std::uint32_t>(sizes.n_pool);
    params.n_batch = static_cast<std::uint32_t>(options.n_batch);
    params.n_ubatch = static_cast<std::uint32_t>(std::min(options.n_ubatch, options.n_batch));
    params.n_seq_max = static_cast<std::uint32_t>(options.n_lanes);
    // A lane has a row of logits for its token and each drafted one: without this, buffers for a row a token of any
    // call are reserved.
    const std::int32_t n_verified = 1 + std::max(options.n_draft_most, sizes.n_tree);
    const std::int32_t n_logits = std::max(options.n_lanes * n_verified, n_verified > 1 ? kCopyLogits : 1);
    sizes.n_logits = std::min(n_logits, options.n_batch);
    const std::int32_t n_of_prompts = uses_gpu ? kPromptLogits : kPromptLogitsOnCpu;
    params.n_outputs_max = static_cast<std::uint32_t>(std::min(n_logits + n_of_prompts, options.n_batch));
    params.n_rs_seq = n_rollback_states(model, options, sizes.state_bytes);
    params.n_threads = params.n_threads_batch = options.n_threads.value_or(common_cpu_get_num_physical_cores());
    params.type_k = sizes.types.of_context().k;
    params.type_v = sizes.types.of_context().v;
    params.flash_attn_type = flash_attn_type(options.flash_attention);
    params.offload_kqv = uses_gpu;
    params.kv_unified = true;  // lanes share the pool's cells
    options.rope.apply(params);
    params.moe_cache_size = options.placement.expert_cache_bytes;
    params.swa_full = false;
    params.no_perf = true;
    return sizes;
}

std::size_t least_row_bytes(const llama_model* model, const KvLayerTypes& types) {
    const llama_hparams& hparams = model->hparams;
    std::size_t n_bytes = 0;
    for (std::uint32_t il = 0; il < hparams.n_layer(); ++il) {
        if (hparams.is_recr(il) || hparams.is_swa(il) || !hparams.has_kv(il)) continue;
        n_bytes += ggml_row_size(types.of(il).k, hparams.n_embd_k_gqa(il));
        if (!hparams.is_mla()) n_bytes += ggml_row_size(types.of(il).v, hparams.n_embd_v_gqa(il));
    }
    return n_bytes;
}

void warn_of_few_states(const ContextSizes& sizes, const ModelOptions& options) {
    const auto n = static_cast<std::int32_t>(sizes.params.n_rs_seq);
    static bool is_said = false;  // a model that was parked is loaded again and again
    if (sizes.state_bytes == 0 || n >= options.n_draft_most || std::exchange(is_said, true)) return;
    log_warn("drafts of more than " + std::to_string(n) +
             " tokens cost a copy of the state and computing again what was right: a state of " +
             std::to_string(sizes.state_bytes) + " bytes is kept for each token up to there, in each of " +
             std::to_string(options.n_lanes) + " lanes (--draft-state-memory " +
             std::to_string(options.rollback_bytes) + ")");
}

}  // namespace luce::llama
