// How much memory the control groups of this process still let it take: a container's limit is often far below what the
// machine has. Reads files only, and believes none of them: what is no limit is left out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace luce::daemon {

struct CgroupMemory {
    std::uint64_t limit = 0;
    std::uint64_t available = 0;  // of it; what only keeps files in memory counts as free, since it makes way
    std::string file;             // that says so
};

// Of the group that the process is in and those around it, the one that leaves least. Version 2 (memory.max and
// memory.high) and version 1 (memory.limit_in_bytes and, which it is pushed back to where the machine runs short,
// memory.soft_limit_in_bytes). None: nothing limits it, or nothing can be read. `root`: in place
// of "/".
std::optional<CgroupMemory> cgroup_memory(const std::filesystem::path& root = "/");

}  // namespace luce::daemon
