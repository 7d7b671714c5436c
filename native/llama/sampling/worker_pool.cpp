// WorkerPool: see the header. The lock is held only to deal out pieces, which are long beside it.
#include "llama/sampling/worker_pool.h"

#include <algorithm>
#include <system_error>

namespace luce::llama {

WorkerPool::~WorkerPool() {
    {
        const std::lock_guard lock(mutex_);
        stops_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::run(std::size_t n, const std::function<void(std::size_t)>& body) {
    if (n == 0) return;
    const std::size_t n_helpers = std::min(n - 1, n_most_);
    start(n_helpers);
    std::unique_lock lock(mutex_);
    body_ = &body;
    n_ = n_left_ = n;
    next_ = 0;
    for (std::size_t i = 0; i < n_helpers; ++i) wake_.notify_one();
    take_part(lock);
    done_.wait(lock, [this] { return n_left_ == 0; });
}

// Fewer if the process may have no more.
void WorkerPool::start(std::size_t n_threads) {
    try {
        while (threads_.size() < n_threads) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {
        return;
    }
}

void WorkerPool::serve() {
    std::unique_lock lock(mutex_);
    while (true) {
        wake_.wait(lock, [this] { return stops_ || next_ < n_; });
        if (stops_) return;
        take_part(lock);
    }
}

void WorkerPool::take_part(std::unique_lock<std::mutex>& lock) {
    while (next_ < n_) {
        const std::size_t i = next_++;
        const auto& body = *body_;
        lock.unlock();
        body(i);
        lock.lock();
        if (--n_left_ == 0) done_.notify_one();
    }
}

}  // namespace luce::llama
