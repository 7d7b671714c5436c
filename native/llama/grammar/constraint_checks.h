// Is this constraint safe for llama.cpp? Its grammar and reasoning-budget code aborts the process, recurses without a
// bound or leaks where it is handed what it does not expect; all of that is refused here, before it is built. Knows
// nothing of sampling.
#pragma once

#include <span>

#include "engine/request.h"
#include "llama/model/model.h"

struct common_params_sampling;

namespace luce::llama {

// All that the constraint's own values say: tokens in range, the grammar's and the triggers' limits, no end token where
// llama.cpp could not take it. Errors: token_out_of_range, bad_args, bad_grammar, out_of_memory, unsupported.
Result<void> check_constraint(const engine::ConstraintParams& constraint, const Model& model);

// Takes the generation prompt and the tokens that the request generated before it was resumed through a grammar of its
// own, asking before each end token whether there is a place for it: common_sampler_accept aborts where there is none.
// REQUIRES: check_constraint passed and `params` were made from the same request. Errors: bad_args, bad_grammar.
Result<void> rehearse_constraint(const common_params_sampling& params, std::span<const Token> resumed,
                                 const Model& model);

}  // namespace luce::llama
