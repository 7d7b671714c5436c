// preflight_gguf: refuses a GGUF file that libllama would abort, hang or run out of memory on, with a line that names
// the key and its value, before libllama sees it. A file that passes may still be refused by libllama (in order), and
// LoadGuard is the net for what no rule foresees. Must not load weights or know what the model is for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace luce::llama {

// What a file's metadata says, for those who must know before or without loading it.
struct GgufFacts {
    std::string architecture;
    std::string name;
    std::string tokenizer_model;  // "no_vocab": ids only
    uint32_t n_layers = 0;
    uint32_t n_embd = 0;
    uint32_t n_ctx_train = 0;
    uint32_t n_vocab = 0;  // 0 where the file leaves it to another model (drafters)
    uint32_t n_experts = 0;
    std::vector<uint32_t> head_sizes_k;  // the different sizes, ascending; empty without attention
    std::vector<uint32_t> head_sizes_v;
    bool is_recurrent = false;  // architecture without attention
    bool is_hybrid = false;     // some layers recurrent
    bool has_sliding_window = false;
    bool has_longrope = false;       // rope factors chosen by context size
    uint64_t n_tensor_bytes = 0;     // of all shards
    std::vector<std::string> files;  // all shards, the first first
};

// `needs_tensors` is false for files that hold a vocabulary only. Errors: start_failed.
Result<GgufFacts> preflight_gguf(const std::string& path, bool needs_tensors = true);

}  // namespace luce::llama
