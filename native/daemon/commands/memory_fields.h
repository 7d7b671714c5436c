// What `status` says of memory: pool, host, disk, and what bounded residency moves. Knows no engine and no model.
#pragma once

#include <cstddef>

#include "daemon/commands/dispatcher.h"
#include "memory/manager/kv_cache_manager.h"

namespace luce::memory {
class DiskStore;
}

namespace luce::daemon {

// Of a model that scores pages beside the target.
struct ScorerBytes {
    std::size_t keys = 0;   // of what pages are scored by
    std::size_t model = 0;  // weights and cells
};

// `disk` may be null.
StatusFields describe_memory(const memory::MemoryStatus& status, const memory::DiskStore* disk, ScorerBytes scorer);

}  // namespace luce::daemon
