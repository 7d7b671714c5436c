// How much of the host's memory luced takes for texts where nobody says it.
#pragma once

#include <cstddef>

namespace luce::daemon {

// What processes could still take; a guess where the system does not say.
std::size_t available_bytes();

// A quarter of that, at most 8 GiB.
std::size_t default_host_cache_bytes();

}  // namespace luce::daemon
