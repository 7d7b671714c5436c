// Running code that recurses as deep as its input is long, on a stack made for it. Knows nothing of what runs.
#pragma once

#include <cstddef>
#include <functional>

namespace luce::llama {

// A stack that is kept from run to run: giving the pages of a deep one back each time costs more than the recursion.
class OwnStack {
public:
    OwnStack() = default;
    OwnStack(const OwnStack&) = delete;
    OwnStack& operator=(const OwnStack&) = delete;
    ~OwnStack() { release(); }

    // Runs body with at least n_bytes and waits for it; pages that are never touched cost nothing. What body throws
    // comes out here. Throws std::bad_alloc if there is no such stack to be had.
    void run(std::size_t n_bytes, const std::function<void()>& body);

private:
    void reserve(std::size_t n_bytes);
    void release();

    void* memory_ = nullptr;  // the lowest page is the guard
    std::size_t n_mapped_bytes_ = 0;
};

// The same with a stack for this once.
void run_on_own_stack(std::size_t n_bytes, const std::function<void()>& body);

}  // namespace luce::llama
