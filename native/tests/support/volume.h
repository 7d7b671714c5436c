// How much is run: the short form, or the volumes behind the figures (scripts/test --full).
#pragma once

#include <cstdlib>
#include <string_view>

namespace luce::tests {

inline bool is_full() {
    const char* value = std::getenv("LUCE_TESTS_FULL");
    return value != nullptr && std::string_view(value) == "1";
}

}  // namespace luce::tests
