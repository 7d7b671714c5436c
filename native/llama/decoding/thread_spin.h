// ThreadSpin: lets ggml's threads spin where they wait for each other as long as they have the cores to themselves, and
// sleep where they have not. Called from the thread that computes. Does nothing where ggml was built without OpenMP, or
// where the kernel does not say how long threads wait for a core.
//
// How long an OpenMP thread spins is fixed before main(), by GOMP_SPINCOUNT. But libgomp shortens it to next to nothing
// for as long as it manages more threads than there are cores (its manual, GOMP_SPINCOUNT). So a further team that does
// nothing but exist makes all of them sleep, and without it they spin again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "llama/decoding/spin_judge.h"

namespace luce::llama {

class ThreadSpin {
public:
    explicit ThreadSpin(std::int32_t n_threads);
    ~ThreadSpin();
    ThreadSpin(const ThreadSpin&) = delete;
    ThreadSpin& operator=(const ThreadSpin&) = delete;

    // After each computation: how long it took.
    void note(double computed_s);

    bool sleeps() const { return idle_team_ != nullptr; }

    // From now on threads sleep, or spin, where they wait for each other.
    void set_sleeps(bool sleeps);

private:
    class IdleTeam;

    std::int32_t n_threads_;
    SpinJudge judge_;
    std::unique_ptr<IdleTeam> idle_team_;  // while threads are to sleep
    double computed_s_ = 0;                // in this window
    std::optional<double> waited_s_;       // by its prefix; none: not known yet, or never
};

}  // namespace luce::llama
