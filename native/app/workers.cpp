#include "app/workers.h"

#include <signal.h>

#include <algorithm>
#include <thread>

#include "app/ending.h"
#include "llama/model/rpc_workers.h"

namespace luce::app {

int find_workers(const daemon::Options& options, int reply_fd) {
    if (!options.rpc_workers) return 0;
    const Result<void> found =
        llama::add_rpc_workers(*options.rpc_workers, {.reply_fd = reply_fd, .exit_status = kTryLater});
    if (found) return 0;
    const bool is_their_fault = found.error().code == ErrorCode::io_error;
    return is_their_fault ? refuse_to_start(reply_fd, found.error(), kTryLater)
                          : refuse_to_start(reply_fd, found.error());
}

int lend(const daemon::Options& options, int reply_fd) {
    const auto n_cores = static_cast<std::int32_t>(std::max(std::thread::hardware_concurrency() / 2, 1U));
    llama::RpcWorkerOptions worker{*options.rpc_worker, options.devices, options.rpc_tensor_cache,
                                   options.n_threads.value_or(n_cores)};
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);  // no loop of ours reads signals: they end it
    return refuse_to_start(reply_fd, llama::lend_devices(worker));
}

}  // namespace luce::app
