// DraftModelOptions: which draft model to load beside a target, and how.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace luce::llama {

struct DraftModelOptions {
    std::string path;
    bool wants_heads = false;  // the file must hold multi-token heads or an assistant
    std::int32_t n_lanes = 1;
    std::int32_t n_most = 0;                   // tokens that a lane is drafted at once
    std::int32_t n_tree = 0;                   // the same in all branches of a tree; 0: chains only
    std::optional<std::int32_t> n_threads;     // unset: the target's
    std::optional<std::int32_t> n_gpu_layers;  // unset: as the target
    std::optional<std::string> cache_type_k;   // unset: see kv_cache_type.h
    std::optional<std::string> cache_type_v;
};

}  // namespace luce::llama
