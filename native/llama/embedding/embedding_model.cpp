// Two ways of computing. Where attention is causal and the vector is made of a text's last position, all positions but
// the last one are read without any output, in slices, and the ends of all texts give their vectors in a second call:
// libllama would compute logits of every position otherwise, which cost as much as a small model. Everywhere else a
// text is read in one piece: libllama can cut neither a text that is not causal nor a mean.
#include "llama/embedding/embedding_model.h"

#include <llama.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <new>
#include <utility>

#include "base/log.h"
#include "common.h"
#include "llama-hparams.h"
#include "llama-model.h"
#include "llama/model/weights.h"

namespace luce::llama {
namespace {

constexpr std::int32_t kGroup = 512;     // tokens: more in one call make no device faster, and others wait longer
constexpr std::int32_t kSequences = 64;  // texts of one call, and one more
// ggml's CPU kernels compute this many rows at a time, and what is left over in another way, which rounds otherwise: a
// call is filled up, so that a text's vector does not depend on what is computed beside it.
constexpr std::int32_t kRows = 4;
constexpr std::int32_t kRecurrentSequences = 8;  // each has a state of its own
constexpr std::int32_t kExactAttention = 2048;   // tokens up to which a table of all pairs is affordable on a CPU
constexpr std::size_t kOutputShare = 4;  // of the host's memory: a fourth for what libllama sets aside for logits

Error refused(std::string text) { return {ErrorCode::start_failed, std::move(text)}; }
Error failed(std::string text) { return {ErrorCode::internal, std::move(text)}; }

struct ReadProgress {
    const std::function<void()>& on_progress;
    const std::function<void(std::int32_t)>& on_percent;
    std::int32_t said = 0;
};

bool on_read(float part, void* user) {
    auto& progress = *static_cast<ReadProgress*>(user);
    progress.on_progress();
    const auto percent = static_cast<std::int32_t>(part * 10.0F) * 10;  // in tenths
    if (percent > progress.said && progress.on_percent) progress.on_percent(percent);
    progress.said = std::max(progress.said, percent);
    return true;
}

const char* name_of_pooling(std::int32_t type) {
    switch (type) {
        case LLAMA_POOLING_TYPE_MEAN: return "mean";
        case LLAMA_POOLING_TYPE_CLS: return "cls";
        case LLAMA_POOLING_TYPE_LAST: return "last";
        case LLAMA_POOLING_TYPE_RANK: return "rank";
        default: return "none";
    }
}

std::int32_t type_of(Pooling pooling) {
    switch (pooling) {
        case Pooling::mean: return LLAMA_POOLING_TYPE_MEAN;
        case Pooling::cls: return LLAMA_POOLING_TYPE_CLS;
        case Pooling::last: return LLAMA_POOLING_TYPE_LAST;
        case Pooling::rank: return LLAMA_POOLING_TYPE_RANK;
        case Pooling::from_file: break;
    }
    return LLAMA_POOLING_TYPE_NONE;
}

// A batch that frees itself.
class Batch {
public:
    explicit Batch(std::size_t n_tokens) : batch_(llama_batch_init(static_cast<std::int32_t>(n_tokens), 0, 1)) {}
    ~Batch() { llama_batch_free(batch_); }
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

    void add(Token token, Position position, llama_seq_id sequence, bool is_output) {
        const std::int32_t i = batch_.n_tokens++;
        batch_.token[i] = token;
        batch_.pos[i] = position;
        batch_.n_seq_id[i] = 1;
        batch_.seq_id[i][0] = sequence;
        batch_.logits[i] = static_cast<std::int8_t>(is_output);
    }
    // Up to whole blocks of rows, with positions of a sequence from `begin` on; returns how many.
    Position fill_up(llama_seq_id sequence, Position begin, bool is_output) {
        Position n = 0;
        while (batch_.n_tokens % kRows != 0) add(0, begin + n++, sequence, is_output);
        return n;
    }
    bool is_empty() const { return batch_.n_tokens == 0; }
    const llama_batch& get() const { return batch_; }

private:
    llama_batch batch_;
};

}  // namespace

Result<EmbeddingModel> EmbeddingModel::load(const EmbeddingOptions& options, bool has_gpu,
                                            const std::function<void()>& on_progress) {
    on_progress();
    EmbeddingModel loaded;
    const std::int32_t n_gpu_layers = options.n_gpu_layers.value_or(has_gpu ? -1 : 0);
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = n_gpu_layers;
    params.progress_callback = on_read;
    ReadProgress progress{on_progress, options.on_percent};
    params.progress_callback_user_data = &progress;
    Result<Weights> weights = read_weights(options.path, params);
    if (!weights) return weights.error();
    loaded.model_ = std::move(weights.value().model);
    const llama_model* model = loaded.model_.get();

    EmbeddingInfo& info = loaded.info_;
    info.file_name = std::filesystem::path(options.path).filename().string();
    info.architecture = model->arch_name();
    info.n_ctx_train = llama_model_n_ctx_train(model);
    info.n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    if (Result<void> chosen = loaded.choose_pooling(options.pooling); !chosen) return chosen.error();
    if (Result<void> chosen = loaded.choose_length(options); !chosen) return chosen.error();
    if (Result<void> opened = loaded.open_context(options, has_gpu && n_gpu_layers != 0); !opened) {
        return opened.error();
    }
    on_progress();
    const std::vector<Tokens> first = {{0}};
    if (const auto warmed = loaded.embed(first); !warmed) {
        return refused("the first computation failed: " + warmed.error().text);
    }
    return loaded;
}

Result<void> EmbeddingModel::choose_pooling(Pooling asked) {
    const llama_model* model = model_.get();
    if (llama_model_has_encoder(model) && llama_model_has_decoder(model)) {
        return refused("the model has an encoder and a decoder: --embedding takes models that have one of them");
    }
    const auto of_file = static_cast<std::int32_t>(model->hparams.pooling_type);
    pooling_type_ = asked == Pooling::from_file ? of_file : type_of(asked);
    if (pooling_type_ == LLAMA_POOLING_TYPE_NONE || pooling_type_ == LLAMA_POOLING_TYPE_UNSPECIFIED) {
        return refused(
            info_.file_name +
            " says nothing of pooling, so it is no embedding model; if it is one, name its pooling (mean, cls "
            "or last)");
    }
    const bool has_head = model->cls != nullptr || model->cls_out != nullptr;
    if (asked == Pooling::rank && !has_head) {
        return refused(info_.file_name + " has no classification head, so it is no reranker");
    }
    if (asked == Pooling::from_file && pooling_type_ == LLAMA_POOLING_TYPE_RANK) {
        return refused(info_.file_name + " is a reranker: give it as such (--rerank-model; luced --embedding rank)");
    }
    info_.pooling = name_of_pooling(pooling_type_);
    const bool is_rank = pooling_type_ == LLAMA_POOLING_TYPE_RANK;
    info_.n_values = is_rank ? static_cast<std::int32_t>(llama_model_n_cls_out(model)) : llama_model_n_embd_out(model);
    // As llama.cpp's graph has it.
    info_.has_probabilities = is_rank && (model->arch == LLM_ARCH_QWEN3 || model->arch == LLM_ARCH_QWEN3VL);
    return {};
}

Result<void> EmbeddingModel::choose_length(const EmbeddingOptions& options) {
    const llama_model* model = model_.get();
    const std::int32_t n_trained = std::max(info_.n_ctx_train, 1);
    info_.n_ctx = options.n_ctx.value_or(std::min(n_trained, kDefaultMaxText));
    if (info_.n_ctx > n_trained && model->pos_embd != nullptr) {
        return Error{ErrorCode::bad_args, "--ctx " + std::to_string(info_.n_ctx) + " is more than the model has " +
                                              "positions for: " + std::to_string(n_trained)};
    }
    if (info_.n_ctx > n_trained) {
        log_warn("--ctx " + std::to_string(info_.n_ctx) + " is beyond the model's training context of " +
                 std::to_string(n_trained) + "; vectors may get worse there");
    }
    const bool is_last =
        pooling_type_ == LLAMA_POOLING_TYPE_LAST ||
        (pooling_type_ == LLAMA_POOLING_TYPE_RANK && model->hparams.pooling_type_cls != LLAMA_POOLING_TYPE_MEAN);
    ends_suffice_ = is_last && model->hparams.causal_attn;
    if (ends_suffice_ || !options.host_bytes) return {};
    // For a text that is read in one piece libllama sets logits of all positions aside, though none are computed.
    const std::size_t row_bytes = sizeof(float) * static_cast<std::size_t>(std::max(info_.n_vocab, 1));
    const auto n_affordable = static_cast<std::int64_t>(*options.host_bytes / kOutputShare / row_bytes);
    if (info_.n_ctx <= n_affordable) return {};
    const std::string limit = "texts of " + std::to_string(info_.n_ctx) + " tokens take " +
                              std::to_string(row_bytes * static_cast<std::size_t>(info_.n_ctx) >> 20) +
                              " MiB of the host's memory, of which " + std::to_string(*options.host_bytes >> 20) +
                              " MiB can be had";
    if (options.n_ctx || n_affordable < 1) return refused(limit + ": give a smaller --ctx");
    info_.n_ctx = static_cast<std::int32_t>(n_affordable);
    log_warn(limit + ": longer ones than " + std::to_string(info_.n_ctx) + " are refused");
    return {};
}

Result<void> EmbeddingModel::open_context(const EmbeddingOptions& options, bool uses_gpu) {
    const llama_model* model = model_.get();
    const bool is_recurrent = llama_model_is_recurrent(model) || llama_model_is_hybrid(model);
    const std::int32_t n_sequences = is_recurrent ? kRecurrentSequences : kSequences;
    n_texts_ = n_sequences - 1;  // and what fills a call up
    const std::int32_t n_slice = std::max(std::min(options.n_ubatch.value_or(kGroup), info_.n_ctx), n_texts_);
    n_group_ = ends_suffice_ ? n_slice : kGroup;
    const std::int32_t n_call = std::max(info_.n_ctx, n_group_);
    // libllama sets memory aside for graphs of as many tokens in each sequence.
    const auto whole = [n_sequences](std::int32_t n) {
        return static_cast<std::uint32_t>((n + kRows + n_sequences - 1) / n_sequences * n_sequences);
    };

    llama_context_params params = llama_context_default_params();
    params.embeddings = true;
    params.pooling_type = static_cast<enum llama_pooling_type>(pooling_type_);
    params.n_ctx = params.n_batch = whole(n_call + kRows);
    params.n_ubatch = whole(ends_suffice_ ? n_slice : n_call + kRows);
    params.n_seq_max = static_cast<std::uint32_t>(n_sequences);
    if (ends_suffice_) params.n_outputs_max = params.n_seq_max;
    params.kv_unified = true;  // texts share the cells
    params.n_threads = params.n_threads_batch = options.n_threads.value_or(common_cpu_get_num_physical_cores());
    params.offload_kqv = uses_gpu;
    params.no_perf = true;
    // On CPUs flash attention sums in half precision: a text's vector would depend on what is computed beside it.
    const bool is_exact = !uses_gpu && (ends_suffice_ || n_call <= kExactAttention);
    params.flash_attn_type = is_exact ? LLAMA_FLASH_ATTN_TYPE_DISABLED : LLAMA_FLASH_ATTN_TYPE_AUTO;
    if (options.flash_attention == FlashAttention::on) params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    if (options.flash_attention == FlashAttention::off) params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    try {
        context_.reset(llama_init_from_model(model_.get(), params));
    } catch (const std::exception& e) {
        return refused(std::string("no context: ") + e.what());
    }
    if (context_) return {};
    return refused("no context for texts of " + std::to_string(info_.n_ctx) +
                   " tokens could be made (too little memory? a smaller --ctx needs less)");
}

engine::EmbedderLimits EmbeddingModel::limits() const { return {info_.n_ctx, n_group_, n_texts_, info_.n_vocab}; }

Result<std::vector<engine::Vector>> EmbeddingModel::embed(std::span<const Tokens> texts) try {
    if (llama_memory_t memory = llama_get_memory(context_.get())) llama_memory_clear(memory, false);
    if (Result<void> computed = compute(texts); !computed) return computed.error();
    llama_synchronize(context_.get());
    std::vector<engine::Vector> vectors;
    for (std::size_t i = 0; i < texts.size(); ++i) vectors.push_back(take_vector(static_cast<std::int32_t>(i)));
    return vectors;
} catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, "no memory for the computation"};
} catch (const std::exception& e) {
    return failed(std::string("the computation failed: ") + e.what());
}

Result<void> EmbeddingModel::compute(std::span<const Tokens> texts) {
    Position n_filled = 0;
    if (!ends_suffice_) return compute_part(texts, TextPart::all, n_filled);
    llama_set_embeddings(context_.get(), false);
    const Result<void> read = compute_part(texts, TextPart::beginnings, n_filled);
    llama_set_embeddings(context_.get(), true);
    return read ? compute_part(texts, TextPart::ends, n_filled) : read;
}

// `n_filled`: tokens that have filled calls up.
Result<void> EmbeddingModel::compute_part(std::span<const Tokens> texts, TextPart part, Position& n_filled) {
    std::size_t n_tokens = kRows;
    for (const Tokens& text : texts) n_tokens += text.size();
    Batch batch(n_tokens);
    const bool has_output = part != TextPart::beginnings;
    for (std::size_t i = 0; i < texts.size(); ++i) {
        for (std::size_t k = 0; k < texts[i].size(); ++k) {
            const bool is_end = k + 1 == texts[i].size();
            if (part == (is_end ? TextPart::beginnings : TextPart::ends)) continue;
            batch.add(texts[i][k], static_cast<Position>(k), static_cast<llama_seq_id>(i), has_output);
        }
    }
    if (batch.is_empty()) return {};
    n_filled += batch.fill_up(n_texts_, n_filled, has_output);
    const bool is_t5 = llama_model_has_encoder(model_.get());  // alone: of the others that have one, none gets here
    const int code = is_t5 ? llama_encode(context_.get(), batch.get()) : llama_decode(context_.get(), batch.get());
    if (code == 0) return {};
    if (code == -2) return Error{ErrorCode::out_of_memory, "no memory for the computation"};
    return failed("the computation failed (libllama: " + std::to_string(code) + ")");
}

engine::Vector EmbeddingModel::take_vector(std::int32_t sequence) const {
    const float* values = llama_get_embeddings_seq(context_.get(), sequence);
    if (values == nullptr) return {};
    engine::Vector vector(values, values + info_.n_values);
    double sum = 0;
    for (const float value : vector) sum += static_cast<double>(value) * value;
    if (!std::isfinite(sum)) return {};
    if (pooling_type_ == LLAMA_POOLING_TYPE_RANK) return vector;
    if (sum == 0) return {};
    const double scale = 1 / std::sqrt(sum);
    for (float& value : vector) value = static_cast<float>(value * scale);
    return vector;
}

}  // namespace luce::llama
