// FitPlan: what of a model lies on the GPUs and what in the host's memory, so that it fits. Pure: sizes and free memory
// go in, a plan comes out. Knows neither files nor devices.
//
// In this order, until all fits: everything on the GPUs; the cache in q8_0; of a mixture as many experts as there is
// room for on the GPU, which reads the others from the host's memory, or, where it cannot, as many layers' experts as
// necessary there, the first layers' first; a shorter context, where nobody asked for one; fewer layers on the GPUs.
// Experts are read a few at a time, so a layer's cost little there; a dense layer is read whole. Layers count as having
// equal shares of the cache: their kinds alternate.
//
// What one GPU holds as it is wanted lies on that one: each further one costs time. Several get layers by their bytes,
// each about as full as the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace luce::llama {

// In bytes.
struct LayerSize {
    std::size_t dense = 0;
    std::size_t experts = 0;
};

// What a context takes, wherever it is computed.
struct ContextSize {
    std::size_t cache = 0;    // pages and states of all layers
    std::size_t compute = 0;  // buffers, on each device
    std::size_t pages = 0;    // of the cache, which are empty to begin with
};

struct FitModel {
    std::vector<LayerSize> layers;
    std::size_t largest_experts = 0;  // tensor of a layer's
    std::size_t output = 0;           // computed with the last layers
    std::size_t input = 0;            // always in the host's memory
    std::size_t beside = 0;           // other models, on the GPU of the output: drafter, projector, scorer
    std::int32_t n_behind = 0;        // layers behind the last one that libllama counts as well: heads for drafting
};

struct FitBudget {
    std::vector<std::size_t> gpus;  // free bytes of each that may be used
    std::size_t reserve = 0;        // of each, that stays free
    std::size_t host = 0;           // bytes that can be had
};

inline constexpr std::size_t kLeastExperts = std::size_t{64} << 20;  // bytes: fewer on the GPU are not worth it

// What may be chosen, the best first. REQUIRES: n_ctx and has_q8 not empty.
struct FitChoices {
    std::vector<std::int32_t> n_ctx;  // one: asked for
    std::vector<bool> has_q8;         // cache in q8_0 or as it would be
    bool splits_experts = false;      // the GPU, there is one, reads experts from the host's memory by itself
    std::size_t least_experts = kLeastExperts;
    bool lends_pages = false;  // experts have the memory of the cache's empty pages, until those are needed
};

struct FitPlan {
    std::int32_t n_ctx = 0;
    bool has_q8 = false;
    std::int32_t n_gpu_layers = 0;         // of layers and output; all: n_layers + 1
    std::int32_t n_expert_layers = 0;      // whose experts lie in the host's memory
    std::size_t expert_memory = 0;         // of the GPU, for the experts used most; 0: all experts lie as the plan says
    std::size_t expert_lendable = 0;       // of that, what the cache gets when it needs it; not counted in `cache`
    std::optional<std::size_t> gpu = {};   // of several, the one that holds all
    std::vector<std::int32_t> split = {};  // of several, how many of n_gpu_layers each has, in order
    std::size_t weights = 0;               // of the GPUs together
    std::size_t cache = 0;
    std::size_t compute = 0;
    std::size_t beside = 0;
    std::size_t host_weights = 0;
    std::size_t host_cache = 0;
    bool fits_host = true;

    std::size_t gpu_bytes() const { return weights + cache + compute + beside; }
};

// `is_wide`: with calls of many tokens, where they may be wide: each reads all experts that the host holds.
using ContextSizeOf = std::function<ContextSize(std::int32_t n_ctx, bool has_q8, bool is_wide)>;

// There is always one: with no layer on a GPU, if need be.
FitPlan fit_plan(const FitModel& model, const FitBudget& budget, const FitChoices& choices,
                 const ContextSizeOf& context_size);

}  // namespace luce::llama
