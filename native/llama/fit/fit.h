// Fit: before a model is loaded, chooses where its parts lie so that they fit this machine's GPUs, or those of a card
// that is only thought of. Reads a file's header and asks libllama what a context takes, without taking memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "llama/fit/expert_rates.h"
#include "llama/fit/fit_plan.h"
#include "llama/model/model.h"

namespace luce::llama {

struct FitOptions {
    std::optional<std::size_t> gpu_bytes;          // of each GPU that may be used, at most
    std::size_t reserve_bytes = 0;                 // of each GPU, that stays free
    std::vector<std::string> beside;               // files of other models that the GPU will hold
    std::optional<std::vector<std::size_t>> gpus;  // a machine that is only thought of: its GPUs' free bytes
    std::optional<std::size_t> host_bytes;         // and the host's
    std::size_t least_experts = kLeastExperts;     // bytes
    bool may_split_experts = true;
    bool may_lend_pages = true;  // to experts
    // Of this machine, where a mixture does not fit.
    std::function<decltype(measure_expert_rates)> measure_experts = measure_expert_rates;
};

struct Fitted {
    FitModel model;
    FitBudget budget;
    FitPlan plan;
    std::string cache_type_k;
    std::string cache_type_v;
    std::int32_t n_ctx_wanted = 0;
    std::string device;  // of several GPUs the one that holds all; empty: there is one, or all are used
    std::string reason;  // why experts do not lie as they usually would; empty: they do

    // In words, one line.
    std::string text() const;
    std::size_t gpu_bytes() const;  // free ones, of all GPUs together
    bool is_whole() const { return plan.n_gpu_layers > static_cast<std::int32_t>(model.layers.size()); }
};

// Whether there is anything to choose: nobody has said where weights lie.
bool leaves_placement(const ModelOptions& options);

// Errors: as Model::load.
Result<Fitted> fit(const ModelOptions& options, const FitOptions& wanted);

}  // namespace luce::llama
