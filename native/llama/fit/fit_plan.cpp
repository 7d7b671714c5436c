#include "llama/fit/fit_plan.h"

#include <algorithm>
#include <optional>

namespace luce::llama {
namespace {

// The weights of layers that lie in the host's memory are copied to the GPU for a prompt, a tensor at a time: two wait
// while one is computed with.
std::size_t staging(const FitModel& model, std::int32_t n_expert_layers) {
    return n_expert_layers > 0 ? 2 * model.largest_experts : 0;
}

class Planner {
public:
    Planner(const FitModel& model, const FitBudget& budget, ContextSize context, std::int32_t n_ctx, bool has_q8)
        : model_(model), context_(context) {
        plan_.n_ctx = n_ctx;
        plan_.has_q8 = has_q8;
        n_gpus_ = budget.gpus.size();
        host_ = budget.host;
        std::size_t largest = 0;
        for (const LayerSize& layer : model.layers) largest = std::max(largest, layer.dense + layer.experts);
        for (const std::size_t bytes : budget.gpus) room_ += bytes - std::min(bytes, budget.reserve);
        // Layers are whole: each GPU but the last may have less than one to spare.
        const std::size_t lost = n_gpus_ > 1 ? (n_gpus_ - 1) * largest : 0;
        room_ -= std::min(room_, lost);
    }

    // So many layers, from the last one, and the output on the GPUs; so many layers' experts in the host's memory.
    FitPlan with(std::int32_t n_on_gpu, std::int32_t n_expert_layers) const {
        FitPlan plan = plan_;
        const auto n_layers = static_cast<std::int32_t>(model_.layers.size());
        plan.n_gpu_layers = n_on_gpu;
        plan.n_expert_layers = n_expert_layers;
        plan.host_weights = model_.input;
        if (n_on_gpu == 0) {
            plan.host_weights += model_.output;
        } else {
            plan.weights = model_.output;
            plan.compute = context_.compute * n_gpus_ + staging(model_, n_expert_layers);
            plan.beside = model_.beside;
        }
        std::int32_t n_cached = 0;
        for (std::int32_t i = 0; i < n_layers; ++i) {
            const LayerSize& layer = model_.layers[static_cast<std::size_t>(i)];
            const bool is_on_gpu = i >= n_layers + 1 - n_on_gpu;
            (is_on_gpu ? plan.weights : plan.host_weights) += layer.dense;
            (is_on_gpu && i >= n_expert_layers ? plan.weights : plan.host_weights) += layer.experts;
            n_cached += is_on_gpu ? 1 : 0;
        }
        plan.cache = n_layers == 0
                         ? 0
                         : context_.cache / static_cast<std::size_t>(n_layers) * static_cast<std::size_t>(n_cached);
        plan.host_cache = context_.cache - std::min(context_.cache, plan.cache);
        plan.fits_host = plan.host_weights + plan.host_cache <= host_;
        return plan;
    }

    // All layers on the GPU, and as many experts as there is room for. None: there is not even room for the rest and
    // the least of them.
    std::optional<FitPlan> with_split_experts(std::size_t least) const {
        const auto n_layers = static_cast<std::int32_t>(model_.layers.size());
        FitPlan plan = with(n_layers + 1, n_layers);
        plan.compute = context_.compute;
        plan.n_expert_layers = 0;
        if (plan.gpu_bytes() + least > room_) return std::nullopt;
        std::size_t n_all = 0;
        for (const LayerSize& layer : model_.layers) n_all += layer.experts;
        plan.expert_memory = std::min(room_ - plan.gpu_bytes(), n_all);
        plan.weights += plan.expert_memory;
        plan.host_weights -= plan.expert_memory;
        if (plan.host_weights + plan.host_cache > host_) return std::nullopt;
        return plan;
    }

    bool fits(const FitPlan& plan) const { return plan.n_gpu_layers == 0 || plan.gpu_bytes() <= room_; }

private:
    const FitModel& model_;
    ContextSize context_;
    FitPlan plan_;
    std::size_t n_gpus_ = 0;
    std::size_t room_ = 0;
    std::size_t host_ = 0;
};

}  // namespace

FitPlan fit_plan(const FitModel& model, const FitBudget& budget, const FitChoices& choices,
                 const ContextSizeOf& context_size) {
    const auto n_layers = static_cast<std::int32_t>(model.layers.size());
    const bool is_mixture =
        std::any_of(model.layers.begin(), model.layers.end(), [](const LayerSize& layer) { return layer.experts > 0; });
    const auto planner = [&](std::int32_t n_ctx, bool has_q8, bool is_wide = false) {
        return Planner(model, budget, context_size(n_ctx, has_q8, is_wide), n_ctx, has_q8);
    };
    const std::int32_t n_wanted = choices.n_ctx.front();
    const bool least = choices.has_q8.back();
    if (!budget.gpus.empty()) {
        for (const bool has_q8 : choices.has_q8) {
            const Planner here = planner(n_wanted, has_q8);
            if (const FitPlan all = here.with(n_layers + 1, 0); here.fits(all)) return all;
        }
        for (const std::int32_t n_ctx : choices.n_ctx) {
            if (!is_mixture || !choices.splits_experts) break;
            if (const auto plan = planner(n_ctx, least, true).with_split_experts(choices.least_experts)) return *plan;
        }
        const Planner here = planner(n_wanted, least);
        for (std::int32_t n = 1; is_mixture && n <= n_layers; ++n) {
            if (const FitPlan plan = here.with(n_layers + 1, n); here.fits(plan)) return plan;
        }
        for (const std::int32_t n_ctx : choices.n_ctx) {
            const Planner shorter = planner(n_ctx, least);
            const FitPlan plan = shorter.with(n_layers + 1, is_mixture ? n_layers : 0);
            if (shorter.fits(plan)) return plan;
        }
        for (std::int32_t n = n_layers; n > 0; --n) {
            if (const FitPlan plan = here.with(n, is_mixture ? n_layers : 0); here.fits(plan)) return plan;
        }
    }
    return planner(n_wanted, choices.has_q8.front()).with(0, 0);
}

}  // namespace luce::llama
