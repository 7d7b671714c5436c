// OwnStack: see the header. The stack is a thread's, because only threads have one that debuggers, unwinders
// and sanitizers know; the caller waits, so nothing runs at the same time.
#include "llama/grammar/own_stack.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <new>

namespace luce::llama {
namespace {

struct Task {
    const std::function<void()>& body;
    std::exception_ptr failure;
};

void* run_task(void* argument) {
    Task& task = *static_cast<Task*>(argument);
    try {
        task.body();
    } catch (...) {
        task.failure = std::current_exception();
    }
    return nullptr;
}

}  // namespace

void OwnStack::reserve(std::size_t n_bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t n_needed = (n_bytes + page - 1) / page * page + page;
    if (n_needed <= n_mapped_bytes_) return;
    const std::size_t n_wanted = std::max(n_needed, 2 * n_mapped_bytes_);  // callers grow byte by byte
    release();
    void* const memory =
        mmap(nullptr, n_wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = memory;
    n_mapped_bytes_ = n_wanted;
    if (mprotect(memory_, page, PROT_NONE) != 0) throw std::bad_alloc();
}

void OwnStack::release() {
    if (memory_ != nullptr) munmap(memory_, n_mapped_bytes_);
    memory_ = nullptr;
    n_mapped_bytes_ = 0;
}

void OwnStack::run(std::size_t n_bytes, const std::function<void()>& body) {
    reserve(n_bytes);
    Task task = {body, nullptr};
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    const bool has_stack = pthread_attr_setstack(&attributes, memory_, n_mapped_bytes_) == 0;
    const bool started = has_stack && pthread_create(&thread, &attributes, run_task, &task) == 0;
    pthread_attr_destroy(&attributes);
    if (!started) throw std::bad_alloc();
    pthread_join(thread, nullptr);
    if (task.failure) std::rethrow_exception(task.failure);
}

void run_on_own_stack(std::size_t n_bytes, const std::function<void()>& body) { OwnStack().run(n_bytes, body); }

}  // namespace luce::llama
