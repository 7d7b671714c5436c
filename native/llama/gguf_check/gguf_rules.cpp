// Rules for a model's hyperparameters. The limits are of two kinds: what libllama asserts, and bounds far above any
// real model that keep products of hostile numbers from overflowing or asking for absurd memory. Must not know files.
#include "llama/gguf_check/gguf_rules.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "llama-arch.h"
#include "llama-hparams.h"

namespace luce::llama {
namespace {

constexpr Range kWidth{1, 1U << 20};  // embedding, feed-forward: the largest known are below 2^17
constexpr Range kOptionalWidth{0, 1U << 20};
constexpr Range kHeads{0, 1U << 14};
constexpr Range kHeadSize{1, 1U << 14};
constexpr Range kContext{1, (1U << 31) - 1};  // libllama keeps positions in int32
constexpr Range kWindow{0, 1U << 23};         // times 256 sequences still fits into 32 bits
constexpr Range kRepeats{0, 1U << 10};        // how often something is unrolled into the graph
constexpr Range kStateSize{1, 1U << 20};

// Architectures whose graph asserts that keys and values have one size and that rope turns all of it.
constexpr std::array kFullRotation{
    "apertus",      "arcee",         "arctic",         "baichuan",   "chameleon", "codeshell",  "cogvlm",
    "cohere2moe",   "dbrx",          "deci",           "deepseek",   "dots1",     "dream",      "ernie4_5",
    "ernie4_5-moe", "exaone",        "exaone4",        "falcon",     "granite",   "granitemoe", "grok",
    "grovemoe",     "hunyuan-dense", "hunyuan-moe",    "internlm2",  "llada",     "llada-moe",  "llama",
    "llama4",       "maincoder",     "minimax-m2",     "mistral3",   "nemotron",  "olmo",       "olmo2",
    "olmoe",        "orion",         "pangu-embedded", "plamo",      "qwen2",     "qwen2moe",   "qwen2vl",
    "qwen3",        "qwen3moe",      "qwen3vl",        "qwen3vlmoe", "rnd1",      "seed_oss",   "smallthinker",
    "smollm3",      "starcoder2",    "xverse"};

// Gated DeltaNet: inner_size must be what the value heads make up, libllama takes the state's size from it.
constexpr std::array kGatedDeltaNet{"qwen3next", "qwen35", "qwen35moe"};

// Architectures that may have no rotated dimension at all; in all others ggml's rope would loop for ever over none.
constexpr std::array kMayLackRope{"arwkv7",     "bloom",          "glm5-next",   "gpt2",  "gptj",       "jais",
                                  "jamba",      "kimi-k3",        "kimi-linear", "mamba", "mamba2",     "mpt",
                                  "nemotron_h", "nemotron_h_moe", "refact",      "rwkv6", "rwkv6qwen2", "rwkv7",
                                  "t5",         "t5encoder"};

template <size_t N>
bool is_one_of(const std::string& architecture, const std::array<const char*, N>& names) {
    return std::find(names.begin(), names.end(), std::string_view(architecture)) != names.end();
}

std::string quoted(std::string_view key, uint64_t value) { return std::string(key) + " " + std::to_string(value); }

struct Layers {
    uint32_t n = 0;
    std::vector<uint32_t> n_head;
    std::vector<uint32_t> n_head_kv;
};

Layers check_layers(GgufMetadata& gguf, GgufFacts& facts) {
    for (const char* key : {".block_count", ".context_length", ".embedding_length"}) {
        gguf.require(key);
    }
    facts.n_layers = gguf.count(".block_count", {1, LLAMA_MAX_LAYERS}, 1);
    facts.n_ctx_train = gguf.count(".context_length", kContext, 1);
    facts.n_embd = gguf.count(".embedding_length", kWidth, 1);
    gguf.count(".nextn_predict_layers", {0, facts.n_layers});
    gguf.count(".leading_dense_block_count", {0, facts.n_layers});
    gguf.per_layer(".feed_forward_length", {0, 1U << 24}, facts.n_layers);
    for (const char* key : {".embedding_length_out", ".embedding_length_per_layer_input", ".n_deepstack_layers",
                            ".expert_shared_feed_forward_length", ".expert_latent_length"}) {
        gguf.count(key, kOptionalWidth);
    }
    for (const char* key : {".num_loops", ".hrm.h_cycles", ".hrm.l_cycles", ".hrm.layers_per_stack",
                            ".hyper_connection.sinkhorn_iterations", ".hyper_connection.count"}) {
        gguf.count(key, kRepeats);
    }
    for (const char* key : {".full_attention_interval", ".interleave_moe_layer_step"}) {
        gguf.count(key, {1, LLAMA_MAX_LAYERS}, 1);  // divisors
    }
    Layers layers{facts.n_layers, gguf.per_layer(".attention.head_count", kHeads, facts.n_layers), {}};
    layers.n_head_kv = gguf.has(".attention.head_count_kv")
                           ? gguf.per_layer(".attention.head_count_kv", kHeads, facts.n_layers)
                           : layers.n_head;
    for (size_t i = 0; i < layers.n; ++i) {
        // Grouped queries share keys evenly. Layers without one or the other are not attention layers.
        if (layers.n_head[i] != 0 && layers.n_head_kv[i] != 0 && layers.n_head[i] % layers.n_head_kv[i] != 0) {
            gguf.refuse(quoted("attention.head_count", layers.n_head[i]) + " is no multiple of " +
                        quoted("attention.head_count_kv", layers.n_head_kv[i]) + " in layer " + std::to_string(i));
        }
    }
    return layers;
}

struct HeadSizes {
    uint32_t k = 0, v = 0, k_window = 0, v_window = 0;
};

HeadSizes check_heads(GgufMetadata& gguf, GgufFacts& facts, const Layers& layers) {
    const uint32_t n_head = layers.n_head[0];  // libllama takes the sizes of all layers from the first one's
    HeadSizes sizes;
    if (n_head > 0) {
        const uint32_t even = facts.n_embd / n_head;
        sizes.k = gguf.count(".attention.key_length", kHeadSize, even);
        sizes.v = gguf.count(".attention.value_length", kHeadSize, even);
        if (sizes.k == 0 || sizes.v == 0) {
            gguf.refuse(quoted("attention.head_count", n_head) + " is more than " +
                        quoted("embedding_length", facts.n_embd));
        }
    }
    sizes.k_window = gguf.count(".attention.key_length_swa", kHeadSize, sizes.k);
    sizes.v_window = gguf.count(".attention.value_length_swa", kHeadSize, sizes.v);
    gguf.count(".attention.key_length_mla", kHeadSize, 1);
    gguf.count(".attention.value_length_mla", kHeadSize, 1);
    gguf.count(".attention.kv_lora_rank", kOptionalWidth);
    gguf.count(".attention.q_lora_rank", kOptionalWidth);
    if (gguf.has(".attention.key_length_mla") != gguf.has(".attention.value_length_mla")) {
        gguf.refuse("attention.key_length_mla and attention.value_length_mla must be given together");
    }
    // Its graph takes one head size for all layers.
    if (facts.architecture == "laguna" &&
        (sizes.k != sizes.v || sizes.k_window != sizes.k || sizes.v_window != sizes.v)) {
        gguf.refuse(quoted("attention.key_length_swa", sizes.k_window) + " and " +
                    quoted("attention.value_length_swa", sizes.v_window) + " must be the head size, " +
                    std::to_string(sizes.k));
    }
    std::set<uint32_t> k{sizes.k, sizes.k_window};
    std::set<uint32_t> v{sizes.v, sizes.v_window};
    k.erase(0);
    v.erase(0);
    facts.head_sizes_k.assign(k.begin(), k.end());
    facts.head_sizes_v.assign(v.begin(), v.end());
    return sizes;
}

// The last layers of a gemma read the keys and values of the last ones that have their own: the last but one for
// sliding layers, the last for the others. libllama asserts that there are two and that each is of its reader's kind.
void check_shared_layers(GgufMetadata& gguf, const GgufFacts& facts) {
    const bool gemma = facts.architecture == "gemma3n" || facts.architecture == "gemma4";
    const uint32_t reserved = gemma ? std::min(2U, facts.n_layers) : 0;
    const uint32_t n_shared = gguf.count(".attention.shared_kv_layers", {0, facts.n_layers - reserved});
    const auto slides = gguf.integers(".attention.sliding_window_pattern", LLAMA_MAX_LAYERS);
    if (!gemma || n_shared == 0 || slides.size() < facts.n_layers) {
        return;
    }
    const uint32_t n_own = facts.n_layers - n_shared;
    for (uint32_t i = n_own; i < facts.n_layers; ++i) {
        if ((slides[i] != 0) != (slides[n_own - (slides[i] != 0 ? 2 : 1)] != 0)) {
            gguf.refuse(quoted("attention.shared_kv_layers", n_shared) +
                        " lets layers share that attention.sliding_window_pattern tells apart");
            return;
        }
    }
}

void check_window(GgufMetadata& gguf, GgufFacts& facts) {
    facts.has_sliding_window = gguf.count(".attention.sliding_window", kWindow) > 0;
    const std::string pattern = ".attention.sliding_window_pattern";  // a flag a layer, or the period
    if (gguf.is_array(pattern)) {
        gguf.integers(pattern, LLAMA_MAX_LAYERS);
    } else {
        gguf.count(pattern, {0, LLAMA_MAX_LAYERS});
    }
    check_shared_layers(gguf, facts);
}

// Rope turns pairs: libllama asserts an even number of dimensions that fits into a head. Returns that number.
uint32_t check_rotated(GgufMetadata& gguf, const GgufFacts& facts, const char* key, uint32_t head_size,
                       uint32_t fallback) {
    const uint64_t min = is_one_of(facts.architecture, kMayLackRope) ? 0 : 2;
    const uint32_t n = gguf.count(key, {min, kHeadSize.max}, fallback);
    if (head_size != 0 && (n % 2 != 0 || n > head_size)) {
        gguf.refuse(quoted(key + 1, n) + " must be even and at most the head size, " + std::to_string(head_size));
    }
    return n;
}

void check_rope(GgufMetadata& gguf, GgufFacts& facts, const HeadSizes& sizes) {
    const uint32_t rotated = check_rotated(gguf, facts, ".rope.dimension_count", sizes.k, sizes.k);
    check_rotated(gguf, facts, ".rope.dimension_count_swa", facts.has_sliding_window ? sizes.k_window : 0, rotated);
    if (sizes.k != 0 && is_one_of(facts.architecture, kFullRotation) && (sizes.k != sizes.v || rotated != sizes.k)) {
        gguf.refuse(quoted("attention.key_length", sizes.k) + ", " + quoted("attention.value_length", sizes.v) +
                    " and " + quoted("rope.dimension_count", rotated) + " must be equal for " + facts.architecture);
    }
    if (gguf.has(".rope.dimension_sections")) {
        if (!gguf.is_array(".rope.dimension_sections")) {
            gguf.refuse("rope.dimension_sections must be an array of 4 integers");
        }
        uint64_t sum = 0;
        for (const uint32_t section : gguf.per_layer(".rope.dimension_sections", {0, kHeadSize.max}, 4)) {
            sum += section;
        }
        if (sum == 0 || (sizes.k != 0 && sum > sizes.k)) {  // libllama divides by their sum
            gguf.refuse("rope.dimension_sections make up " + std::to_string(sum) + ", must be 1 to the head size, " +
                        std::to_string(sizes.k));
        }
    }
    const std::string scaling = gguf.text(".rope.scaling.type", "none");
    if (scaling != "none" && scaling != "linear" && scaling != "yarn" && scaling != "longrope") {
        gguf.refuse("rope.scaling.type is " + printable(scaling) + ", must be none, linear, yarn or longrope");
    }
    facts.has_longrope = scaling == "longrope";
    gguf.count(".rope.scaling.original_context_length", kContext, 1);
    // Bases and factors are powers' bases and divisors; 0 stands for "not given" in some files.
    gguf.number(".rope.freq_base", 0.0F, 1e18F);
    gguf.number(".rope.freq_base_swa", 0.0F, 1e18F);
    gguf.number(".rope.scaling.factor", 0.0F, 1e9F);
    gguf.number(".rope.scale_linear", 0.0F, 1e9F);
}

void check_experts(GgufMetadata& gguf, GgufFacts& facts) {
    facts.n_experts = gguf.count(".expert_count", {0, LLAMA_MAX_EXPERTS});
    const auto used = gguf.per_layer(".expert_used_count", {0, LLAMA_MAX_EXPERTS}, facts.n_layers);
    const uint32_t most = *std::max_element(used.begin(), used.end());
    const uint32_t n_groups = gguf.count(".expert_group_count", {0, LLAMA_MAX_EXPERTS});
    const uint32_t n_groups_used = gguf.count(".expert_group_used_count", {0, LLAMA_MAX_EXPERTS});
    const bool hunyuan = facts.architecture.starts_with("hunyuan");  // one expert means none there
    if (most > facts.n_experts || (facts.n_experts > 0 && most == 0 && !hunyuan)) {
        gguf.refuse(quoted("expert_used_count", most) + " does not fit " + quoted("expert_count", facts.n_experts));
    }
    if (n_groups > 0 && n_groups >= facts.n_experts) {
        gguf.refuse(quoted("expert_group_count", n_groups) + " must be less than " +
                    quoted("expert_count", facts.n_experts));
    }
    if (n_groups > 1 && (facts.n_experts % n_groups != 0 || n_groups_used == 0 || n_groups_used >= n_groups)) {
        gguf.refuse(quoted("expert_group_count", n_groups) + " and " +
                    quoted("expert_group_used_count", n_groups_used) + " do not divide " +
                    quoted("expert_count", facts.n_experts));
    }
    gguf.per_layer(".expert_feed_forward_length", {0, 1U << 24}, facts.n_layers);
    gguf.count(".expert_shared_count", {0, LLAMA_MAX_EXPERTS});
    gguf.count(".expert_gating_func", {0, LLAMA_EXPERT_GATING_FUNC_TYPE_SQRT_SOFTPLUS});
}

void check_recurrence(GgufMetadata& gguf, const GgufFacts& facts) {
    if (gguf.has(".attention.recurrent_layers")) {
        gguf.per_layer(".attention.recurrent_layers", {0, 1}, facts.n_layers);
    }
    const uint32_t inner = gguf.count(".ssm.inner_size", kOptionalWidth);
    const uint32_t state = gguf.count(".ssm.state_size", kStateSize, 1);
    const uint32_t heads = gguf.count(".ssm.time_step_rank", kOptionalWidth);
    const uint32_t groups = gguf.count(".ssm.group_count", kOptionalWidth);
    gguf.count(".ssm.conv_kernel", {1, 1U << 10}, 1);
    gguf.count(".wkv.head_size", kStateSize, 1);
    gguf.count(".kda.head_dim", kStateSize, 1);
    gguf.count(".shortconv.l_cache", {1, 1U << 10}, 1);
    if (!is_one_of(facts.architecture, kGatedDeltaNet)) {
        return;
    }
    for (const char* key :
         {".ssm.inner_size", ".ssm.state_size", ".ssm.time_step_rank", ".ssm.group_count", ".ssm.conv_kernel"}) {
        gguf.require(key);
    }
    if (heads == 0 || groups == 0 || heads % groups != 0) {
        gguf.refuse(quoted("ssm.time_step_rank", heads) + " is no multiple of " + quoted("ssm.group_count", groups));
    }
    if (uint64_t{heads} * state != inner) {
        gguf.refuse(quoted("ssm.inner_size", inner) + " is not " + quoted("ssm.time_step_rank", heads) + " times " +
                    quoted("ssm.state_size", state));
    }
}

}  // namespace

void check_dimensions(GgufMetadata& gguf, GgufFacts& facts) {
    gguf.require_finite_numbers();
    const Layers layers = check_layers(gguf, facts);
    const HeadSizes sizes = check_heads(gguf, facts, layers);
    check_window(gguf, facts);
    check_rope(gguf, facts, sizes);
    check_experts(gguf, facts);
    check_recurrence(gguf, facts);
    for (const char* key :
         {".attention.layer_norm_rms_epsilon", ".attention.layer_norm_epsilon", ".attention.group_norm_epsilon"}) {
        gguf.number(key, 0.0F, 1.0F);  // libllama asserts that it is not negative
    }
    gguf.count(".attention.group_norm_groups", {1, 1U << 16}, 1);
    gguf.count(".pooling_type", {0, 4});
    const std::string activation = gguf.text(".classifier.activation", "gelu");
    if (activation != "gelu" && activation != "silu" && activation != "tanh") {
        gguf.refuse("classifier.activation is " + printable(activation) + ", must be gelu, silu or tanh");
    }
    const llm_arch arch = llm_arch_from_string(facts.architecture);
    facts.is_recurrent = llm_arch_is_recurrent(arch);
    facts.is_hybrid = llm_arch_is_hybrid(arch);
}

}  // namespace luce::llama
