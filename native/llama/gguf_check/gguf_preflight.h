// preflight_gguf: refuses a GGUF file with a line that names the key and its value, where libllama would run out of
// memory, read beyond an end, or abort in a process that has no LoadGuard (vocabularies, which the HTTP side loads).
// What else libllama does not survive LoadGuard makes a line of. Must not load weights or know what the model is for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace luce::llama {

// What a file's metadata says, for those who must know before or without loading it.
struct GgufFacts {
    std::string architecture;
    uint32_t n_layers = 0;
    uint32_t n_vocab = 0;            // 0 where the file leaves it to another model (drafters)
    bool has_longrope = false;       // rope factors chosen by context size
    std::vector<std::string> files;  // all shards, the first first
};

// `needs_tensors` is false for files that hold a vocabulary only. Errors: start_failed.
Result<GgufFacts> preflight_gguf(const std::string& path, bool needs_tensors = true);

}  // namespace luce::llama
