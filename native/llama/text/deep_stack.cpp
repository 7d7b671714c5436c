// run_nested: see the header.
#include "llama/text/deep_stack.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <string>

#include "llama/text/failure.h"

namespace luce::llama {

namespace {

// One bracket takes llama.cpp's parser about 2 KiB of stack; a Python thread has 8 MiB, of which some is used.
constexpr size_t kModerateDepth = 256;
constexpr size_t kMaxDepth = 32768;
constexpr size_t kBytesPerLevel = 32768;  // sanitizers multiply it
constexpr size_t kBaseBytes = size_t{16} << 20;

struct Task {
    const std::function<void()>& body;
    std::exception_ptr failure;
};

void* run(void* argument) {
    Task& task = *static_cast<Task*>(argument);
    try {
        task.body();
    } catch (...) {
        task.failure = std::current_exception();
    }
    return nullptr;
}

// Pages of the stack that are never touched cost nothing.
void run_on_own_stack(size_t n_bytes, Task& task) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    const bool has_size = pthread_attr_setstacksize(&attributes, n_bytes) == 0;
    const bool started = has_size && pthread_create(&thread, &attributes, run, &task) == 0;
    pthread_attr_destroy(&attributes);
    if (!started) {
        throw TextFailure(LUCE_TEXT_BAD_ANSWER, "the answer is nested too deeply for the memory at hand");
    }
    pthread_join(thread, nullptr);
}

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

void run_nested(size_t depth, const std::function<void()>& body) {
    if (depth <= kModerateDepth) {
        body();
        return;
    }
    if (depth > kMaxDepth) {
        throw TextFailure(LUCE_TEXT_BAD_ANSWER, "the answer is nested " + std::to_string(depth) + " levels deep");
    }
    Task task = {body, nullptr};
    run_on_own_stack(kBaseBytes + depth * kBytesPerLevel, task);
    if (task.failure) {
        std::rethrow_exception(task.failure);
    }
}

}  // namespace luce::llama
