// ContextSizes: what options and model make of a context, before there is one: cells, lanes, number formats, states.
// Makes no context and takes no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <llama.h>

#include "base/result.h"
#include "llama/model/kv_layer_types.h"
#include "llama/model/model.h"

namespace luce::llama {

struct ContextSizes {
    llama_context_params params{};  // complete
    KvLayerTypes types;             // to be set before a context is made
    std::int32_t n_ctx = 0;
    std::int32_t n_ctx_train = 0;
    std::int32_t n_pool = 0;
    std::int32_t n_logits = 0;                // rows of a call that tokens are chosen from; prompts' are more
    std::int32_t n_tree = 0;                  // drafted tokens of a lane's tree
    std::optional<std::string> tree_refusal;  // why there are none
    std::size_t state_bytes = 0;              // of one recurrent state
};

// The kinds of model that this engine has no use for are refused, each by its name. Errors: start_failed.
Result<void> check_is_decoder(const llama_model* model);

// Errors: bad_args, where the model takes no such number format.
Result<ContextSizes> context_sizes(const llama_model* model, const ModelOptions& options, bool uses_gpu);

// Of one position in the attention cache, at the least: layers whose rows are not those of all positions, or another
// layer's, are left out.
std::size_t least_row_bytes(const llama_model* model, const KvLayerTypes& types);

// Says where drafts are longer than the states that a lane can go back to.
void warn_of_few_states(const ContextSizes& sizes, const ModelOptions& options);

}  // namespace luce::llama
