// The rules of the preflight, one function for each part of a file. Each reads what libllama will read, refuses what
// it would not survive and notes facts on the way. They know keys and limits, and must not know files or shards.
#pragma once

#include <vector>

#include "llama/gguf_check/gguf_metadata.h"
#include "llama/gguf_check/gguf_preflight.h"

namespace luce::llama {

// Bounds of layers, widths, heads, experts, recurrent state: gguf_rules.cpp
void check_dimensions(GgufMetadata& gguf, GgufFacts& facts);

// tokenizer.*: gguf_vocab_rules.cpp
void check_vocabulary(GgufMetadata& gguf, GgufFacts& facts);

// Types and sizes of all shards' tensors against the metadata: gguf_tensor_rules.cpp
void check_tensors(GgufMetadata& gguf, const std::vector<TensorInfo>& tensors, const GgufFacts& facts);

}  // namespace luce::llama
