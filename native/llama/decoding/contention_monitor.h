// ContentionMonitor: lets ggml's OpenMP threads spin at their barriers while they have the cores to themselves, and
// sleep while other programs want these cores. Alone, a thread that spins is there at once when the others arrive,
// where waking it would cost more than most waits are long; under contention it takes the core from the very thread
// that it waits for. Called from the thread that computes. Does nothing where ggml was built without OpenMP, or where
// the kernel does not say how long threads wait for a core. Knows nothing of models.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

namespace luce::llama {

// The decision by itself, with hysteresis.
class ContentionDetector {
public:
    // Of a window of `computed_s` of computation with `n_threads` threads: all of them together waited `waited_s` for a
    // core. Returns whether they should sleep from now on. REQUIRES: computed_s > 0, n_threads > 0.
    bool update(double computed_s, double waited_s, std::int32_t n_threads);

    bool is_contended() const { return is_contended_; }

    // How much computation the next window should span: a look costs some 10 us a thread, and threads that sleep
    // without need cost much more.
    double window_s() const { return is_contended_ ? 0.1 : 0.25; }

private:
    bool is_contended_ = false;
    int n_calm_ = 0;         // windows in a row, under contention: enough room for all
    int n_calm_wanted_ = 1;  // before spinning is tried again; more each time it was tried too early
    int n_since_tried_ = 0;  // windows since then
};

class ContentionMonitor {
public:
    explicit ContentionMonitor(std::int32_t n_threads);
    ~ContentionMonitor();
    ContentionMonitor(const ContentionMonitor&) = delete;
    ContentionMonitor& operator=(const ContentionMonitor&) = delete;

    // After each computation: how long it took.
    void note(double computed_s);

    // Whether others wanted these cores in any of the computations since this was last asked.
    bool met_contention();

    bool sleeps() const { return idle_team_ != nullptr; }

    // From now on threads sleep, or spin, where they wait for each other.
    void set_sleeps(bool sleeps);

private:
    class IdleTeam;
    void end_window();

    std::int32_t n_threads_;
    ContentionDetector detector_;
    std::unique_ptr<IdleTeam> idle_team_;  // while threads are to sleep
    double computed_s_ = 0;                // in this window
    bool met_contention_ = false;
    std::optional<double> waited_s_;  // by its start; none: not known yet, or never
};

}  // namespace luce::llama
