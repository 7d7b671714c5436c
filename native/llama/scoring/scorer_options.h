// ScorerOptions: which small model scores pages for a target, and how it is loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace luce::llama {

struct ScorerOptions {
    std::string path;
    std::string option = "--kv-offload-scorer";  // that names it, for messages
    std::int32_t n_call = 256;                   // tokens of a call
    std::int32_t n_lanes = 1;
    std::int32_t n_ctx = 0;  // tokens of the longest text
    std::int32_t n_threads = 1;
    std::optional<std::int32_t> n_gpu_layers;  // unset: as the target
    std::optional<std::string> cache_type;     // of keys and values; unset: see kv_cache_type.h
    std::optional<std::int32_t> layer;         // whose keys are compared; unset: see layer_choice.h
};

}  // namespace luce::llama
