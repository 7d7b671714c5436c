// How `--kvflash` becomes the memory's configuration, and what `status` says of it. Knows options and the device's
// traits; the model itself only by its numbers.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "daemon/dispatcher.h"
#include "daemon/options.h"
#include "memory/kv_device.h"
#include "memory/text_memory.h"

namespace luce::daemon {

// How lanes share a pool that need not hold their texts, of at most n_ctx tokens; nothing changes without `--kvflash`.
// Errors: start_failed (not this model), bad_args (the host has no room for what the pool does not hold).
Result<void> bound_residency(const Options& options, std::int32_t n_ctx, const memory::DeviceTraits& traits,
                             memory::MemoryConfig& config);

// Nothing where residency is not bounded.
StatusFields describe_residency(const memory::MemoryStatus& status);

}  // namespace luce::daemon
