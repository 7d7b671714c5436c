// How `--kv-offload` becomes the memory's configuration. Knows options and the device's
// traits; the model itself only by its numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "daemon/setup/options.h"
#include "memory/manager/kv_cache_manager.h"
#include "memory/manager/kv_device.h"
#include "memory/residency/pool_size.h"

namespace luce::daemon {

// What `--kv-offload auto` makes of the devices as they are with the smallest pool in place, for texts of at most n_ctx
// tokens; the sum goes to the log. `n_least`: tokens of that pool. Returns tokens of the pool. Errors: start_failed
// (even the smallest does not fit), bad_args (the host has no room for what the pool does not hold).
Result<std::int32_t> size_pool(const Options& options, std::int32_t n_ctx, std::int32_t n_least,
                               std::vector<memory::PoolDevice> devices, std::uint64_t weights_a_token);

// Tokens of the smallest pool that works on this device; unset: without `--kv-offload` it stays as it is.
std::optional<std::int32_t> least_pool(const Options& options, const memory::DeviceTraits& traits);

// How lanes share a pool that need not hold their texts, of at most n_ctx tokens; nothing changes without
// `--kv-offload`. Errors: start_failed (not this model), bad_args (the pool is smaller than the least, the host has no
// room for what the pool does not hold).
Result<void> bound_residency(const Options& options, std::int32_t n_ctx, const memory::DeviceTraits& traits,
                             memory::MemoryConfig& config);

}  // namespace luce::daemon
