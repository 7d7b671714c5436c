#include "daemon/setup/host_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace luce::daemon {
namespace {

std::uint64_t system_available_bytes(const std::filesystem::path& root) {
    constexpr std::uint64_t kUnknown = std::uint64_t{4} << 30;
    std::ifstream meminfo(root / "proc/meminfo");
    std::string key;
    std::string unit;
    std::uint64_t n_kib = 0;
    while (meminfo >> key >> n_kib) {
        std::getline(meminfo, unit);
        if (key == "MemAvailable:") return n_kib * 1024;
    }
    return kUnknown;
}

}  // namespace

HostMemory host_memory(const std::filesystem::path& root) {
    HostMemory memory{system_available_bytes(root), cgroup_memory(root)};
    if (memory.limit && memory.limit->available >= memory.available) memory.limit.reset();
    if (memory.limit) memory.available = memory.limit->available;
    return memory;
}

std::size_t default_host_cache_bytes() {
    constexpr std::size_t kMost = std::size_t{8} << 30;
    return std::min(kMost, available_bytes() / 4);
}

}  // namespace luce::daemon
