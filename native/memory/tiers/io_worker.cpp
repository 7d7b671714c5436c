#include "memory/tiers/io_worker.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/step_profile.h"

namespace luce::memory {
namespace {

// Signals are the business of the thread that started us: the new one inherits a mask that blocks them all.
class AllSignalsBlocked {
public:
    AllSignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before_);
    }
    AllSignalsBlocked(const AllSignalsBlocked&) = delete;
    AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;
    ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
    sigset_t before_{};
};

// A job that throws is a mistake or a lack of memory; it must not take the process with it.
template <typename F>
auto contained(const F& f, const char* what) -> decltype(f()) {
    try {
        return f();
    } catch (const std::exception& e) {
        log_error(std::string("disk: a ") + what + " failed: " + e.what());
    } catch (...) {
        log_error(std::string("disk: a ") + what + " failed");
    }
    return decltype(f())();
}

}  // namespace

IoWorker::IoWorker(std::size_t max_queued_bytes, UniqueFd event)
    : max_queued_bytes_(max_queued_bytes), event_(std::move(event)) {}

Result<std::unique_ptr<IoWorker>> IoWorker::start(std::size_t max_queued_bytes) {
    UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event.is_open()) {
        return Error{ErrorCode::out_of_memory, std::string("cannot create an eventfd: ") + std::strerror(errno)};
    }
    std::unique_ptr<IoWorker> worker(new IoWorker(max_queued_bytes, std::move(event)));
    const AllSignalsBlocked blocked;
    try {
        worker->thread_ = std::thread([self = worker.get()] { self->run(); });
    } catch (const std::system_error& e) {
        return Error{ErrorCode::out_of_memory, std::string("cannot start the disk's thread: ") + e.what()};
    }
    return worker;
}

IoWorker::~IoWorker() {
    std::deque<Queued> dropped;  // destroyed without the lock: a job may hold the last reference to anything
    std::deque<Queued> dropped_urgent;
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        dropped.swap(queued_);
        dropped_urgent.swap(urgent_);
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
}

bool IoWorker::has_room(std::size_t n_bytes) const {
    const std::lock_guard lock(mutex_);
    return n_bytes == 0 || n_bytes_ == 0 || (n_bytes <= max_queued_bytes_ && n_bytes_ <= max_queued_bytes_ - n_bytes);
}

bool IoWorker::post(Job job, std::size_t n_bytes) {
    if (!has_room(n_bytes)) return false;
    {
        const std::lock_guard lock(mutex_);
        queued_.push_back({std::move(job), n_bytes});
        n_bytes_ += n_bytes;
    }
    wake_.notify_one();
    return true;
}

void IoWorker::post_urgent(Job job) {
    {
        const std::lock_guard lock(mutex_);
        urgent_.push_back({std::move(job), 0});
    }
    wake_.notify_one();
}

void IoWorker::complete(Completion completion) {
    const std::lock_guard lock(mutex_);
    add_completion(std::move(completion));
}

void IoWorker::add_completion(Completion completion) {
    if (!completion) return;
    completions_.push_back(std::move(completion));
    const std::uint64_t one = 1;
    while (::write(event_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
}

void IoWorker::run_completions() {
    std::vector<Completion> ready;
    {
        const std::lock_guard lock(mutex_);
        std::uint64_t count = 0;
        while (::read(event_.get(), &count, sizeof count) < 0 && errno == EINTR) {
        }
        ready.swap(completions_);
    }
    for (const Completion& completion : ready) {
        contained([&completion] { completion(); }, "completion");
    }
}

bool IoWorker::drain(std::chrono::milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    for (bool in_time = true;;) {
        {
            std::unique_lock lock(mutex_);
            in_time = became_idle_.wait_until(lock, deadline, [this] { return is_idle(); });
        }
        run_completions();  // which may post more
        const std::lock_guard lock(mutex_);
        if (is_idle() && completions_.empty()) return true;
        if (!in_time) return false;
    }
}

IoWorker::Completion IoWorker::run(const Queued& queued) {
    const BackgroundSpan span(Part::files, static_cast<std::int64_t>(queued.n_bytes));
    return contained(queued.job, "job");
}

void IoWorker::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stopping_ || !urgent_.empty() || !queued_.empty(); });
        if (stopping_) return;
        std::deque<Queued>& queue = urgent_.empty() ? queued_ : urgent_;
        Queued next = std::move(queue.front());
        queue.pop_front();
        running_ = true;
        lock.unlock();
        Completion completion = run(next);
        next.job = nullptr;  // what it holds goes here, not under the lock
        lock.lock();
        running_ = false;
        n_bytes_ -= next.n_bytes;
        add_completion(std::move(completion));
        if (is_idle()) became_idle_.notify_all();
    }
}

}  // namespace luce::memory
