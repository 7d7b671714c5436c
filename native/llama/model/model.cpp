#include "llama/model/model.h"

#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>

#include "base/clock.h"
#include "base/log.h"
#include "llama-context.h"
#include "llama-hparams.h"
#include "llama-model.h"
#include "llama/device_copy/pinned_reserve.h"
#include "llama/model/context_sizes.h"
#include "llama/model/kv_layer_types.h"
#include "llama/model/kv_overrides.h"
#include "llama/model/model_identity.h"
#include "llama/model/weights.h"

namespace luce::llama {
namespace {

std::string metadata(const llama_model* model, const char* key) {
    char text[256] = {};
    const int n = llama_model_meta_val_str(model, key, text, sizeof text);
    return n < 0 ? std::string() : std::string(text);
}

constexpr double kLoadProgress_s = 1.0;  // between two lines about it; what is sooner done has none

// Where loading stands: told to who waits for a sign of life, and to the log where it takes long.
struct LoadProgress {
    const std::function<void()>& on_progress;
    const std::function<void(std::int32_t)>& on_percent;
    SteadyClock clock{};
    double said_s = clock.now_s();
};

bool on_load_progress(float part, void* user) {
    auto& progress = *static_cast<LoadProgress*>(user);
    progress.on_progress();
    if (const double now_s = progress.clock.now_s(); now_s - progress.said_s >= kLoadProgress_s) {
        progress.said_s = now_s;
        const auto percent = static_cast<std::int32_t>(part * 100.0F);
        log_info("loading: " + std::to_string(percent) + " %");
        if (progress.on_percent) progress.on_percent(percent);
    }
    return true;
}

std::string milliseconds(double seconds) { return std::to_string(std::lround(seconds * 1e3)) + " ms"; }

Error start_failed(std::string text) { return {ErrorCode::start_failed, std::move(text)}; }

// "CUDA0 has 812 of 24564 MiB free", of each device that says it.
std::string free_memory() {
    std::string text;
    for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        std::size_t free = 0;
        std::size_t total = 0;
        ggml_backend_dev_memory(device, &free, &total);
        if (total == 0) continue;
        text += (text.empty() ? "" : ", ") + std::string(ggml_backend_dev_name(device)) + " has " +
                std::to_string(free >> 20) + " of " + std::to_string(total >> 20) + " MiB free";
    }
    return text;
}

// An eighth of each GPU's.
bool has_spare_memory() {
    for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        if (ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_GPU) continue;
        std::size_t free = 0;
        std::size_t total = 0;
        ggml_backend_dev_memory(device, &free, &total);
        if (free < total / 8) return false;
    }
    return true;
}

// The host's memory is given out before it is there: who takes more of it is ended later, without a word.
Result<void> check_host_holds(const llama_model* model, const KvLayerTypes& types, std::int32_t n_pool,
                              std::size_t host_bytes) {
    const std::size_t n_needed = least_row_bytes(model, types) * static_cast<std::size_t>(n_pool);
    if (n_needed <= host_bytes) return {};
    return start_failed("a pool of " + std::to_string(n_pool) + " tokens takes " + std::to_string(n_needed >> 20) +
                        " MiB, and of the host's memory " + std::to_string(host_bytes >> 20) +
                        " MiB can be had: give a smaller --kv-offload, --pool or --ctx");
}

}  // namespace

void LlamaModelDeleter::operator()(llama_model* model) const { llama_model_free(model); }
void LlamaContextDeleter::operator()(llama_context* context) const { llama_free(context); }

// Member by member the old model would go before its context, which looks at it once more.
Model& Model::operator=(Model&& other) noexcept {
    unload();
    model_ = std::move(other.model_);
    bank_ = std::move(other.bank_);
    elastic_ = std::move(other.elastic_);
    context_ = std::move(other.context_);
    graphs_ = std::move(other.graphs_);
    params_ = std::move(other.params_);
    cache_step_bytes_ = other.cache_step_bytes_;
    info_ = std::move(other.info_);
    return *this;
}

void Model::unload() {
    graphs_.reset();
    {
        const PinnedReserve::Keeping keeping;
        context_.reset();
    }
    elastic_.reset();
    model_.reset();
    bank_.reset();
}

const llama_vocab* Model::vocab() const { return llama_model_get_vocab(model_.get()); }

Result<Model> Model::load(const ModelOptions& options, bool has_gpu, const std::function<void()>& on_progress) {
    on_progress();
    const SteadyClock clock;
    const double began_s = clock.now_s();
    Model loaded;
    const Result<KvOverrides> overrides = KvOverrides::parse(options.kv_overrides);
    if (!overrides) return overrides.error();
    Result<Placement> placement = Placement::make(options.placement);
    if (!placement) return placement.error();
    has_gpu = has_gpu && placement.value().allows_gpu();
    if (ggml_backend_dev_t gpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU); has_gpu && gpu != nullptr) {
        PinnedReserve::install(gpu);
    }
    const std::int32_t n_gpu_layers = options.n_gpu_layers.value_or(has_gpu ? -1 : 0);
    if (Result<void> made = loaded.make_bank(options, placement.value(), has_gpu && n_gpu_layers != 0); !made) {
        return made.error();
    }
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = n_gpu_layers;
    placement.value().apply(params);
    params.load_mtp = options.loads_heads;
    params.progress_callback = on_load_progress;
    LoadProgress progress{.on_progress = on_progress, .on_percent = options.on_percent};
    params.progress_callback_user_data = &progress;
    Result<Weights> weights = read_overridden(options.path, params, overrides.value());
    if (!weights) return loaded.load_error(weights.error());
    loaded.model_ = std::move(weights.value().model);
    const double read_s = clock.now_s();
    loaded.info_.architecture = metadata(loaded.model_.get(), "general.architecture");
    if (Result<void> checked = check_is_decoder(loaded.model_.get()); !checked) return checked.error();

    const bool uses_gpu = has_gpu && n_gpu_layers != 0;
    if (!uses_gpu && options.placement.expert_cache_bytes > 0) {
        return Error{ErrorCode::bad_args, "--moe-cache-mib: no GPU is used that could keep experts; leave it out"};
    }
    if (!has_gpu && n_gpu_layers != 0) log_warn("--gpu-layers is of no use: no GPU or no backend for one was found");
    loaded.info_.n_gpu_layers = uses_gpu ? n_gpu_layers : 0;
    if (Result<void> opened = loaded.open_bank(options); !opened) return opened.error();
    if (Result<void> created = loaded.create_context(options, uses_gpu); !created) return created.error();
    if (Result<void> checked = loaded.check_context(options.outgrows_pool); !checked) return checked.error();
    PinnedReserve::clear();  // what was not asked for
    const double opened_s = clock.now_s();
    if (Result<void> warmed = loaded.warm_up(); !warmed) return warmed.error();
    const double warmed_s = clock.now_s();
    log_line(warmed_s - began_s < kLoadProgress_s ? LogLevel::debug : LogLevel::info,
             "loaded within " + milliseconds(warmed_s - began_s) + ": weights " + milliseconds(read_s - began_s) +
                 ", context " + milliseconds(opened_s - read_s) + ", first computation " +
                 milliseconds(warmed_s - opened_s));
    on_progress();

    ModelInfo& info = loaded.info_;
    info.rope = options.rope;
    info.overrides = overrides.value().text();
    info.file_name = std::filesystem::path(options.path).filename().string();
    info.n_vocab = llama_vocab_n_tokens(loaded.vocab());
    info.has_text = llama_vocab_type(loaded.vocab()) != LLAMA_VOCAB_TYPE_NONE;
    info.has_recurrent = llama_model_is_recurrent(loaded.model_.get()) || llama_model_is_hybrid(loaded.model_.get());
    Result<std::string> identity = memory_identity(weights.value().files, info);
    if (!identity) return identity.error();
    info.identity = std::move(identity).value();
    return loaded;
}

Result<void> Model::make_bank(const ModelOptions& options, Placement& placement, bool uses_gpu) {
    const bool is_split = options.placement.expert_memory_bytes.has_value();
    if (!is_split && !options.placement.expert_profile) return {};
    if (is_split && (!uses_gpu || options.n_gpu_layers.value_or(-1) >= 0)) {
        return Error{ErrorCode::bad_args,
                     "--expert-memory: all layers have to be on the GPU; use one, and leave --gpu-layers out"};
    }
    const Result<std::string> identity = memory_identity({options.path}, ModelInfo{});
    if (!identity) return identity.error();
    Result<std::shared_ptr<ExpertBank>> bank = placement.make_bank(identity.value(), uses_gpu);
    if (!bank) return bank.error();
    bank_ = std::move(bank).value();
    return {};
}

Error Model::load_error(Error error) const {
    if (bank_ && bank_->failure()) error.text += ": " + *bank_->failure();
    return error;
}

Result<void> Model::open_bank(const ModelOptions& options) {
    if (!bank_) return {};
    const std::int32_t n_tokens = options.may_widen ? kWideUbatch : options.n_ubatch;
    const auto n_used = static_cast<std::int32_t>(model_->hparams.n_expert_used_max());
    if (Result<void> opened = bank_->open(model_->tensors_by_name, n_tokens, n_used); !opened) {
        return start_failed(opened.error().text);
    }
    const experts::ExpertLayout& layout = bank_->layout();
    if (layout.tensors.empty()) {
        const std::string option = bank_->is_split() ? "--expert-memory" : "--expert-profile";
        return Error{ErrorCode::bad_args, option + ": the model is no mixture of experts"};
    }
    if (!bank_->is_split()) return {};
    log_info("experts: " + std::to_string(layout.n_resident()) + " of " + std::to_string(layout.n_experts()) +
             " lie on the GPU (" + std::to_string(layout.device_bytes() >> 20) +
             " MiB), the others in the host's memory (" + std::to_string(layout.host_bytes() >> 20) + " MiB)");
    return {};
}

Result<void> Model::create_context(const ModelOptions& options, bool uses_gpu) {
    const Result<ContextSizes> planned = context_sizes(model_.get(), options, uses_gpu);
    if (!planned) return planned.error();
    const ContextSizes& sizes = planned.value();
    info_.n_ctx_train = sizes.n_ctx_train;
    info_.n_ctx = sizes.n_ctx;
    info_.n_pool = sizes.n_pool;
    info_.n_threads = sizes.params.n_threads;
    info_.n_tree = sizes.n_tree;
    info_.tree_refusal = sizes.tree_refusal;
    info_.n_logits = sizes.n_logits;
    info_.n_prompt_logits = static_cast<std::int32_t>(sizes.params.n_outputs_max) - sizes.n_logits;
    if (info_.n_ctx > info_.n_ctx_train) {
        log_warn("--ctx " + std::to_string(info_.n_ctx) + " is beyond the model's training context of " +
                 std::to_string(info_.n_ctx_train) + "; answers may get worse there");
    }
    warn_of_few_states(sizes, options);
    if (!uses_gpu && options.host_bytes) {
        const auto held = check_host_holds(model_.get(), sizes.types, info_.n_pool, *options.host_bytes);
        if (!held) return held;
    }
    info_.cache_type_k = sizes.types.text(true);
    info_.cache_type_v = sizes.types.text(false);
    sizes.types.set(model_.get());
    params_ = std::make_shared<llama_context_params>(sizes.params);
    cache_step_bytes_ = options.placement.cache_step_bytes;
    if (options.may_widen && uses_gpu && open_wide_context()) return {};
    return open_context();
}

// Its buffers for computing are larger, and others want memory as well.
bool Model::open_wide_context() {
    const std::uint32_t n_batch = params_->n_batch;
    const std::uint32_t n_ubatch = params_->n_ubatch;
    params_->n_batch = params_->n_ubatch = static_cast<std::uint32_t>(kWideUbatch);
    if (open_context() && has_spare_memory()) return true;
    log_info("prompts are read " + std::to_string(n_ubatch) + " tokens at a time: for " + std::to_string(kWideUbatch) +
             " (--ubatch) a GPU lacks memory (" + free_memory() + ")");
    graphs_.reset();
    context_.reset();
    params_->n_batch = n_batch;
    params_->n_ubatch = n_ubatch;
    return false;
}

Result<void> Model::resize_pool(std::int32_t n_pool) {
    info_.n_pool = n_pool;
    graphs_.reset();
    context_.reset();  // its memory is the new one's
    if (Result<void> opened = open_context(); !opened) return opened;
    return warm_up();
}

Result<void> Model::open_context() {
    params_->n_ctx = static_cast<std::uint32_t>(info_.n_pool);
    elastic_.reset();
    if (bank_ && bank_->n_lendable() > 0)
        elastic_ = std::make_unique<ElasticCache>(bank_->device(), *bank_, cache_step_bytes_);
    try {
        std::optional<ElasticCache::Placing> placing;
        if (elastic_) placing.emplace(*elastic_);
        context_.reset(llama_init_from_model(model_.get(), *params_));
    } catch (const std::exception& e) {
        return start_failed(std::string("no context: ") + e.what());
    }
    if (!context_) {
        return start_failed("no context of " + std::to_string(info_.n_pool) + " cells for " +
                            std::to_string(params_->n_seq_max) +
                            " lanes could be made (too little memory? a smaller --ctx, --pool or --lanes needs less; " +
                            free_memory() + ")");
    }
    if (elastic_ && !elastic_->is_placed()) elastic_.reset();
    info_.n_rollback = llama_n_rs_seq(context_.get());
    if (bank_) bank_->attach(context_->get_sched());
    // What computes a part of each tensor on several devices knows the parts of the last graph alone.
    const bool keeps_graphs = model_->split_mode() != LLAMA_SPLIT_MODE_TENSOR;
    graphs_ = std::make_unique<GraphCache>(*context_, keeps_graphs ? kMostGraphs : 0);
    return {};
}

// What the context must have for lanes to mean anything; a warning where the pool's size changes the answers.
Result<void> Model::check_context(bool outgrows_pool) const {
    if (llama_get_memory(context_.get()) == nullptr) {
        return start_failed("the model keeps no memory of its text (an embedding model?); luced runs causal ones");
    }
    const bool has_longrope = metadata(model_.get(), (info_.architecture + ".rope.scaling.type").c_str()) == "longrope";
    if (has_longrope && outgrows_pool) {
        return start_failed(
            "--kv-offload: this model chooses its rope factors by the size of the pool (LongRoPE), so long texts would "
            "be "
            "read with those for short ones; give --pool instead");
    }
    if (has_longrope) {
        log_warn(
            "this model chooses its rope factors by the size of the pool (LongRoPE): with another --ctx or --pool "
            "the same prompt may get another answer");
    }
    return {};
}

// The first computation pays for pages of weights not yet read and kernels not yet loaded.
Result<void> Model::warm_up() {
    llama_token token = 0;
    llama_batch batch = llama_batch_get_one(&token, 1);
    try {
        if (llama_decode(context_.get(), batch) != 0) return start_failed("the first computation failed");
        llama_synchronize(context_.get());
        llama_memory_clear(llama_get_memory(context_.get()), true);
    } catch (const std::exception& e) {
        return start_failed(std::string("the first computation failed: ") + e.what());
    }
    return {};
}

}  // namespace luce::llama
