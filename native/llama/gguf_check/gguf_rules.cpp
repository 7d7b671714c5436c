// Rules for a model's hyperparameters: bounds far above any real model, which keep products of hostile numbers from
// overflowing or asking for absurd memory, and types, since libllama reads some as others. Whether they fit each other
// is libllama's to say: where it asserts that they do, LoadGuard makes a line of it. Must not know files.
#include "llama/gguf_check/gguf_rules.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "llama-arch.h"
#include "llama-hparams.h"

namespace luce::llama {
namespace {

constexpr Range kWidth{0, 1U << 20};  // embedding, feed-forward: the largest known are below 2^17
constexpr Range kFeedForward{0, 1U << 24};
constexpr Range kHeads{0, 1U << 14};
constexpr Range kContext{1, (1U << 31) - 1};  // libllama keeps positions in int32
constexpr Range kWindow{0, 1U << 23};         // times 256 sequences still fits into 32 bits
constexpr Range kRepeats{0, 1U << 10};        // how often something is unrolled into the graph
constexpr Range kLayers{0, LLAMA_MAX_LAYERS};
constexpr Range kExperts{0, LLAMA_MAX_EXPERTS};
constexpr Range kDivisor{1, 1U << 20};

struct Bound {
    const char* key;
    Range range;
};

constexpr Bound kCounts[] = {{".nextn_predict_layers", kLayers},
                             {".leading_dense_block_count", kLayers},
                             {".embedding_length_out", kWidth},
                             {".embedding_length_per_layer_input", kWidth},
                             {".n_deepstack_layers", kWidth},
                             {".expert_shared_feed_forward_length", kWidth},
                             {".expert_latent_length", kWidth},
                             {".num_loops", kRepeats},
                             {".hrm.h_cycles", kRepeats},
                             {".hrm.l_cycles", kRepeats},
                             {".hrm.layers_per_stack", kRepeats},
                             {".hyper_connection.sinkhorn_iterations", kRepeats},
                             {".hyper_connection.count", kRepeats},
                             {".full_attention_interval", {1, LLAMA_MAX_LAYERS}},
                             {".interleave_moe_layer_step", {1, LLAMA_MAX_LAYERS}},
                             {".attention.value_length", kDivisor},
                             {".attention.value_length_swa", kDivisor},
                             {".attention.key_length_mla", kDivisor},
                             {".attention.value_length_mla", kDivisor},
                             {".attention.kv_lora_rank", kWidth},
                             {".attention.q_lora_rank", kWidth},
                             {".attention.shared_kv_layers", kLayers},
                             {".attention.group_norm_groups", {1, 1U << 16}},
                             {".rope.scaling.original_context_length", kContext},
                             {".expert_count", kExperts},
                             {".expert_group_count", kExperts},
                             {".expert_group_used_count", kExperts},
                             {".expert_shared_count", kExperts},
                             {".expert_gating_func", {0, LLAMA_EXPERT_GATING_FUNC_TYPE_SQRT_SOFTPLUS}},
                             {".ssm.inner_size", kWidth},
                             {".ssm.state_size", kDivisor},
                             {".ssm.time_step_rank", kWidth},
                             {".ssm.group_count", kWidth},
                             {".ssm.conv_kernel", kDivisor},
                             {".wkv.head_size", kDivisor},
                             {".kda.head_dim", kDivisor},
                             {".shortconv.l_cache", kDivisor},
                             {".pooling_type", {0, 4}}};

constexpr Bound kPerLayer[] = {{".feed_forward_length", kFeedForward},
                               {".expert_feed_forward_length", kFeedForward},
                               {".expert_used_count", kExperts},
                               {".attention.head_count_kv", kHeads}};

// Architectures that may have no rotated dimension at all; in all others ggml's rope would loop for ever over none.
constexpr std::array<std::string_view, 20> kMayLackRope{
    "arwkv7",  "bloom",       "glm5-next",  "gpt2",   "gptj", "jais",       "jamba",
    "kimi-k3", "kimi-linear", "mamba",      "mamba2", "mpt",  "nemotron_h", "nemotron_h_moe",
    "refact",  "rwkv6",       "rwkv6qwen2", "rwkv7",  "t5",   "t5encoder"};

// Rope turns pairs: ggml asserts an even number of dimensions that fits into a head, each time that it computes, so
// that a draft model is found out when it drafts. Returns that number.
uint32_t check_rotated(GgufMetadata& gguf, const GgufFacts& facts, const char* key, uint32_t head_size,
                       uint32_t fallback) {
    const bool may_lack = std::ranges::find(kMayLackRope, facts.architecture) != kMayLackRope.end();
    const uint32_t n = gguf.count(key, {may_lack ? 0U : 1U, kHeads.max}, fallback);
    if (head_size != 0 && (n % 2 != 0 || n > head_size)) {
        gguf.refuse(std::string(key + 1) + " " + std::to_string(n) + " must be even and at most the head size, " +
                    std::to_string(head_size));
    }
    return n;
}

void check_rope(GgufMetadata& gguf, GgufFacts& facts, const std::vector<uint32_t>& n_head, uint32_t n_embd) {
    const uint32_t size = gguf.count(".attention.key_length", kDivisor, n_head[0] == 0 ? 0 : n_embd / n_head[0]);
    const uint32_t window_size = gguf.count(".attention.key_length_swa", kDivisor, size);
    const bool has_window = gguf.count(".attention.sliding_window", kWindow) > 0;
    const uint32_t rotated = check_rotated(gguf, facts, ".rope.dimension_count", size, size);
    check_rotated(gguf, facts, ".rope.dimension_count_swa", has_window ? window_size : 0, rotated);
    facts.has_longrope = gguf.text(".rope.scaling.type") == "longrope";
}

}  // namespace

void check_dimensions(GgufMetadata& gguf, GgufFacts& facts) {
    gguf.require_finite_numbers();
    for (const char* key : {".block_count", ".context_length", ".embedding_length"}) {
        gguf.require(key);
    }
    facts.n_layers = gguf.count(".block_count", {1, LLAMA_MAX_LAYERS}, 1);
    gguf.count(".context_length", kContext);
    const uint32_t n_embd = gguf.count(".embedding_length", {1, kWidth.max}, 1);
    for (const Bound& bound : kCounts) {
        gguf.count(bound.key, bound.range);
    }
    for (const Bound& bound : kPerLayer) {
        gguf.per_layer(bound.key, bound.range, facts.n_layers);
    }
    check_rope(gguf, facts, gguf.per_layer(".attention.head_count", kHeads, facts.n_layers), n_embd);
}

}  // namespace luce::llama
