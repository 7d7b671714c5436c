// WorkerPool: independent pieces of work done at once, on the caller's thread and a few others. These sleep between two
// calls, and never spin: ggml's own threads want the cores. Knows nothing of what is done.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace luce::llama {

class WorkerPool {
public:
    // The caller's counts as one of them; the others are started when a run first has work for them.
    explicit WorkerPool(std::size_t n_threads) : n_most_(n_threads > 0 ? n_threads - 1 : 0) {}
    ~WorkerPool();
    WorkerPool(const WorkerPool&) = delete;
    WorkerPool& operator=(const WorkerPool&) = delete;

    // Calls body(i) once for each i < n, and returns when all have returned. One thread only. REQUIRES: body throws
    // nothing, and calls for different i do not disturb each other.
    void run(std::size_t n, const std::function<void(std::size_t)>& body);

private:
    void start(std::size_t n_threads);
    void serve();
    void take_part(std::unique_lock<std::mutex>& lock);

    const std::size_t n_most_;
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::condition_variable done_;
    // Under the mutex:
    const std::function<void(std::size_t)>* body_ = nullptr;
    std::size_t n_ = 0;
    std::size_t next_ = 0;    // to be begun; n_: all are
    std::size_t n_left_ = 0;  // have not returned
    bool stops_ = false;
};

}  // namespace luce::llama
