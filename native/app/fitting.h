// Fitting: the model, loaded so that it fits the GPUs where nobody has said what lies where (llama/fit), and the plan
// alone, printed.
#pragma once

#include "base/result.h"
#include "daemon/commands/profile_fields.h"
#include "daemon/setup/options.h"
#include "llama/drafting/draft_sources.h"
#include "llama/model/backend.h"
#include "llama/model/model.h"

namespace luce::app {

struct FittedModel {
    llama::Model model;
    daemon::StatusFields plan;   // what was chosen, for the status; empty: nothing was
    llama::OpenedDraft draft{};  // where it had to be opened to size the pool; empty: it is still to be
};

// What was chosen stands in the options afterwards. A plan that fails is made once more, smaller. Errors: as
// load_model().
Result<FittedModel> load_fitting(daemon::Options& options, const llama::Backend& backend, int reply_fd);

// `--plan`: of this machine's GPUs, or of those of --plan-gpus. Returns the exit status.
int print_plan(const daemon::Options& options, const llama::Backend& backend, int reply_fd);

}  // namespace luce::app
