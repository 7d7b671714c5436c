// How much is drafted, as the options have it. Knows no model.
#pragma once

#include <cstdint>

#include "daemon/setup/options.h"

namespace luce::daemon {

// Drafted tokens a lane and step; 0: never.
std::int32_t n_draft_most(const Options& options);

// The same of what n-grams copy, which costs no memory for states; `has_recurrent`: of the model.
std::int32_t n_copy_most(const Options& options, bool has_recurrent);

// The same in all branches of a tree; 0: chains.
std::int32_t n_draft_tree(const Options& options);

}  // namespace luce::daemon
