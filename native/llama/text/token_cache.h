// TokenCache: the ids of texts that were tokenised lately. What stands between two special tokens is tokenised by
// itself, so its ids are the same in every prompt.
#pragma once

#include <cstddef>
#include <vector>

#include <llama.h>

#include "llama/text/text_cache.h"

namespace luce::llama {

inline size_t bytes_of_ids(const std::vector<llama_token>& ids) { return ids.size() * sizeof(llama_token); }

using TokenCache = TextCache<std::vector<llama_token>, bytes_of_ids>;

}  // namespace luce::llama
