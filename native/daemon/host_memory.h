// How much of the host's memory luced takes for texts where nobody says it.
#pragma once

#include <cstddef>

namespace luce::daemon {

// A quarter of what the system says is available, at most 8 GiB; 1 GiB where it says nothing.
std::size_t default_host_cache_bytes();

}  // namespace luce::daemon
