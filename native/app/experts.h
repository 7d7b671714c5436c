// Experts: of a mixture whose experts lie in a bank, what lets them move, and what the status says of it.
#pragma once

#include <memory>

#include "daemon/commands/profile_fields.h"
#include "daemon/setup/options.h"
#include "llama/experts/expert_mover.h"
#include "llama/model/model.h"

namespace luce::app {

// Null: the model has no bank. The model must outlive it.
std::unique_ptr<llama::ExpertMover> open_experts(const daemon::Options& options, const llama::Model& model);

// REQUIRES: the model has a bank.
void describe(const llama::Model& model, const llama::ExpertMover& mover, daemon::StatusFields& fields);

}  // namespace luce::app
