#include "daemon/host_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace luce::daemon {

std::size_t available_bytes() {
    constexpr std::size_t kUnknown = std::size_t{4} << 30;
    std::ifstream meminfo("/proc/meminfo");
    std::string key;
    std::string unit;
    std::size_t n_kib = 0;
    while (meminfo >> key >> n_kib) {
        std::getline(meminfo, unit);
        if (key == "MemAvailable:") return n_kib * 1024;
    }
    return kUnknown;
}

std::size_t default_host_cache_bytes() {
    constexpr std::size_t kMost = std::size_t{8} << 30;
    return std::min(kMost, available_bytes() / 4);
}

}  // namespace luce::daemon
