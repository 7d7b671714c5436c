// run_nested: see the header.
#include "llama/text/deep_stack.h"

#include <algorithm>
#include <new>

#include "llama/grammar/own_stack.h"

namespace luce::llama {

namespace {

// One bracket takes llama.cpp's parser about 2 KiB of stack; a Python thread has 8 MiB, of which some is used.
constexpr size_t kModerateDepth = 256;
constexpr size_t kMaxDepth = 32768;
constexpr size_t kBytesPerLevel = 32768;  // sanitizers multiply it
constexpr size_t kBaseBytes = size_t{16} << 20;

}  // namespace

size_t bracket_depth(std::string_view text) {
    size_t depth = 0;
    size_t deepest = 0;
    for (const char c : text) {
        if (c == '[' || c == '{') {
            deepest = std::max(deepest, ++depth);
        } else if ((c == ']' || c == '}') && depth > 0) {
            --depth;
        }
    }
    return deepest;
}

bool run_nested(size_t depth, const std::function<void()>& body) {
    if (depth <= kModerateDepth) {
        body();
        return true;
    }
    if (depth > kMaxDepth) {
        return false;
    }
    bool has_started = false;
    try {
        run_on_own_stack(kBaseBytes + depth * kBytesPerLevel, [&] {
            has_started = true;
            body();
        });
    } catch (const std::bad_alloc&) {
        if (has_started) {
            throw;
        }
    }
    return has_started;
}

}  // namespace luce::llama
