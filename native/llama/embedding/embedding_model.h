// EmbeddingModel: an Embedder over libllama: the weights of an embedding model or a reranker, and the one context that
// computes with them. Owns both. Keeps nothing of a text once its vector is there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/embedding/embedder.h"
#include "llama/model/model.h"

namespace luce::llama {

// How the vector of a text is made from those of its tokens. from_file: as the file says, rank apart.
enum class Pooling { from_file, mean, cls, last, rank };

struct EmbeddingOptions {
    std::string path;
    Pooling pooling = Pooling::from_file;
    std::optional<std::int32_t> n_ctx;  // unset: the model's training context, at most kDefaultMaxText
    std::optional<std::int32_t> n_ubatch;
    std::optional<std::int32_t> n_threads;     // unset: one a physical core
    std::optional<std::int32_t> n_gpu_layers;  // unset: all, where there is a GPU
    FlashAttention flash_attention = FlashAttention::automatic;
    std::optional<std::size_t> host_bytes;  // that can be had
    std::function<void(std::int32_t percent)> on_percent;
};

inline constexpr std::int32_t kDefaultMaxText = 8192;  // that of hosted embedding models

struct EmbeddingInfo {
    std::string file_name;  // without its folders
    std::string architecture;
    std::string pooling;  // mean, cls, last, rank
    std::int32_t n_ctx = 0;
    std::int32_t n_ctx_train = 0;
    std::int32_t n_vocab = 0;
    std::int32_t n_values = 0;       // of a vector
    bool has_probabilities = false;  // of rank: the values are probabilities, not logits
};

class EmbeddingModel final : public engine::Embedder {
public:
    // Checks the file's metadata, loads it and runs a first computation. `on_progress` is called now and then while the
    // weights are read. Errors: start_failed, bad_args.
    static Result<EmbeddingModel> load(const EmbeddingOptions& options, bool has_gpu,
                                       const std::function<void()>& on_progress);

    const EmbeddingInfo& info() const { return info_; }

    engine::EmbedderLimits limits() const override;

    // Of unit length, rank apart; none where it is not finite, or all zeros.
    Result<std::vector<engine::Vector>> embed(std::span<const Tokens> texts) override;

private:
    EmbeddingModel() = default;
    Result<void> choose_pooling(Pooling asked);
    Result<void> choose_length(const EmbeddingOptions& options);
    Result<void> open_context(const EmbeddingOptions& options, bool uses_gpu);
    Result<void> compute(std::span<const Tokens> texts);
    enum class TextPart { all, beginnings, ends };
    Result<void> compute_part(std::span<const Tokens> texts, TextPart part, Position& n_filled);
    engine::Vector take_vector(std::int32_t sequence) const;

    std::unique_ptr<llama_model, LlamaModelDeleter> model_;
    std::unique_ptr<llama_context, LlamaContextDeleter> context_;  // goes before the model
    EmbeddingInfo info_;
    std::int32_t pooling_type_ = 0;  // llama_pooling_type
    bool ends_suffice_ = false;
    std::int32_t n_group_ = 0;  // tokens of a call that has several texts
    std::int32_t n_texts_ = 1;
};

}  // namespace luce::llama
