// run_on_own_stack: see the header. The stack is a thread's, because only threads have one that debuggers, unwinders
// and sanitizers know; the caller waits, so nothing runs at the same time.
#include "llama/own_stack.h"

#include <pthread.h>

#include <exception>
#include <new>

namespace luce::llama {
namespace {

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

}  // namespace

void run_on_own_stack(std::size_t n_bytes, const std::function<void()>& body) {
    Task task = {body, nullptr};
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    const bool has_size = pthread_attr_setstacksize(&attributes, n_bytes) == 0;
    const bool started = has_size && pthread_create(&thread, &attributes, run, &task) == 0;
    pthread_attr_destroy(&attributes);
    if (!started) throw std::bad_alloc();
    pthread_join(thread, nullptr);
    if (task.failure) std::rethrow_exception(task.failure);
}

}  // namespace luce::llama
