// Model: the weights and the one context that computes with them. Owns both. Chooses what libllama leaves open (KV
// types, threads) and says what was chosen.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "llama/decoding/context_owner.h"
#include "llama/decoding/graph_cache.h"
#include "llama/model/placement.h"
#include "llama/model/rope_options.h"

struct llama_model;
struct llama_context;
struct llama_context_params;
struct llama_vocab;

namespace luce::llama {

enum class FlashAttention { automatic, on, off };

struct ModelOptions {
    std::string path;
    std::optional<std::int32_t> n_ctx;   // unset: the model's training context, at most kDefaultMaxCtx and n_pool
    std::optional<std::int32_t> n_pool;  // unset: n_ctx
    bool outgrows_pool = false;          // texts may be longer than the pool: n_ctx unset is the training context then
    std::int32_t n_lanes = 1;
    std::int32_t n_batch = 512;
    std::int32_t n_ubatch = 512;
    // On a GPU with memory to spare prompts are read kWideUbatch tokens at a time: each pass reads the weights once, of
    // a mixture all of them.
    bool may_widen = false;
    std::optional<std::int32_t> n_threads;     // unset: one a physical core
    std::optional<std::int32_t> n_gpu_layers;  // unset: all, where there is a GPU
    PlacementOptions placement;
    std::optional<std::string> cache_type_k;  // rules, see kv_layer_types.h; unset: see kv_cache_type.h
    std::optional<std::string> cache_type_v;
    std::vector<std::uint32_t> captured_layers;  // whose input a draft model reads
    FlashAttention flash_attention = FlashAttention::automatic;
    RopeOptions rope;
    std::vector<std::string> kv_overrides;  // KEY=TYPE:VALUE
    std::int32_t n_draft_most = 0;          // tokens that a lane verifies beside its next one
    std::int32_t n_tree = 0;                // the same in all branches of a tree; 0: no trees
    bool loads_heads = false;               // heads for drafting (MTP), where the file has them
    std::optional<std::size_t> host_bytes;  // that can be had: a pool in the host's memory is refused beyond it
    std::size_t rollback_bytes = 0;         // most memory for states to go back to, of models with recurrent state
    std::function<void(std::int32_t percent)> on_percent;  // of the weights are read: told once a second, if at all
};

inline constexpr std::int32_t kDefaultMaxCtx = 32768;
inline constexpr std::int32_t kWideUbatch = 2048;

// What was made of the options and the file.
struct ModelInfo {
    std::string file_name;  // without its folders
    std::string architecture;
    std::string identity;  // hexadecimal; equal for equal weights, KV types, rope and overrides
    RopeOptions rope;      // what is not as the file says
    std::string overrides;
    std::string cache_type_k;
    std::string cache_type_v;
    std::string cache_type_outside;  // of pages that left the device; empty: the same
    std::int32_t n_ctx = 0;
    std::int32_t n_ctx_train = 0;
    std::int32_t n_pool = 0;
    std::int32_t n_vocab = 0;
    std::int32_t n_threads = 0;
    std::int32_t n_gpu_layers = 0;
    std::int32_t n_logits = 0;         // most tokens of one call whose logits are computed, to choose what follows …
    std::int32_t n_prompt_logits = 0;  // … and so many more, of prompts
    std::int32_t n_tree = 0;           // drafted tokens of a lane's tree; 0: none was asked for, or see tree_refusal
    std::optional<std::string> tree_refusal;  // why this model takes no trees
    std::uint32_t n_rollback = 0;             // tokens that a recurrent state can be taken back by
    bool has_text = false;                    // a vocabulary with texts, not ids only
    bool has_recurrent = false;               // recurrent or hybrid: state that cannot be cut by position
};

struct LlamaModelDeleter {
    void operator()(llama_model* model) const;
};
struct LlamaContextDeleter {
    void operator()(llama_context* context) const;
};

class Model final : public ContextOwner {
public:
    // Checks the file's metadata, loads it and runs a first computation, so that the first request finds all warm.
    // `on_progress` is called now and then while the weights are read. Errors: start_failed, bad_args.
    static Result<Model> load(const ModelOptions& options, bool has_gpu, const std::function<void()>& on_progress);

    Model(Model&&) = default;
    Model& operator=(Model&& other) noexcept;  // as unload() before it

    // A context with a pool of so many cells in place of the one that there is, which may hold nothing; whoever was
    // made with that has to go first. After an error there is none. Errors: start_failed.
    Result<void> resize_pool(std::int32_t n_pool);

    // Give the weights' and the context's memory back; info() stays. Nothing else may be called until another model is
    // moved into this one's place.
    void unload();

    const ModelInfo& info() const { return info_; }
    llama_model* model() const { return model_.get(); }
    llama_context* context() const override { return context_.get(); }
    GraphCache& graphs() const { return *graphs_; }
    const std::string& architecture() const override { return info_.architecture; }
    const llama_vocab* vocab() const;

    // Null: its experts lie where any weight does.
    ExpertBank* experts() const { return bank_.get(); }
    ElasticCache* elastic_cache() const override { return elastic_.get(); }

private:
    Model() = default;
    Result<void> make_bank(const ModelOptions& options, Placement& placement, bool uses_gpu);
    Error load_error(Error error) const;
    Result<void> open_bank(const ModelOptions& options);
    Result<void> create_context(const ModelOptions& options, bool uses_gpu);
    bool open_wide_context();
    Result<void> open_context();
    Result<void> check_context(bool outgrows_pool) const;
    Result<void> warm_up();

    std::shared_ptr<ExpertBank> bank_;  // goes after the model; null: none was asked for
    std::unique_ptr<llama_model, LlamaModelDeleter> model_;
    std::unique_ptr<ElasticCache> elastic_;                        // goes before the bank
    std::unique_ptr<llama_context, LlamaContextDeleter> context_;  // goes before the model and its cache
    std::unique_ptr<GraphCache> graphs_;                           // goes before the context
    std::shared_ptr<llama_context_params> params_;                 // of the context, but for the pool's size
    std::size_t cache_step_bytes_ = 0;
    ModelInfo info_;
};

}  // namespace luce::llama
