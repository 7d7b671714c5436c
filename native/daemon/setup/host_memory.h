// How much of the host's memory luced takes for texts where nobody says it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "daemon/setup/cgroup_memory.h"

namespace luce::daemon {

struct HostMemory {
    std::uint64_t available = 0;        // what processes could still take; a guess where the system does not say
    std::optional<CgroupMemory> limit;  // where a control group leaves less than the system has
};

// `root`: in place of "/".
HostMemory host_memory(const std::filesystem::path& root = "/");

inline std::size_t available_bytes() { return host_memory().available; }

// A quarter of that, at most 8 GiB.
std::size_t default_host_cache_bytes();

}  // namespace luce::daemon
