// Which conversation a request belongs to, told by the pages of its prompt that are known: it goes on where that one
// has ended, or leaves its path, or is a new one.
#pragma once

#include <span>

#include "memory/eviction/eviction_policy.h"
#include "memory/pages/prefix_tree.h"

namespace luce::memory {

// `known`: the prompt's known pages from the first on, evicted entries included. n_pages: that the prompt has.
ConversationRef arrive(EvictionPolicy& policy, std::span<Page* const> known, std::size_t n_pages);

}  // namespace luce::memory
