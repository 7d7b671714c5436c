#include "llama/decoding/thread_spin.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/log.h"

namespace luce::llama {
namespace {

constexpr double kWindowS = 0.25;  // of computation; a look costs some 10 us a thread

// Of all threads of this process together, as far as the kernel counts it.
std::optional<double> read_waited_s() {
    std::error_code error;
    std::filesystem::directory_iterator threads("/proc/self/task", error);
    double waited_s = 0;
    bool is_known = false;
    for (; !error && threads != std::filesystem::directory_iterator(); threads.increment(error)) {
        std::ifstream file(threads->path() / "schedstat");
        std::uint64_t ran_ns = 0;
        std::uint64_t waited_ns = 0;
        if (!(file >> ran_ns >> waited_ns)) continue;  // it has just ended
        waited_s += static_cast<double>(waited_ns) * 1e-9;
        is_known = true;
    }
    if (!is_known) return std::nullopt;
    return waited_s;
}

}  // namespace

#ifdef _OPENMP

// Threads that libgomp counts and that sleep: a team stays for as long as the thread that first called for it.
class ThreadSpin::IdleTeam {
public:
    explicit IdleTeam(std::int32_t n_threads) : owner_([this, n_threads] { hold(n_threads); }) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return is_there_; });
    }

    ~IdleTeam() {
        {
            const std::lock_guard lock(mutex_);
            is_wanted_ = false;
        }
        changed_.notify_all();
        owner_.join();
    }

    IdleTeam(const IdleTeam&) = delete;
    IdleTeam& operator=(const IdleTeam&) = delete;

private:
    void hold(std::int32_t n_threads) {
        std::atomic<int> n_there = 0;
        // The count is for the compiler: it leaves out a region that does nothing, and no team is made.
#pragma omp parallel num_threads(n_threads)
        ++n_there;
        std::unique_lock lock(mutex_);
        is_there_ = true;
        changed_.notify_all();
        changed_.wait(lock, [this] { return !is_wanted_; });
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    bool is_there_ = false;
    bool is_wanted_ = true;
    std::thread owner_;  // last: it uses the others
};

void ThreadSpin::set_sleeps(bool sleeps) {
    if (sleeps == this->sleeps()) return;
    if (!sleeps) {
        idle_team_.reset();
        return;
    }
    // Together with ggml's own, one more than there are cores; a team's first thread is nobody that libgomp counts.
    const std::int32_t n_spare = std::max(omp_get_num_procs() - n_threads_, 0);
    try {
        idle_team_ = std::make_unique<IdleTeam>(n_spare + 2);
    } catch (const std::system_error& e) {
        log_debug(std::string("threads go on spinning where they wait: ") + e.what());
    }
}

#else

class ThreadSpin::IdleTeam {};

void ThreadSpin::set_sleeps(bool) {}

#endif

ThreadSpin::ThreadSpin(std::int32_t n_threads) : n_threads_(n_threads) {}

ThreadSpin::~ThreadSpin() = default;

void ThreadSpin::note(double computed_s) {
    if (n_threads_ < 2) return;  // nobody waits
    computed_s_ += computed_s;
    if (waited_s_ && computed_s_ < kWindowS) return;
    const std::optional<double> waited_s = read_waited_s();
    if (waited_s && waited_s_) {
        const bool was_crowded = judge_.is_crowded();
        const bool is_crowded = judge_.judge(computed_s_, std::max(*waited_s - *waited_s_, 0.0), n_threads_);
        if (is_crowded != was_crowded) {
            log_debug(is_crowded ? "other programs want these cores: threads sleep where they wait for each other"
                                 : "the cores are free: threads spin where they wait for each other");
            set_sleeps(is_crowded);
        }
    }
    // Threads that have ended took their share of the sum along.
    waited_s_ = read_waited_s();
    computed_s_ = 0;
}

}  // namespace luce::llama
