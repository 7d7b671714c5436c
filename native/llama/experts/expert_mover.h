// ExpertMover: watches which experts calls use and lets those change places that are used more than ones on the device:
// a few beside each call, more when nothing is computed. Keeps the profile's file up to date.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "experts/expert_usage.h"
#include "llama/experts/expert_bank.h"
#include "llama/model/model.h"

namespace luce::llama {

struct ExpertMoverOptions {
    std::optional<std::string> profile;  // where counts are kept
    bool moves = true;
};

// Since the start.
struct ExpertCounts {
    engine::ExpertReads reads;  // of calls that wrote answers
    std::uint64_t n_exchanges = 0;
    std::uint64_t n_moved_bytes = 0;
    double waited_s = 0;  // by calls, for exchanges that were still being copied
};

class ExpertMover {
public:
    // REQUIRES: the model has a bank. It must outlive the mover; another one with a bank may take its place.
    ExpertMover(const Model& model, ExpertMoverOptions options);

    // A call of so many tokens has been computed, and nothing is running. `outputs`: those whose logits were wanted.
    void after_call(std::int32_t n_tokens, std::span<const std::int32_t> outputs);

    // Whether a token may read an expert that the device lacks.
    bool is_split() const { return model_.experts() != nullptr && bank().is_split(); }

    // Whether it is to be told of each call: all is counted. Else of those whose logits are wanted, since it waits.
    bool counts_all() const { return model_.experts() != nullptr && !bank().is_split(); }

    // What tokens of the last call that after_call() was told of have read; nothing if it read a prompt.
    engine::ExpertReads reads(std::size_t first_token, std::size_t n_tokens) const;

    // Nothing is computed: whether there is anything to move or to write, and about a millisecond of it.
    bool has_idle_work() const;
    void use_idle_time();

    // The profile as it is now, where one is kept and anything was learnt.
    void save();

    const ExpertCounts& counts() const { return counts_; }

private:
    ExpertBank& bank() const { return *model_.experts(); }
    void count(std::int32_t n_tokens, std::span<const std::int32_t> outputs);
    std::size_t start(std::size_t n_most);
    void settle();

    const Model& model_;
    ExpertMoverOptions options_;
    experts::ExpertUsage usage_;
    ExpertCounts counts_;
    std::vector<engine::ExpertReads> reads_;  // of each token of the last call
    std::uint64_t n_unsaved_ = 0;             // calls that the file does not know
    bool may_gain_ = false;                   // by moving: something was counted since nothing was found
};

}  // namespace luce::llama
