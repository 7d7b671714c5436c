#include "llama/drafting/draft_context.h"

#include <llama.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>

#include "base/log.h"
#include "llama-context.h"
#include "llama-ext.h"
#include "llama-model.h"
#include "llama/gguf_check/draft_fit.h"
#include "llama/gguf_check/gguf_metadata.h"
#include "llama/model/device_beside.h"
#include "llama/model/model_identity.h"
#include "llama/model/weights.h"

namespace luce::llama {
namespace {

// An EAGLE-3 context keeps a row of logits for each token of a call, needed or not (its encoder makes llama.cpp do so).
constexpr std::uint32_t kSmallBatch = 64;

constexpr const char* kCacheTypeOption = "--draft-cache-type-";

Result<KvCacheTypes> cache_types(const llama_model* model, const DraftModelOptions& options, bool on_gpu) {
    KvCacheTypes types = default_kv_cache_types(model, on_gpu);
    for (const bool is_key : {true, false}) {
        const auto& name = is_key ? options.cache_type_k : options.cache_type_v;
        if (!name) continue;
        Result<ggml_type> type = parse_kv_cache_type(*name);
        if (!type)
            return Error{type.error().code,
                         std::string(kCacheTypeOption) + (is_key ? "k: " : "v: ") + type.error().text};
        (is_key ? types.k : types.v) = type.value();
    }
    const Result<void> checked = check_kv_cache_types(model, types, false, kCacheTypeOption);
    if (!checked) return checked.error();
    return types;
}

// Where a file does not say it libllama takes 10000.
bool names_rope_base(const std::string& path, const std::string& architecture) {
    const Result<GgufMetadata> opened = GgufMetadata::open(path);
    return opened && opened.value().has(architecture + ".rope.freq_base");
}

llama_model_kv_override rope_base_override(const std::string& architecture, float base) {
    llama_model_kv_override override{};
    override.tag = LLAMA_KV_OVERRIDE_TYPE_FLOAT;
    override.val_f64 = static_cast<double>(base);
    std::snprintf(override.key, sizeof override.key, "%s.rope.freq_base", architecture.c_str());
    return override;
}

std::string shortly(float value) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%g", static_cast<double>(value));
    return text.data();
}

}  // namespace

const char* name_of(DraftKind kind) {
    switch (kind) {
        case DraftKind::dflash: return "dflash";
        case DraftKind::simple: return "draft";
        case DraftKind::mtp: return "mtp";
        case DraftKind::assistant: return "assistant";
        case DraftKind::eagle3: return "eagle3";
    }
    return "";
}

Result<DraftKind> draft_kind_of(const std::string& path, std::int32_t n_embd_target) {
    Result<GgufMetadata> opened = GgufMetadata::open(path);
    if (!opened) return Error{ErrorCode::start_failed, "draft " + path + ": " + opened.error().text};
    GgufMetadata& gguf = opened.value();
    const std::string architecture = gguf.text("general.architecture");
    gguf.set_architecture(architecture);
    const std::uint32_t n_layers = gguf.count(".block_count", {});
    const std::uint32_t n_heads = gguf.count(".nextn_predict_layers", {});
    const std::uint32_t n_embd = gguf.count(".embedding_length", {});
    const std::uint32_t n_hyper_connections = gguf.count(".hyper_connection.count", {});
    if (gguf.refusal()) return Error{ErrorCode::start_failed, "draft " + path + ": " + *gguf.refusal()};
    if (architecture == "dflash") {
        if (n_hyper_connections == 0) return DraftKind::dflash;
        return Error{ErrorCode::start_failed,
                     "draft " + path +
                         ": it drafts for DeepSeek V4 (it has dflash.hyper_connection.count), whose memory cannot be "
                         "paged: name a DFlash or DSpark drafter that is for another model"};
    }
    if (architecture == "eagle3") return DraftKind::eagle3;
    if (architecture == "gemma4-assistant") return DraftKind::assistant;
    const bool has_heads = n_heads > 0 && n_heads <= n_layers &&
                           gguf.has_tensor("blk." + std::to_string(n_layers - n_heads) + ".nextn.eh_proj.weight");
    const bool has_trunk = gguf.has_tensor("blk.0.attn_norm.weight");
    const bool fits = static_cast<std::int64_t>(n_embd) == n_embd_target;
    return (has_heads && fits) || (n_heads > 0 && !has_trunk) ? DraftKind::mtp : DraftKind::simple;
}

std::vector<std::uint32_t> captured_layers(const std::string& path) {
    Result<GgufMetadata> opened = GgufMetadata::open(path);
    if (!opened) return {};
    opened.value().set_architecture(opened.value().text("general.architecture"));
    return opened.value().numbers(".target_layers");
}

Result<std::unique_ptr<DraftContext>> DraftContext::load(const DraftModelOptions& options, const Model& target) {
    std::unique_ptr<DraftContext> draft(new DraftContext(options, target));
    if (Result<void> opened = draft->open(); !opened) return opened.error();
    return draft;
}

void DraftContext::unload(bool keeps_weights) {
    graphs_.reset();
    context_.reset();
    if (!keeps_weights) model_.reset();
    refusals_.forget();
}

Result<void> DraftContext::reload() {
    const std::string before = identity_;
    if (Result<void> opened = open(); !opened) return opened;
    if (identity_ != before) return failed("the file has changed since the model was parked");
    return {};
}

Error DraftContext::failed(const std::string& text) const {
    return {ErrorCode::start_failed, (options_.path.empty() ? "MTP heads" : "draft " + options_.path) + ": " + text};
}

Result<void> DraftContext::open() {
    if (options_.path.empty()) {
        architecture_ = target_.architecture();
        identity_ = target_.info().identity;
    } else if (!model_) {
        if (Result<void> loaded = load_weights(); !loaded) return loaded;
    }
    if (Result<void> checked = check_draft_fits(kind_, weights(), target_.model()); !checked) {
        return failed(checked.error().text + "; name a draft that was made for this model, or none");
    }
    n_vocab_ = llama_vocab_n_tokens(llama_model_get_vocab(weights()));
    const std::int32_t* layers = llama_model_target_layer_ids(weights());
    if (reads_features()) {
        target_layers_.assign(layers, layers + llama_model_target_layer_ids_n(weights()));
    }
    const bool wants_hidden = kind_ == DraftKind::mtp || kind_ == DraftKind::assistant;
    if (Result<void> checked = check_target_gives(target_.context(), target_layers_, wants_hidden); !checked) {
        return failed(checked.error().text);
    }
    if (Result<void> created = create_context(); !created) return created;
    read_target();
    return {};
}

Result<void> DraftContext::load_weights() {
    const Result<DraftKind> kind = draft_kind_of(options_.path, llama_model_n_embd(target_.model()));
    if (!kind) return kind.error();
    kind_ = kind.value();
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = options_.n_gpu_layers.value_or(target_.info().n_gpu_layers);
    params.load_mtp = kind_ == DraftKind::mtp;
    DeviceBeside device(*target_.model());
    device.apply(params);
    const float target_base = target_.model()->hparams.rope_freq_base_train;
    std::array<llama_model_kv_override, 2> overrides{};  // the last one ends them
    if (reads_features() && !names_rope_base(options_.path, name_of(kind_))) {
        overrides[0] = rope_base_override(name_of(kind_), target_base);
        params.kv_overrides = overrides.data();
        log_info("draft " + options_.path + " does not say how it rotates positions: as the model does");
    }
    Result<Weights> loaded = read_weights(options_.path, params);
    if (!loaded) return failed(loaded.error().text);
    model_ = std::move(loaded.value().model);
    architecture_ = model_->arch_name();
    if (const float base = model_->hparams.rope_freq_base_train; reads_features() && base != target_base) {
        log_warn("draft " + options_.path + " rotates positions with base " + shortly(base) + ", the model with " +
                 shortly(target_base) + ": where few drafted tokens are accepted, look here first");
    }
    Result<KvCacheTypes> types = cache_types(model_.get(), options_, target_.info().n_gpu_layers != 0);
    if (!types) return types.error();
    cache_types_ = types.value();
    ModelInfo info;
    info.cache_type_k = ggml_type_name(cache_types_.k);
    info.cache_type_v = ggml_type_name(cache_types_.v);
    Result<std::string> identity = memory_identity(loaded.value().files, info);
    if (!identity) return failed(identity.error().text);
    identity_ = std::move(identity).value();
    return {};
}

// As many cells as the target's pool has, since a page lies in both, and room for what each lane drafts.
Result<void> DraftContext::create_context() {
    if (options_.path.empty() || shares_cells()) {
        Result<KvCacheTypes> types = cache_types(target_.model(), options_, target_.info().n_gpu_layers != 0);
        if (!types) return types.error();
        cache_types_ = types.value();
    }
    const auto n_lanes = static_cast<std::uint32_t>(options_.n_lanes);
    const auto n_block = static_cast<std::uint32_t>(1 + options_.n_most);
    const std::uint32_t n_batch = kind_ == DraftKind::eagle3 ? kSmallBatch : llama_n_ubatch(target_.context());
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<std::uint32_t>(target_.info().n_pool + options_.n_lanes * (1 + options_.n_most));
    if (shares_cells()) params.n_ctx = llama_n_ctx(target_.context());
    params.n_batch = params.n_ubatch = std::max(n_batch, n_lanes);
    params.n_seq_max = n_lanes;
    if (kind_ == DraftKind::dflash) params.n_batch = params.n_ubatch = std::max(n_batch, n_lanes * n_block);
    // A block; or a lane's token and those that it got in its last step.
    n_outputs_ = std::min(options_.n_lanes * (2 + options_.n_most), static_cast<std::int32_t>(params.n_batch));
    params.n_outputs_max = static_cast<std::uint32_t>(n_outputs_);
    params.n_threads = params.n_threads_batch = options_.n_threads.value_or(target_.info().n_threads);
    params.type_k = cache_types_.k;
    params.type_v = cache_types_.v;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_AUTO;
    params.offload_kqv = target_.info().n_gpu_layers != 0;
    params.kv_unified = true;
    params.swa_full = false;
    params.no_perf = true;
    params.ctx_other = target_.context();
    if (kind_ == DraftKind::mtp || kind_ == DraftKind::assistant) {
        params.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
        target_.info().rope.apply(params);  // they are parts of the model, and see positions as it does
    }
    try {
        context_.reset(llama_init_from_model(weights(), params));
    } catch (const std::exception& e) {
        return failed(std::string("no context: ") + e.what());
    }
    if (!context_) {
        return failed("no context of " + std::to_string(params.n_ctx) +
                      " cells could be made for it (too little memory?)");
    }
    if (!model_ && target_.experts() != nullptr) target_.experts()->attach(context_->get_sched());  // of its heads too
    graphs_ = std::make_unique<GraphCache>(*context_, kMostGraphs);
    return {};
}

// Switches on what the draft reads: of the target for all tokens of a call, of itself for those with logits.
void DraftContext::read_target() const {
    if (kind_ == DraftKind::simple) return;
    const std::int32_t n_layers = llama_model_n_layer(target_.model());
    for (const std::int32_t layer : target_layers_) {
        if (layer < n_layers) {
            llama_set_embeddings_layer_inp(target_.context(), static_cast<std::uint32_t>(layer), true);
        } else {
            llama_set_embeddings_nextn(target_.context(), true, /*masked*/ false);
        }
    }
    if (kind_ == DraftKind::dflash) {
        const bool has_selector = dflash_head(weights()) == DflashHead::selector;
        if (has_selector) llama_set_embeddings_nextn(context_.get(), true, /*masked*/ false);
        return;
    }
    if (kind_ != DraftKind::eagle3) llama_set_embeddings_nextn(target_.context(), true, /*masked*/ false);
    llama_set_embeddings_nextn(context_.get(), true, /*masked*/ true);
}

}  // namespace luce::llama
