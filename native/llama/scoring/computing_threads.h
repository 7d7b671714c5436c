// ComputingThreads: the threads that ggml computes with on the CPU, for work of our own between two computations. They
// are there and still waiting for the next one, while others would have to be started, and would share the cores with
// those that wait. Called from the thread that computes: the threads are that one's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <ggml-cpp.h>

namespace luce::llama {

class ComputingThreads {
public:
    // As many as the computations have. Without a CPU backend the caller works alone.
    explicit ComputingThreads(std::int32_t n_threads);

    // Each of them calls it once, with its number, below the number given; returns when all have done so.
    void run(const std::function<void(std::size_t)>& work);

private:
    ggml_backend_ptr backend_;
};

}  // namespace luce::llama
