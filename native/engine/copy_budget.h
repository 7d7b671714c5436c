// CopyBudget: how much of running lanes' time copies out of the pool may take: a hundredth of each step's. What one
// took beyond that the next steps go without; what was not used is not saved up. Numbers only; knows neither pages nor
// clocks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>

namespace luce::engine {

class CopyBudget {
public:
    // A step begins that computes; the one before it has lasted until now.
    void begin_step(double now_s) {
        const double step_s = begun_s_ ? now_s - *begun_s_ : 0;
        begun_s_ = now_s;
        left_s_ = std::min(left_s_, 0.0) + kShare * step_s;
    }

    // Nobody computes: the time up to the next step is nobody's.
    void rest() { begun_s_.reset(); }

    bool has_time() const { return left_s_ > 0; }

    // The engine's thread was `seconds` at it. A device may make the copy beside its computations, which may still have
    // to wait for it: it counts as if they did.
    void spend(double seconds, std::size_t n_bytes) {
        left_s_ -= std::max(seconds, static_cast<double>(n_bytes) / kBusBytesPerSecond);
    }

private:
    static constexpr double kShare = 0.01;
    static constexpr double kBusBytesPerSecond = 25e9;  // of 16 lanes of PCIe 4.0; a faster bus takes less time

    std::optional<double> begun_s_;
    double left_s_ = 0;
};

}  // namespace luce::engine
