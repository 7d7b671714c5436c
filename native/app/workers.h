// Workers: devices of other machines, as the options name them, and this machine's for others.
#pragma once

#include "daemon/setup/options.h"

namespace luce::app {

// Those that --rpc names. Returns 0, or the status to end with; who reads `reply_fd` has been told why then.
int find_workers(const daemon::Options& options, int reply_fd);

// REQUIRES: options.rpc_worker. Lends this machine's devices until the process ends. Returns the status of a failure.
int lend(const daemon::Options& options, int reply_fd);

}  // namespace luce::app
