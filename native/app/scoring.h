// Who says which pages of a text that outgrows the pool matter, and which parts of a prompt. Knows options and llama/.
#pragma once

#include <memory>

#include "base/result.h"
#include "daemon/commands/dispatcher.h"
#include "daemon/setup/options.h"
#include "llama/model/model.h"
#include "llama/scoring/page_scoring.h"
#include "llama/scoring/prompt_scorer.h"

namespace luce::app {

// Null: the newest pages stay.
Result<llama::PageScoring> open_scoring(const daemon::Options& options, const llama::Model& model, int reply_fd);

// Who says which parts of a prompt matter (--prefill-scorer); a file may be named later. The model and the options must
// outlive it. Errors: start_failed, bad_args, unsupported.
Result<std::unique_ptr<llama::PromptScorer>> open_prompt_scorer(const daemon::Options& options,
                                                                const llama::Model& model, int reply_fd);

// Adds to a status line what it takes.
void describe(const llama::PromptScorer& scorer, daemon::StatusFields& fields);

}  // namespace luce::app
