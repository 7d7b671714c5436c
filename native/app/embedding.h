// luced --embedding: a daemon that gives vectors, from its options to its end. Knows the options and the parts; not how
// a vector is computed.
#pragma once

#include "daemon/setup/options.h"
#include "llama/model/backend.h"

namespace luce::app {

// The exit status.
int serve_embeddings(const daemon::Options& options, const llama::Backend& backend, int reply_fd);

}  // namespace luce::app
