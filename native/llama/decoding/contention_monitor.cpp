// How long an OpenMP thread spins is fixed before main(), by GOMP_SPINCOUNT. But libgomp shortens it to next to nothing
// for as long as it manages more threads than there are cores (its manual, GOMP_SPINCOUNT). So a further team that does
// nothing but exist makes all of them sleep, and without it they spin again. ggml's barriers without OpenMP spin
// without a limit, which costs more yet.
#include "llama/decoding/contention_monitor.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <latch>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"

namespace luce::llama {
namespace {

constexpr double kLeastWindow_s = 0.02;   // a shorter rest says little
constexpr double kContendedShare = 0.15;  // of the threads' time; a server that takes a core for each token takes 0.02
constexpr double kCalmShare = 0.05;
constexpr int kCalmFirst = 1;
constexpr int kCalmMost = 128;
constexpr int kTooEarly = 16;  // windows of spinning that end sooner were a mistake

// How long all threads of this process together have waited for a core, as far as the kernel counts it.
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

bool ContentionDetector::update(double computed_s, double waited_s, std::int32_t n_threads) {
    const double share = waited_s / (computed_s * n_threads);
    if (!is_contended_) {
        n_since_tried_ = std::min(n_since_tried_ + 1, kTooEarly);
        if (n_since_tried_ == kTooEarly && share < kContendedShare) n_calm_wanted_ = kCalmFirst;
        n_calm_ = 0;
        is_contended_ = share >= kContendedShare;
        return is_contended_;
    }
    n_calm_ = share < kCalmShare ? n_calm_ + 1 : 0;
    if (n_calm_ < n_calm_wanted_) return true;
    // Threads that sleep may find room which threads that spin would not: it is only known once they do.
    n_calm_wanted_ = std::min(2 * n_calm_wanted_, kCalmMost);
    n_since_tried_ = 0;
    is_contended_ = false;
    return false;
}

#ifdef _OPENMP

// Threads that libgomp counts and that sleep: a team stays for as long as the thread that first called for it.
class ContentionMonitor::IdleTeam {
public:
    explicit IdleTeam(std::int32_t n_threads) : owner_([this, n_threads] { hold(n_threads); }) { is_there_.wait(); }

    ~IdleTeam() {
        is_over_.count_down();
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
        is_there_.count_down();
        is_over_.wait();
    }

    std::latch is_there_{1};
    std::latch is_over_{1};
    std::thread owner_;  // last: it uses the others
};

void ContentionMonitor::set_sleeps(bool sleeps) {
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

class ContentionMonitor::IdleTeam {};

void ContentionMonitor::set_sleeps(bool) {}

#endif

ContentionMonitor::ContentionMonitor(std::int32_t n_threads) : n_threads_(n_threads) {}

ContentionMonitor::~ContentionMonitor() = default;

void ContentionMonitor::note(double computed_s) {
    if (n_threads_ < 2) return;  // nobody waits
    computed_s_ += computed_s;
    if (!waited_s_ || computed_s_ >= detector_.window_s()) end_window();
}

bool ContentionMonitor::met_contention() {
    if (computed_s_ > kLeastWindow_s) end_window();
    return std::exchange(met_contention_, false);
}

void ContentionMonitor::end_window() {
    const std::optional<double> waited_s = read_waited_s();
    if (waited_s && waited_s_) {
        const bool was_contended = detector_.is_contended();
        const bool is_contended = detector_.update(computed_s_, std::max(*waited_s - *waited_s_, 0.0), n_threads_);
        met_contention_ = met_contention_ || was_contended || is_contended;
        if (is_contended != was_contended) {
            log_debug(is_contended ? "other programs want these cores: threads sleep where they wait for each other"
                                   : "the cores are free: threads spin where they wait for each other");
            set_sleeps(is_contended);
        }
    }
    // Threads that have ended took their share of the sum along.
    waited_s_ = read_waited_s();
    computed_s_ = 0;
}

}  // namespace luce::llama
