// ExpertBank: the weights of a mixture's experts in split memory. Those in the first places of a tensor lie in the
// GPU's memory, the others in the host's, where the GPU reads what a call needs by itself: nothing waits for the host.
// A table on the device says in which place each expert lies; the graph reads it (cmake/patches/stored-experts.patch).
// Experts change places beside computations, by way of a free place.
//
// llama.cpp loads these tensors into its buffer type; it must outlive the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ggml-backend.h>

#include "base/result.h"
#include "experts/expert_layout.h"
#include "experts/expert_profile.h"
#include "experts/expert_usage.h"
#include "llama/experts/expert_table.h"
#include "llama/experts/split_memory.h"

namespace luce::llama {

// Names of the tensors that belong into a bank, as a regular expression.
inline constexpr const char* kBankedTensors = "\\.ffn_(up|down|gate|gate_up)_exps\\.weight$";

using NamedWeights = std::vector<std::pair<std::string, ggml_tensor*>>;

class ExpertBank {
public:
    // `device`: its memory holds the resident ones, `budget` bytes of it at most. `known`: what decides which those
    // are.
    ExpertBank(ggml_backend_dev_t device, std::unique_ptr<SplitMemory> memory, std::size_t budget,
               experts::ExpertProfile known);

    // One that holds nothing, for weights that lie elsewhere: what is used of them is counted, on `device`.
    ExpertBank(ggml_backend_dev_t device, experts::ExpertProfile known);
    ~ExpertBank();
    ExpertBank(const ExpertBank&) = delete;
    ExpertBank& operator=(const ExpertBank&) = delete;

    // Whether experts lie in two memories.
    bool is_split() const;

    // REQUIRES: is_split(). For llama_model_params::tensor_buft_overrides. Its memory is mapped while the model is
    // loaded.
    ggml_backend_buffer_type_t buffer_type() const;

    // Why that failed, if it did.
    const std::optional<std::string>& failure() const;

    // After loading, before a context is made: graphs look experts up in the table from here on. `weights`: the
    // model's tensors by name. As ExpertTable::make().
    Result<void> open(const NamedWeights& weights, std::int32_t n_tokens, std::int32_t n_used);

    // Of each context on the model, before it computes: calls that read nearly all experts have the host's copied
    // ahead, and find them nowhere else.
    void attach(ggml_backend_sched_t scheduler);

    // What it began with.
    const experts::ExpertProfile& known() const;

    // Of what was loaded.
    const experts::ExpertLayout& layout() const;

    // Null: all experts are resident, or none was loaded.
    ExpertTable* table();

    // An expert of the host's begins to come into its layer's free place, and another one is to leave for its place.
    // REQUIRES: nothing is under way in that layer; the exchange is one of ExpertUsage's.
    void start(const experts::Exchange& exchange);
    bool is_moving(std::size_t layer) const;

    // What was done of exchanges.
    struct Settled {
        std::size_t n_exchanges = 0;  // completed
        std::size_t n_bytes = 0;      // copied, one way or the other
    };

    // Between two calls, nothing is computed: takes all exchanges one of their two steps further, waiting for what is
    // being copied.
    Settled settle();

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace luce::llama
