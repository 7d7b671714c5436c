#include "llama/fit/fit.h"

#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/log.h"
#include "llama-ext.h"
#include "llama-model.h"
#include "llama/model/context_sizes.h"
#include "llama/model/kv_overrides.h"
#include "llama/model/model_identity.h"

namespace luce::llama {
namespace {

constexpr std::int32_t kLeastCtx = 8192;  // that an agent can work with
constexpr const char* kSmallCache = "q8_0";
// Beside a model's weights, in hundredths of them: its context. Of a drafter it is the largest part.
constexpr std::size_t kBesidePercent = 20;

bool begins_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

// "blk.12.attn_q.weight": 12.
std::optional<std::size_t> layer_of(std::string_view name) {
    constexpr std::string_view kPrefix = "blk.";
    if (!begins_with(name, kPrefix)) return std::nullopt;
    std::size_t layer = 0;
    const char* end = name.data() + name.size();
    const auto [at, error] = std::from_chars(name.data() + kPrefix.size(), end, layer);
    if (error != std::errc() || at == end || *at != '.') return std::nullopt;
    return layer;
}

FitModel sizes_of(const llama_model* model) {
    FitModel sizes;
    sizes.layers.resize(static_cast<std::size_t>(std::max(llama_model_n_layer(model), 0)));
    std::size_t embeddings = 0;
    bool has_output = false;
    for (const auto& [name, tensor] : model->tensors_by_name) {
        const std::size_t n_bytes = ggml_nbytes(tensor);
        if (const auto layer = layer_of(name);
            layer && !sizes.layers.empty()) {  // heads for drafting lie behind the last
            LayerSize& size = sizes.layers[std::min(*layer, sizes.layers.size() - 1)];
            const bool is_expert = name.find("_exps.weight") != name.npos || name.find("_chexps.weight") != name.npos;
            (is_expert ? size.experts : size.dense) += n_bytes;
            if (is_expert) sizes.largest_experts = std::max(sizes.largest_experts, n_bytes);
        } else if (name == "token_embd.weight") {
            embeddings = n_bytes;
        } else if (begins_with(name, "token_embd") || begins_with(name, "per_layer_token_embd")) {
            sizes.input += n_bytes;
        } else {
            has_output = has_output || name == "output.weight";
            sizes.output += n_bytes;
        }
    }
    sizes.n_behind = llama_model_n_layer_nextn(model);
    sizes.input += embeddings;
    if (!has_output) sizes.output += embeddings;  // the same weights, once more on the GPU
    return sizes;
}

// In libllama's order: as they are named, or as they are.
std::vector<ggml_backend_dev_t> gpus_of(const PlacementOptions& placement) {
    std::vector<std::pair<std::size_t, ggml_backend_dev_t>> all;
    for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        if (ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_GPU) continue;
        const std::string name = "," + std::string(ggml_backend_dev_name(device)) + ",";
        const std::size_t at = placement.devices ? ("," + *placement.devices + ",").find(name) : i;
        if (at != std::string::npos) all.emplace_back(at, device);
    }
    std::ranges::sort(all);
    std::vector<ggml_backend_dev_t> devices;
    for (const auto& [at, device] : all) devices.push_back(device);
    return devices;
}

// None where one of them does not say it: what shares the host's memory, or nobody's.
std::vector<std::size_t> free_gpus(const PlacementOptions& placement) {
    std::vector<std::size_t> all;
    for (ggml_backend_dev_t device : gpus_of(placement)) {
        std::size_t free = 0, total = 0;
        ggml_backend_dev_memory(device, &free, &total);
        if (total == 0) return {};
        all.push_back(free);
    }
    return all;
}

// Whether the first of them reads host memory by itself.
bool splits_experts(const PlacementOptions& placement) {
    const auto gpus = gpus_of(placement);
    return !gpus.empty() && placement.open_split_memory(gpus.front()).ok();
}

std::string gib(std::size_t n_bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", static_cast<double>(n_bytes) / (1 << 30));
    return text;
}

// A layer's experts; null: it is no mixture, or the GPU does not read all of its experts from the host's memory.
const ggml_tensor* experts_of(const llama_model* model) {
    const ggml_tensor* found = nullptr;
    for (const auto& [name, tensor] : model->tensors_by_name) {
        if (name.find("_chexps.") != name.npos) return nullptr;
        if (name.find("_exps.weight") != name.npos) found = tensor;
    }
    return found;
}

std::string rate(double bytes_per_s) { return gib(static_cast<std::size_t>(bytes_per_s)) + " GiB/s"; }

// What the model's profile knows; nothing: none is kept, or it is of no use.
experts::ExpertProfile known_experts(const ModelOptions& options) {
    const PlacementOptions& placement = options.placement;
    const Result<std::string> identity = memory_identity({options.path}, ModelInfo{});
    if (!identity) return {};
    const auto file = experts::profile_file(placement.expert_profile, placement.expert_profiles, identity.value());
    if (!file) return {};
    Result<experts::ExpertProfile> known = experts::read_profile(*file, identity.value());
    return known ? std::move(known).value() : experts::ExpertProfile{};
}

// Where the processor computes experts faster than the GPU reads them over its link they are better left to it. Empty:
// it does not.
std::string why_not_split(const Fitted& fitted, const experts::ExpertProfile& known,
                          const experts::ExpertRates& rates) {
    std::size_t n_all = 0;
    for (const LayerSize& layer : fitted.model.layers) n_all += layer.experts;
    const double share = static_cast<double>(fitted.plan.expert_memory) / static_cast<double>(n_all);
    const double hits = experts::hits_at(share, known);
    if (experts::is_reading_cheaper(share, hits, rates)) return {};
    return "the processor computes experts at " + rate(rates.processor) + ", the link to the GPU has " +
           rate(rates.link) + " for the " + std::to_string(std::lround(100 * (1 - hits))) + " % that it would lack";
}

std::size_t file_bytes(const std::vector<std::string>& files) {
    std::size_t all = 0;
    for (const std::string& file : files) {
        std::error_code error;
        const auto n_bytes = std::filesystem::file_size(file, error);
        if (!error) all += n_bytes + n_bytes / 100 * kBesidePercent;
    }
    return all;
}

// libllama's own sum, of a context that takes no memory; none: it makes no such context.
std::optional<ContextSize> measure(llama_model* model, const ContextSizes& sizes) {
    ContextSize size;
    sizes.types.set(model);
    try {
        const std::unique_ptr<llama_context, LlamaContextDeleter> context(llama_init_from_model(model, sizes.params));
        if (!context) return std::nullopt;
        for (const auto& [type, bytes] : llama_get_memory_breakdown(context.get())) {
            size.cache += bytes.context;
            size.compute += bytes.compute;
        }
        size.pages = std::min(size.cache, least_row_bytes(model, sizes.types) * static_cast<std::size_t>(sizes.n_pool));
    } catch (const std::exception& e) {
        log_warn(std::string("fit: a context could not be measured: ") + e.what());
        return std::nullopt;
    }
    return size;
}

class ContextProbe {
public:
    ContextProbe(llama_model* model, const ModelOptions& options) : model_(model), options_(options) {}

    Result<ContextSizes> sizes(std::int32_t n_ctx, bool has_q8, bool is_wide = false) const {
        ModelOptions options = options_;
        if (is_wide && options.may_widen) options.n_batch = options.n_ubatch = kWideUbatch;
        if (!options.n_pool) options.n_ctx = n_ctx;
        if (has_q8) options.cache_type_k = options.cache_type_v = kSmallCache;
        return context_sizes(model_, options, true);
    }

    std::optional<ContextSize> measure(std::int32_t n_ctx, bool has_q8, bool is_wide = false) {
        const auto [at, is_new] = known_.try_emplace({n_ctx, has_q8, is_wide});
        if (!is_new) return at->second;
        if (const Result<ContextSizes> planned = sizes(n_ctx, has_q8, is_wide)) {
            at->second = llama::measure(model_, planned.value());
        }
        return at->second;
    }

private:
    llama_model* model_;
    const ModelOptions& options_;
    std::map<std::tuple<std::int32_t, bool, bool>, std::optional<ContextSize>> known_;
};

FitChoices choices_of(const ModelOptions& options, ContextProbe& probe, const ContextSizes& wanted) {
    FitChoices choices;
    choices.n_ctx = {wanted.n_ctx};
    const bool is_wish = !options.n_ctx && !options.n_pool;
    for (std::int32_t n = wanted.n_ctx / 2; is_wish && n >= kLeastCtx; n /= 2) choices.n_ctx.push_back(n);
    choices.has_q8 = {false};
    const bool may_choose =
        !options.cache_type_k && !options.cache_type_v && options.flash_attention != FlashAttention::off;
    if (may_choose && wanted.params.type_k == GGML_TYPE_F16 && probe.measure(wanted.n_ctx, true)) {
        choices.has_q8.push_back(true);
    }
    return choices;
}

}  // namespace

std::size_t Fitted::gpu_bytes() const {
    return std::accumulate(budget.gpus.begin(), budget.gpus.end(), std::size_t{0});
}

std::string Fitted::text() const {
    const auto n_layers = static_cast<std::int32_t>(model.layers.size());
    std::string text = is_whole()               ? "all layers on the GPU"
                       : plan.n_gpu_layers == 0 ? "no layer on a GPU: nothing of it fits there"
                                                : std::to_string(plan.n_gpu_layers - 1) + " of " +
                                                      std::to_string(n_layers) + " layers on the GPU";
    if (plan.n_expert_layers > 0) {
        text += ", the experts of " + std::to_string(plan.n_expert_layers) + " of " + std::to_string(n_layers) +
                " layers in the host's memory";
    }
    if (plan.expert_memory > 0) {
        text += ", the experts used most in " + gib(plan.expert_memory) +
                " GiB there, the others in the host's memory, where the GPU reads them";
        if (plan.expert_lendable > 0) text += " (" + gib(plan.expert_lendable) + " GiB of it until the context fills)";
    }
    if (!reason.empty()) text += " (" + reason + ")";
    text += ", a context of " + std::to_string(plan.n_ctx) + " in " + cache_type_k + ": ";
    return text + gib(plan.gpu_bytes()) + " of " + gib(gpu_bytes()) + " GiB";
}

bool leaves_placement(const ModelOptions& options) {
    const PlacementOptions& placement = options.placement;
    return !options.n_gpu_layers && !placement.tensor_split && !placement.tensor_overrides &&
           !placement.keeps_experts && placement.n_expert_layers == 0 && placement.expert_cache_bytes == 0 &&
           !placement.expert_memory_bytes && placement.split_mode == SplitMode::layer;
}

Result<Fitted> fit(const ModelOptions& options, const FitOptions& wanted) {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    params.no_alloc = true;
    params.load_mode = LLAMA_LOAD_MODE_NONE;
    params.load_mtp = options.loads_heads;
    const Result<KvOverrides> overrides = KvOverrides::parse(options.kv_overrides);
    if (!overrides) return overrides.error();
    const Result<Weights> weights = read_overridden(options.path, params, overrides.value());
    if (!weights) return weights.error();
    llama_model* model = weights.value().model.get();
    if (const Result<void> checked = check_is_decoder(model); !checked) return checked.error();
    const Result<ContextSizes> sizes = context_sizes(model, options, true);
    if (!sizes) return sizes.error();
    const auto refused = [](const char* why) { return Error{ErrorCode::start_failed, why}; };
    Fitted fitted;
    fitted.model = sizes_of(model);
    fitted.model.beside = file_bytes(wanted.beside);
    fitted.budget.gpus = wanted.gpus ? *wanted.gpus : free_gpus(options.placement);
    if (fitted.budget.gpus.empty()) return refused("no GPU says how much memory it has");
    for (std::size_t& free : fitted.budget.gpus) free = std::min(free, wanted.gpu_bytes.value_or(free));
    fitted.budget.reserve = wanted.reserve_bytes;
    fitted.budget.host = wanted.host_bytes.value_or(options.host_bytes.value_or(SIZE_MAX));
    ContextProbe probe(model, options);
    bool is_known = true;
    FitChoices choices = choices_of(options, probe, sizes.value());
    const ggml_tensor* experts = experts_of(model);
    choices.splits_experts = wanted.may_split_experts && experts != nullptr && fitted.budget.gpus.size() == 1 &&
                             (wanted.gpus || splits_experts(options.placement));
    choices.least_experts = wanted.least_experts;
    // Without flash attention a position's values do not lie together.
    choices.lends_pages =
        wanted.may_lend_pages && !options.outgrows_pool && options.flash_attention != FlashAttention::off;
    const auto context_size = [&](std::int32_t n_ctx, bool has_q8, bool is_wide) {
        const auto size = probe.measure(n_ctx, has_q8, is_wide);
        is_known = is_known && size;
        return size.value_or(ContextSize{});
    };
    fitted.plan = fit_plan(fitted.model, fitted.budget, choices, context_size);
    if (fitted.plan.expert_memory > 0 && !wanted.gpus) {
        const experts::ExpertProfile known = known_experts(options);
        const auto n_used = std::max(static_cast<std::int32_t>(model->hparams.n_expert_used_max()), 1);
        const experts::ExpertRates rates = wanted.measure_experts(gpus_of(options.placement).front(), *experts, n_used,
                                                                  sizes.value().params.n_threads);
        log_info("fit: experts come to the GPU at " + rate(rates.link) + ", the processor computes them at " +
                 rate(rates.processor));
        fitted.reason = why_not_split(fitted, known, rates);
        choices.splits_experts = fitted.reason.empty();
        if (!choices.splits_experts) fitted.plan = fit_plan(fitted.model, fitted.budget, choices, context_size);
    }
    if (!is_known) return refused("libllama does not say what a context takes");
    if (fitted.plan.gpu) {
        if (!wanted.gpus) fitted.device = ggml_backend_dev_name(gpus_of(options.placement)[*fitted.plan.gpu]);
        fitted.budget.gpus = {fitted.budget.gpus[*fitted.plan.gpu]};
    }
    const bool uses_gpu = fitted.plan.n_gpu_layers > 0;
    const Result<ContextSizes> chosen =
        fitted.plan.has_q8 ? probe.sizes(fitted.plan.n_ctx, true) : context_sizes(model, options, uses_gpu);
    if (!chosen) return chosen.error();
    if (!uses_gpu) {  // the cache has the CPU's number format there
        FitPlan& plan = fitted.plan;
        plan.host_cache = measure(model, chosen.value()).value_or(ContextSize{}).cache;
        plan.fits_host = plan.host_weights + plan.host_cache <= fitted.budget.host;
    }
    fitted.cache_type_k = chosen.value().types.text(true);
    fitted.cache_type_v = chosen.value().types.text(false);
    fitted.n_ctx_wanted = sizes.value().n_ctx;
    return fitted;
}

}  // namespace luce::llama
