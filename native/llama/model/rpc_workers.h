// RpcWorkers: devices of other machines, as devices of this process, by ggml's RPC; and the worker that lends them.
// Knows addresses; must not know models. A connection that breaks later ends the process (Backend::on_abort): ggml has
// no other way.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "llama/model/load_guard.h"

namespace luce::llama {

struct RpcWorkerOptions {
    std::string endpoint;                // HOST:PORT to listen at
    std::optional<std::string> devices;  // their names, by commas; unset: all GPUs, or the CPU where there is none
    std::optional<std::string> tensor_cache{};  // a folder: large tensors are kept there, and not sent again
    std::int32_t n_threads = 1;
};

// `endpoints`: HOST:PORT by commas. Errors: bad_args (no such form, or a build without RPC), io_error (which one cannot
// be reached, and why: it may be there later). One that is reached and then says nothing, or no such thing as a worker
// says, ends the process as `guard` has it: ggml has no other way.
Result<void> add_rpc_workers(const std::string& endpoints, LoadGuardOptions guard);

// Lends this machine's devices to one program after the other, until the process ends. It returns only with an error:
// bad_args, start_failed.
Error lend_devices(const RpcWorkerOptions& options);

}  // namespace luce::llama
