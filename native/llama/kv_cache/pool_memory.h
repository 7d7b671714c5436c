// What the model, its draft and their contexts take of each device's memory, and what a larger pool would take: the
// measures by which memory/pool_size chooses. Knows buffers and tensors; must not know what is made of the figures.
#pragma once

#include <cstdint>
#include <vector>

#include "llama/drafting/draft_memory.h"
#include "llama/model/model.h"
#include "memory/residency/pool_size.h"

namespace luce::llama {

// Of each device that holds weights or rows, with the context and the draft that there are now; `draft` may be null.
// How much is to stay free, and what of the host's memory can be had, is left to the caller. REQUIRES: the model's
// memory can be cut into pages.
std::vector<memory::PoolDevice> pool_devices(const Model& model, std::int32_t n_lanes, DraftMemory* draft);

// Bytes of weights that decoding one token reads, the draft's too: of experts those that a token goes to, of the table
// of embeddings nothing unless it is the output's too. `draft` may be null.
std::uint64_t weights_read_a_token(const Model& model, DraftMemory* draft);

}  // namespace luce::llama
