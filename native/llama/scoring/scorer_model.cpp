#include "llama/scoring/scorer_model.h"

#include <llama.h>

#include <algorithm>
#include <exception>
#include <new>
#include <numeric>
#include <vector>

#include "base/log.h"
#include "llama-context.h"
#include "llama-ext.h"
#include "llama-model.h"
#include "llama/kv_cache/memory_parts.h"
#include "llama/model/device_beside.h"
#include "llama/model/model_identity.h"
#include "llama/model/weights.h"
#include "speculative.h"

namespace luce::llama {
namespace {

// Cells of a sequence: enough for what a sentence refers to, and few beside the target's pool. Measured with the
// packaged scorer: 512 find as many facts in texts of 4,000 tokens as 1,024 do.
constexpr std::int32_t kMostWindow = 1024;

bool has_texts(const llama_model* model) {
    return llama_vocab_type(llama_model_get_vocab(model)) != LLAMA_VOCAB_TYPE_NONE;
}

std::int32_t n_tokens(const llama_model* model) { return llama_vocab_n_tokens(llama_model_get_vocab(model)); }

std::string megabytes(std::size_t bytes) { return std::to_string((bytes + 500'000) / 1'000'000) + " MB"; }

Error internal(std::string text) { return {ErrorCode::internal, std::move(text)}; }

}  // namespace

Result<std::unique_ptr<ScorerModel>> ScorerModel::load(const ScorerOptions& options, const Model& target) {
    std::unique_ptr<ScorerModel> scorer(new ScorerModel(options, target));
    if (Result<void> opened = scorer->open(); !opened) return opened.error();
    log_info("scorer " + options.path + ": " + megabytes(scorer->weights_bytes_) + " of weights, " +
             megabytes(scorer->cells_bytes_) + " for the newest " + std::to_string(scorer->n_window_) +
             " tokens of each of " + std::to_string(options.n_lanes) + " texts; it reads " +
             (scorer->has_same_ids_ ? "the model's tokens" : "what the model's tokens say in tokens of its own"));
    return scorer;
}

void ScorerModel::unload() {
    context_.reset();
    model_.reset();
    refusals_.forget();
}

Result<void> ScorerModel::reload() {
    const std::string before = identity_;
    if (Result<void> opened = open(); !opened) return opened;
    if (identity_ != before) return failed("the file has changed since the model was parked");
    return {};
}

Error ScorerModel::failed(const std::string& text) const {
    return {ErrorCode::start_failed, options_.option + " " + options_.path + ": " + text};
}

TextVocabularies ScorerModel::vocabularies() const {
    if (has_same_ids_) return {};
    return {target_.vocab(), llama_model_get_vocab(model_.get())};
}

Position ScorerModel::window_begin(Position position) const {
    const Position n_call = options_.n_call;
    return std::max(0, position / n_call * n_call + n_call - n_window_);
}

Result<void> ScorerModel::open() {
    if (Result<void> loaded = load_weights(); !loaded) return loaded;
    if (Result<void> checked = check_vocabulary(); !checked) return checked;
    return create_context();
}

Result<void> ScorerModel::load_weights() {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = options_.n_gpu_layers.value_or(target_.info().n_gpu_layers);
    DeviceBeside device(*target_.model());
    device.apply(params);
    Result<Weights> loaded = read_weights(options_.path, params);
    if (!loaded) return failed(loaded.error().text);
    model_ = std::move(loaded.value().model);
    architecture_ = model_->arch_name();
    if (llama_model_has_encoder(model_.get()) || !llama_model_has_decoder(model_.get()) ||
        llama_model_is_diffusion(model_.get())) {
        return failed("a " + architecture_ + " model does not read a text token by token");
    }
    if (llama_model_is_recurrent(model_.get()) || llama_model_is_hybrid(model_.get())) {
        return failed("a " + architecture_ +
                      " model has a recurrent state, which does not go back to where texts depart; use one with "
                      "attention alone");
    }
    cache_types_ = default_kv_cache_types(model_.get(), target_.info().n_gpu_layers != 0);
    if (options_.cache_type) {
        const Result<ggml_type> type = parse_kv_cache_type(*options_.cache_type);
        if (!type) return Error{type.error().code, options_.option + "-cache-type: " + type.error().text};
        cache_types_ = {type.value(), type.value()};
    }
    if (const Result<void> checked = check_kv_cache_types(model_.get(), cache_types_, false); !checked) {
        return Error{checked.error().code, options_.option + "-cache-type: " + checked.error().text};
    }
    ModelInfo info;
    info.cache_type_k = ggml_type_name(cache_types_.k);
    info.cache_type_v = ggml_type_name(cache_types_.v);
    Result<std::string> identity = memory_identity(loaded.value().files, info);
    if (!identity) return failed(identity.error().text);
    identity_ = std::move(identity).value();
    return {};
}

// Ids mean the same where the vocabularies have the same texts; without any, where nothing says otherwise.
Result<void> ScorerModel::check_vocabulary() {
    const std::int32_t n_own = n_tokens(model_.get());
    const std::int32_t n_target = n_tokens(target_.model());
    if (has_texts(model_.get()) && has_texts(target_.model())) {
        has_same_ids_ = n_own >= n_target && common_speculative_are_compatible(target_.model(), model_.get());
        return {};
    }
    has_same_ids_ = true;
    if (has_texts(model_.get()) == has_texts(target_.model()) && n_own == n_target) return {};
    const bool lacks = !has_texts(model_.get());
    return failed("a scorer with another vocabulary reads what the model's tokens say, and " +
                  std::string(lacks ? "its own vocabulary" : "the model's vocabulary") + " has no texts (" +
                  std::to_string(n_own) + " tokens, the model's " + std::to_string(n_target) + ")");
}

Result<void> ScorerModel::create_context() {
    const std::int32_t n_trained = llama_model_n_ctx_train(model_.get());
    const std::int32_t n_call = options_.n_call;
    const std::int32_t n_useful = std::min({kMostWindow, n_trained, options_.n_ctx + n_call});
    n_window_ = std::max(2 * n_call, n_useful / n_call * n_call);
    const auto n_lanes = static_cast<std::uint32_t>(options_.n_lanes);
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<std::uint32_t>(n_window_) * n_lanes;
    params.n_batch = params.n_ubatch = static_cast<std::uint32_t>(n_call);
    params.n_seq_max = n_lanes;
    params.n_outputs_max = n_lanes;  // none are asked for; llama.cpp wants room for one of each
    params.n_threads = params.n_threads_batch = options_.n_threads;
    params.type_k = cache_types_.k;
    params.type_v = cache_types_.v;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_AUTO;
    params.offload_kqv = target_.info().n_gpu_layers != 0;
    params.kv_unified = true;
    params.swa_full = false;
    params.no_perf = true;
    try {
        context_.reset(llama_init_from_model(model_.get(), params));
    } catch (const std::exception& e) {
        return failed(std::string("no context: ") + e.what());
    }
    if (!context_) {
        return failed("no context of " + std::to_string(params.n_ctx) +
                      " cells could be made for it (too little memory? fewer --lanes need less)");
    }
    if (llama_get_memory(context_.get()) == nullptr) return failed("it keeps no memory of its text");
    const MemoryParts parts = memory_parts(context_.get(), architecture_, options_.n_lanes);
    if (parts.refusal) return failed(*parts.refusal);
    can_go_back_ = parts.window == nullptr;
    weights_bytes_ = cells_bytes_ = 0;
    for (const auto& [type, bytes] : llama_get_memory_breakdown(context_.get())) {
        weights_bytes_ += bytes.model;
        cells_bytes_ += bytes.context;
    }
    return {};
}

Result<void> ScorerModel::compute(std::int32_t sequence, Position begin, std::span<const Token> tokens) {
    llama_memory_seq_rm(llama_get_memory(context_.get()), sequence, 0, window_begin(begin));
    const std::size_t n = tokens.size();
    std::vector<llama_token> ids(tokens.begin(), tokens.end());
    // What is no token names a hole in a prompt (prefill/sparse_text.h).
    std::replace_if(ids.begin(), ids.end(), [n = n_tokens(model_.get())](llama_token id) { return id >= n; }, 0);
    std::vector<llama_pos> positions(n);
    std::iota(positions.begin(), positions.end(), begin);
    std::vector<std::int32_t> n_sequences(n, 1);
    llama_seq_id id = sequence;
    std::vector<llama_seq_id*> sequences(n, &id);
    std::vector<std::int8_t> wants_logits(n, 0);
    llama_batch batch{};
    batch.n_tokens = static_cast<std::int32_t>(n);
    batch.token = ids.data();
    batch.pos = positions.data();
    batch.n_seq_id = n_sequences.data();
    batch.seq_id = sequences.data();
    batch.logits = wants_logits.data();
    try {
        const int code = llama_decode(context_.get(), batch);
        if (code == 0) {
            llama_synchronize(context_.get());
            return {};
        }
        if (code == 1) return Error{ErrorCode::no_room, "the scorer has no free cells"};
        if (code == -2) {
            refusals_.note();
            return Error{ErrorCode::out_of_memory, "no memory for the scorer's computation"};
        }
        return internal("the scorer's computation failed (llama_decode: " + std::to_string(code) + ")");
    } catch (const std::bad_alloc&) {
        refusals_.note_torn();
        return Error{ErrorCode::out_of_memory, "no memory for the scorer's computation"};
    } catch (const std::exception& e) {
        return internal(std::string("the scorer's computation failed: ") + e.what());
    }
}

bool ScorerModel::cut(std::int32_t sequence, Position position) {
    llama_memory_t memory = llama_get_memory(context_.get());
    if (llama_memory_seq_pos_max(memory, sequence) + 1 == position) return true;
    const Position begin = llama_memory_seq_pos_min(memory, sequence);
    if (can_go_back_ && begin >= 0 && begin <= window_begin(position) &&
        llama_memory_seq_rm(memory, sequence, position, -1)) {
        return true;
    }
    clear(sequence);
    return position == 0;
}

void ScorerModel::clear(std::int32_t sequence) {
    llama_memory_seq_rm(llama_get_memory(context_.get()), sequence, -1, -1);
}

bool ScorerModel::share(std::int32_t from, std::int32_t to, Position end) {
    llama_memory_t memory = llama_get_memory(context_.get());
    const Position begin = llama_memory_seq_pos_min(memory, from);
    if (!can_go_back_ || begin < 0 || begin > window_begin(end)) return false;
    llama_memory_seq_cp(memory, from, to, 0, end);
    return true;
}

}  // namespace luce::llama
