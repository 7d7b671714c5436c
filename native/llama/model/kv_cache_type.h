// Which type the attention cache's rows have by default and which may be asked for.
//
// On CPUs q8_0: half the bytes of f16, and llama.cpp's CPU flash attention accumulates f16 values in f16, so that the
// order of cells shows in the logits (up to 0.19 measured; q8_0 and bf16: 8e-6). Where the head size is no multiple of
// q8_0's block, bf16. On GPUs f16, which their kernels are made for.
#pragma once

#include <string>

#include <ggml.h>

#include "base/result.h"

struct llama_model;

namespace luce::llama {

struct KvCacheTypes {
    ggml_type k = GGML_TYPE_F16;
    ggml_type v = GGML_TYPE_F16;
};

KvCacheTypes default_kv_cache_types(const llama_model* model, bool on_gpu);

// Errors: bad_args, naming the types that exist or the head size that a type's block does not divide. `option`: which
// one's types they are, less its last letter.
Result<ggml_type> parse_kv_cache_type(const std::string& name);
Result<void> check_kv_cache_types(const llama_model* model, KvCacheTypes types, bool flash_attention_off,
                                  const std::string& option = "--cache-type-");

}  // namespace luce::llama
