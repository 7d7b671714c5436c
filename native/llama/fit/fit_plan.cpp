#include "llama/fit/fit_plan.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace luce::llama {
namespace {

constexpr int kFillSteps = 8;

// Of the cache's pages, what has memory to begin with; and what comes in granules may take so much more.
constexpr std::size_t kFirstPart = 16;
constexpr std::size_t kFirstBytes = std::size_t{64} << 20;
constexpr std::size_t kInGranules = std::size_t{128} << 20;
// Of all experts, that stay on the GPU where all is lent: fewer would not be worth their stages.
constexpr std::size_t kLeastStay = 8;

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
        host_ = budget.host;
        for (const std::size_t bytes : budget.gpus) rooms_.push_back(bytes - std::min(bytes, budget.reserve));
        room_ = std::accumulate(rooms_.begin(), rooms_.end(), std::size_t{0});
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
            const std::size_t each = buffers(n_expert_layers);
            plan.compute = each * std::max(n_used(each), std::size_t{1});
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
        if (rooms_.size() > 1 && n_on_gpu > 0) plan.split = split(plan);
        return plan;
    }

    // All layers on the GPU, and as many experts as there is room for. None: there is not even room for the rest and
    // the least of them.
    std::optional<FitPlan> with_split_experts(const FitChoices& choices) const {
        const auto n_layers = static_cast<std::int32_t>(model_.layers.size());
        FitPlan plan = with(n_layers + 1, n_layers);
        plan.compute = context_.compute;
        plan.n_expert_layers = 0;
        if (plan.gpu_bytes() + choices.least_experts > room_) return std::nullopt;
        std::size_t n_all = 0;
        for (const LayerSize& layer : model_.layers) n_all += layer.experts;
        plan.expert_memory = std::min(room_ - plan.gpu_bytes(), n_all);
        plan.weights += plan.expert_memory;
        plan.host_weights -= plan.expert_memory;
        if (plan.host_weights + plan.host_cache > host_) return std::nullopt;
        if (choices.lends_pages && plan.expert_memory >= n_all / kLeastStay) lend_pages(plan, n_all);
        return plan;
    }

    // The host has room for what is lent as well.
    void lend_pages(FitPlan& plan, std::size_t n_all) const {
        const std::size_t first = std::max(context_.pages / kFirstPart, kFirstBytes) + kInGranules;
        if (context_.pages < 2 * first || plan.expert_memory >= n_all) return;
        plan.expert_lendable = std::min(context_.pages - first, n_all - plan.expert_memory);
        plan.expert_memory += plan.expert_lendable;
        plan.weights += plan.expert_lendable;
        plan.cache -= plan.expert_lendable;
    }

    bool fits(const FitPlan& plan) const {
        if (plan.n_gpu_layers == 0) return true;
        return rooms_.size() > 1 ? !plan.split.empty() : plan.gpu_bytes() <= room_;
    }

private:
    // On each GPU that layers lie on.
    std::size_t buffers(std::int32_t n_expert_layers) const {
        return context_.compute + staging(model_, n_expert_layers);
    }
    // How many GPUs have room for more than that.
    std::size_t n_used(std::size_t buffers) const {
        return static_cast<std::size_t>(
            std::ranges::count_if(rooms_, [&](std::size_t room) { return room > buffers; }));
    }

    // How many layers each GPU gets, none fuller than need be; empty: they have no room for all.
    std::vector<std::int32_t> split(const FitPlan& plan) const {
        std::size_t room = 0;
        for (const std::size_t each : rooms_) room += each > buffers(plan.n_expert_layers) ? each : 0;
        const double even = static_cast<double>(plan.gpu_bytes()) / static_cast<double>(std::max(room, std::size_t{1}));
        for (int step = 0; step <= kFillSteps && even <= 1; ++step) {
            auto found = split(plan, even + (1 - even) * step / kFillSteps);
            if (!found.empty()) return found;
        }
        return {};
    }

    // The last GPU with room for what lies on one alone.
    std::size_t last_of(std::size_t n_bytes) const {
        std::size_t last = rooms_.size() - 1;
        while (last > 0 && rooms_[last] < n_bytes) --last;
        return last;
    }

    // The same with each GPU full to this share; the last one takes the rest.
    std::vector<std::int32_t> split(const FitPlan& plan, double share) const {
        const auto n_layers = static_cast<std::int32_t>(model_.layers.size());
        const std::size_t compute = buffers(plan.n_expert_layers);
        const std::size_t last = last_of(compute + plan.beside + model_.output);
        const std::size_t cached = n_layers == 0 ? 0 : context_.cache / static_cast<std::size_t>(n_layers);
        std::vector<std::int32_t> counts;
        std::int32_t next = n_layers + 1 - plan.n_gpu_layers;
        for (std::size_t g = 0; g < rooms_.size(); ++g) {
            const auto room = static_cast<std::size_t>(static_cast<double>(rooms_[g]) * (g == last ? 1 : share));
            std::size_t used = compute + (g == last ? plan.beside : 0);
            counts.push_back(0);
            if (g > last || used >= rooms_[g]) continue;
            for (; next <= n_layers; ++next, ++counts.back()) {
                if (next == n_layers && g != last) break;
                std::size_t bytes = model_.output;
                if (next < n_layers) {
                    const LayerSize& layer = model_.layers[static_cast<std::size_t>(next)];
                    bytes = layer.dense + cached + (next >= plan.n_expert_layers ? layer.experts : 0);
                }
                if (used + bytes > room) break;
                used += bytes;
            }
        }
        return next > n_layers ? counts : std::vector<std::int32_t>();
    }

    const FitModel& model_;
    ContextSize context_;
    FitPlan plan_;
    std::vector<std::size_t> rooms_;  // of each GPU
    std::size_t room_ = 0;            // of all
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
    const std::size_t n_alone = budget.gpus.size() < 2 ? 0 : budget.gpus.size();
    for (std::size_t g = 0; g < n_alone; ++g) {
        const FitBudget one{{budget.gpus[g]}, budget.reserve, budget.host};
        const bool has_q8 = choices.has_q8.front();
        const Planner here(model, one, context_size(n_wanted, has_q8, false), n_wanted, has_q8);
        FitPlan all = here.with(n_layers + 1, 0);
        all.gpu = g;
        if (here.fits(all)) return all;
    }
    if (!budget.gpus.empty()) {
        for (const bool has_q8 : choices.has_q8) {
            const Planner here = planner(n_wanted, has_q8);
            if (const FitPlan all = here.with(n_layers + 1, 0); here.fits(all)) return all;
        }
        for (const std::int32_t n_ctx : choices.n_ctx) {
            if (!is_mixture || !choices.splits_experts) break;
            if (const auto plan = planner(n_ctx, least, true).with_split_experts(choices)) return *plan;
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
