// Programs that measure have nobody to report to: what fails ends them.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <utility>

#include "base/result.h"

namespace luce::bench {

[[noreturn]] inline void fail(const std::string& text) {
    std::fprintf(stderr, "%s\n", text.c_str());
    std::exit(1);
}

template <typename T>
T need(Result<T> result) {
    if (!result) fail(result.error().text);
    if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

}  // namespace luce::bench
