#include "llama/decoding/spin_judge.h"

#include <algorithm>

namespace luce::llama {
namespace {

constexpr double kCrowdedShare = 0.15;  // of the threads' time; a server that takes a core for each token takes 0.02
constexpr double kCalmShare = 0.05;
constexpr int kCalmFirst = 4;
constexpr int kCalmMost = 64;
constexpr int kTooEarly = 16;  // windows of spinning that end sooner were a mistake

}  // namespace

bool SpinJudge::judge(double computed_s, double waited_s, std::int32_t n_threads) {
    const double share = waited_s / (computed_s * n_threads);
    if (!is_crowded_) {
        n_since_tried_ = std::min(n_since_tried_ + 1, kTooEarly);
        if (share < kCrowdedShare) {
            if (n_since_tried_ == kTooEarly) n_calm_wanted_ = kCalmFirst;
            return false;
        }
        is_crowded_ = true;
        n_calm_ = 0;
        return true;
    }
    n_calm_ = share < kCalmShare ? n_calm_ + 1 : 0;
    if (n_calm_ < n_calm_wanted_) return true;
    // Threads that sleep may find room which threads that spin would not: it is only known once they do.
    n_calm_wanted_ = std::min(2 * n_calm_wanted_, kCalmMost);
    n_since_tried_ = 0;
    is_crowded_ = false;
    return false;
}

}  // namespace luce::llama
