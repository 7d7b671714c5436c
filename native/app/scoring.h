// Who says which pages of a text that outgrows the pool matter. Knows options and llama/.
#pragma once

#include "base/result.h"
#include "daemon/setup/options.h"
#include "llama/model/model.h"
#include "llama/scoring/page_scoring.h"

namespace luce::app {

// Null: the newest pages stay.
Result<llama::PageScoring> open_scoring(const daemon::Options& options, const llama::Model& model, int reply_fd);

}  // namespace luce::app
