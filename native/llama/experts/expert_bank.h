// ExpertBank: the weights of a mixture's experts in split memory. Those in the first places of a tensor lie in the
// GPU's memory, the others in the host's, where the GPU reads what a call needs by itself: nothing waits for the host.
// A table on the device says in which place each expert lies; the graph reads it (cmake/patches/stored-experts.patch).
// Experts change places beside computations, by way of a free place. Where something else needs memory of the device
// the bank lends some: fewer experts lie there until it comes back.
//
// llama.cpp loads these tensors into its buffer type; it must outlive the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ggml-backend.h>

#include "base/result.h"
#include "experts/expert_layout.h"
#include "experts/expert_profile.h"
#include "experts/expert_usage.h"
#include "llama/experts/bank_layout.h"
#include "llama/experts/expert_table.h"
#include "llama/experts/split_memory.h"

namespace luce::llama {

// Names of the tensors that belong into a bank, as a regular expression.
inline constexpr const char* kBankedTensors = "\\.ffn_(up|down|gate|gate_up)_exps\\.weight$";

using NamedWeights = std::vector<std::pair<std::string, ggml_tensor*>>;

class ExpertBank {
public:
    // `device`: its memory holds the resident ones. `known`: what decides which those are.
    ExpertBank(ggml_backend_dev_t device, std::unique_ptr<SplitMemory> memory, ExpertBudget budget,
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

    // The fewest and the most experts that can be resident; the same where nothing can be lent.
    std::int64_t least_resident() const;
    std::int64_t most_resident() const;

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

    // Granules of the device's memory that could be lent now.
    std::size_t n_lendable() const;

    // Lends that many, until they are given back; nothing of theirs is mapped anywhere. Between two calls, nothing is
    // computed. Errors: out_of_memory (it has no more, or the driver refuses); nothing is lent then.
    Result<std::vector<SplitMemory::Block>> lend(std::size_t n_granules);
    void take_back(std::span<const SplitMemory::Block> blocks);

    ggml_backend_dev_t device() const;

    // In which they are. REQUIRES: is_split().
    const std::shared_ptr<SplitMemory>& memory() const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace luce::llama
