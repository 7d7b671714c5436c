// check_draft_fits: what must hold between a draft and its target, asked before llama.cpp asserts it or reads beyond an
// end. Knows the graphs of llama.cpp's drafts as of the pinned build.
#pragma once

#include <cstdint>
#include <span>

#include <llama.h>

#include "base/result.h"
#include "llama/drafting/draft_context.h"

namespace luce::llama {

// `draft` is the target's model itself where that has the heads. Errors: start_failed; the text says why it does not
// fit.
Result<void> check_draft_fits(DraftKind kind, const llama_model* draft, const llama_model* target);

// What stands behind a DFlash drafter's block. markov (DSpark): a place's logits depend on the token before it.
// selector (DFlash2): it says which of each place's likeliest tokens go together.
enum class DflashHead { none, markov, selector };
DflashHead dflash_head(const llama_model* draft);

// How many tokens a DFlash drafter computes at once, the one before the drafted ones included; 0: the file says
// nonsense.
std::int32_t dflash_block_size(const llama_model* draft);

// Which of them is the first drafted one: the one after the text's last token, or (DSpark) what stands in its place.
std::int32_t dflash_first_place(const llama_model* draft);

// Whether a token of a block sees only those before it; else all of its block.
bool dflash_is_causal(const llama_model* draft);

// What stands in a block for a token that is to be drafted; LLAMA_TOKEN_NULL: the file names none.
llama_token dflash_mask_token(const llama_model* draft);

// The target's graph hands out the inputs of these layers (its number of layers: the output of the last one), and, if
// `wants_hidden`, each token's last hidden state. REQUIRES: nothing of it has been switched on yet. Errors:
// start_failed.
Result<void> check_target_gives(llama_context* target, std::span<const std::int32_t> layers, bool wants_hidden);

}  // namespace luce::llama
