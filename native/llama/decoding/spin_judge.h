// SpinJudge: whether threads that wait for each other in a computation had better sleep than spin. Pure.
//
// Alone on its cores a thread that spins is there at once when the others arrive, where waking it would cost more than
// most waits are long. Beside other programs it takes the core from the very thread that it waits for, or from them,
// and pays for it with its own turns. What tells the two apart is how long threads that could run had to wait for a
// core.
#pragma once

#include <cstdint>

namespace luce::llama {

class SpinJudge {
public:
    // Of a window of `computed_s` of computation with `n_threads` threads: all of them together waited `waited_s` for a
    // core. Returns whether they should sleep from now on. REQUIRES: computed_s > 0, n_threads > 0.
    bool judge(double computed_s, double waited_s, std::int32_t n_threads);

    bool is_crowded() const { return is_crowded_; }

private:
    bool is_crowded_ = false;
    int n_calm_ = 0;         // windows in a row, since it is crowded: enough room for all
    int n_calm_wanted_ = 4;  // before spinning is tried again; more each time it was tried too early
    int n_since_tried_ = 0;  // windows since then
};

}  // namespace luce::llama
