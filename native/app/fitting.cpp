#include "app/fitting.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "app/ending.h"
#include "app/models.h"
#include "base/log.h"
#include "daemon/setup/startup.h"
#include "llama/fit/fit.h"
#include "llama/model/load_guard.h"

namespace luce::app {

namespace {

using daemon::Options;
using llama::Fitted;

// More that stays free, where a plan has failed: allocators round up, and other programs take memory meanwhile.
constexpr std::size_t kFailedReserve = std::size_t{1} << 30;

llama::FitOptions to_fit_options(const Options& options) {
    llama::FitOptions fit;
    fit.gpu_bytes = options.gpu_memory_bytes;
    fit.reserve_bytes = options.reserve_gpu_bytes;
    for (const auto& file : {wants_draft_model(options) ? options.draft : std::nullopt, options.mmproj,
                             options.kvflash_scorer, options.prefill_scorer}) {
        if (file) fit.beside.push_back(*file);
    }
    if (!options.plan_gpus.empty()) fit.gpus.emplace(options.plan_gpus.begin(), options.plan_gpus.end());
    fit.host_bytes = options.plan_host_bytes;
    fit.may_lend_pages = !options.keeps_experts_in_place;
    return fit;
}

Result<Fitted> make_plan(const Options& options, const llama::FitOptions& wanted, int reply_fd) {
    llama::LoadGuard guard(to_guard_options(options, options.model, reply_fd));
    return llama::fit(to_model_options(options), wanted);
}

Options with_cache(Options options, const Fitted& fitted) {
    if (fitted.plan.has_q8) options.cache_type_k = options.cache_type_v = fitted.cache_type_k;
    if (fitted.plan.n_ctx < fitted.n_ctx_wanted) options.n_ctx = fitted.plan.n_ctx;
    return options;
}

Options with(Options options, const Fitted& fitted) {
    const llama::FitPlan& plan = fitted.plan;
    const std::int32_t n_behind = fitted.model.n_behind;
    if (!fitted.is_whole()) options.n_gpu_layers = plan.n_gpu_layers > 0 ? plan.n_gpu_layers + n_behind : 0;
    options.n_cpu_moe = plan.n_expert_layers;
    if (!fitted.device.empty()) options.devices = fitted.device;
    if (!plan.split.empty()) {
        std::vector<std::int32_t> split = plan.split;
        split.back() += n_behind;
        std::string shares;
        for (const std::int32_t n : split) shares += (shares.empty() ? "" : ",") + std::to_string(n);
        options.tensor_split = shares;
    }
    if (plan.expert_memory > 0) {
        options.expert_memory_bytes = plan.expert_memory;
        options.expert_lendable_bytes = plan.expert_lendable;
        if (to_model_options(options).may_widen) options.n_ubatch = llama::kWideUbatch;  // as it was planned
        return with_cache(std::move(options), fitted);
    }
    options = with_cache(std::move(options), fitted);
    // Wider calls would take what the plan leaves free.
    const std::size_t free = fitted.gpu_bytes();
    if (free - std::min(free, plan.gpu_bytes()) < free / 8) options.n_ubatch = options.ubatch();
    return options;
}

void tell(const Fitted& fitted) {
    const bool is_as_wanted = fitted.is_whole() && fitted.plan.n_expert_layers == 0 && fitted.plan.expert_memory == 0 &&
                              !fitted.plan.has_q8 && fitted.plan.n_ctx == fitted.n_ctx_wanted;
    if (is_as_wanted) return log_info("fit: " + fitted.text());
    log_warn("fit: " + fitted.text() +
             " (--fit off, --gpu-layers, --n-cpu-moe, --expert-memory, --cache-type-k and --ctx choose otherwise)");
    if (!fitted.plan.fits_host) log_warn("fit: what is left for the host's memory is more than can be had there");
}

daemon::StatusFields fields_of(const Fitted& fitted) {
    const llama::FitPlan& plan = fitted.plan;
    daemon::StatusFields fields;
    const auto add = [&fields](const char* name, auto value) { fields.emplace_back(name, std::to_string(value)); };
    add("gpus", fitted.budget.gpus.size());
    add("gpu_bytes", fitted.gpu_bytes());
    add("reserve_bytes", fitted.budget.reserve);
    add("layers", fitted.model.layers.size());
    add("gpu_layers", plan.n_gpu_layers);
    add("expert_layers_on_host", plan.n_expert_layers);
    add("expert_memory", plan.expert_memory);
    add("expert_lendable", plan.expert_lendable);
    add("ctx", plan.n_ctx);
    fields.emplace_back("cache_type_k", fitted.cache_type_k);
    fields.emplace_back("cache_type_v", fitted.cache_type_v);
    add("gpu_weights", plan.weights);
    add("gpu_cache", plan.cache);
    add("gpu_compute", plan.compute);
    add("gpu_beside", plan.beside);
    add("host_weights", plan.host_weights);
    add("host_cache", plan.host_cache);
    add("fits_host", plan.fits_host ? 1 : 0);
    return fields;
}

Result<FittedModel> load_unplanned(const Options& options, const llama::Backend& backend, int reply_fd) {
    Result<llama::Model> loaded = load_model(options, backend, reply_fd);
    if (!loaded) return loaded.error();
    return FittedModel{std::move(loaded).value(), {}};
}

Result<FittedModel> load_planned(Options& options, const Fitted& fitted, const llama::Backend& backend, int reply_fd) {
    tell(fitted);
    Options chosen = with(options, fitted);
    Result<llama::Model> loaded = load_model(chosen, backend, reply_fd);
    if (!loaded) return loaded.error();
    options = std::move(chosen);
    FittedModel model{std::move(loaded).value(), fields_of(fitted)};
    for (auto& [name, value] : model.plan) name.insert(0, "plan_");
    return model;
}

}  // namespace

Result<FittedModel> load_fitting(Options& options, const llama::Backend& backend, int reply_fd) {
    const bool may_use_gpu = backend.has_gpu() && options.devices != "none";
    if (!options.fits || !may_use_gpu || !llama::leaves_placement(to_model_options(options))) {
        return load_unplanned(options, backend, reply_fd);
    }
    llama::FitOptions wanted = to_fit_options(options);
    Result<Fitted> fitted = make_plan(options, wanted, reply_fd);
    if (!fitted) {
        if (fitted.error().code == ErrorCode::bad_args) return fitted.error();
        log_warn("fit: there is no plan, all goes to the GPU: " + fitted.error().text);
        return load_unplanned(options, backend, reply_fd);
    }
    Result<FittedModel> loaded = load_planned(options, fitted.value(), backend, reply_fd);
    if (loaded || loaded.error().code != ErrorCode::start_failed) return loaded;
    log_warn("fit: the plan failed, a smaller one is made: " + loaded.error().text);
    wanted.reserve_bytes += kFailedReserve;
    wanted.may_lend_pages = false;
    wanted.may_split_experts = fitted.value().plan.expert_memory == 0;  // the host may have had no memory to lock
    fitted = make_plan(options, wanted, reply_fd);
    if (!fitted) return fitted.error();
    return load_planned(options, fitted.value(), backend, reply_fd);
}

int print_plan(const Options& options, const llama::Backend& backend, int reply_fd) {
    if (options.plan_gpus.empty() && !backend.has_gpu()) {
        return refuse_to_start(reply_fd,
                               {ErrorCode::bad_args, "--plan: there is no GPU here; --plan-gpus 24G plans for one"},
                               kBadArguments);
    }
    const Result<Fitted> planned = make_plan(options, to_fit_options(options), reply_fd);
    if (!planned) return refuse_to_start(reply_fd, planned.error());
    std::string text = "plan";
    for (const auto& [name, value] : fields_of(planned.value()))
        text.append(" ").append(name).append("=").append(value);
    return daemon::write_text(reply_fd, text + "\n") ? 0 : kStartFailed;
}

}  // namespace luce::app
