// Running code that recurses as deep as its input is long, on a stack made for it. Knows nothing of what runs.
#pragma once

#include <cstddef>
#include <functional>

namespace luce::llama {

// Runs body on a stack of n_bytes and waits for it; pages of the stack that are never touched cost nothing. What body
// throws comes out here. Throws std::bad_alloc if there is no such stack to be had.
void run_on_own_stack(std::size_t n_bytes, const std::function<void()>& body);

}  // namespace luce::llama
