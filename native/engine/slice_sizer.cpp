#include "engine/slice_sizer.h"

#include <algorithm>

namespace luce::engine {
namespace {

constexpr std::int32_t kFirstSlice = 128;
// Sizes are whole multiples of this where they can be: matrix kernels work in tiles. Large ones are multiples of a
// quarter of a checkpoint's interval: prompts are cut there anyway, and equal pieces make equal passes.
constexpr std::int32_t kTile = 32;
constexpr std::int32_t kLargeTile = 512;
constexpr double kNewestShare = 0.5;
// Over the largest call that was measured: a small one says little about a large one.
constexpr std::int32_t kMostGrowth = 4;
// Sizes must differ by this much, as variance over the mean's square, for a line through them to mean something.
constexpr double kLeastSpread = 0.1;

}  // namespace

std::int32_t SliceSizer::next(bool lanes_are_waiting) const {
    const std::int32_t ceiling = std::max(kFirstSlice, kMostGrowth * largest_seen_);
    std::int32_t n = std::min(ceiling, max_tokens_);
    if (token_price_s_ > 0) {
        const double target_s = lanes_are_waiting ? kSharedTarget_s : kAloneTarget_s / n_at_once_;
        // Where the call alone takes most of that time its tokens may take as long: else hardly any would be read.
        const double for_tokens_s = std::max(target_s - call_price_s_, call_price_s_);
        n = static_cast<std::int32_t>(std::min(for_tokens_s / token_price_s_, static_cast<double>(n)));
    }
    n = std::max(n, kMinTokens);
    const std::int32_t tile = n > kLargeTile ? kLargeTile : kTile;
    if (n > tile && n < max_tokens_) n -= n % tile;
    return std::min(n, max_tokens_);
}

// A line through the latest calls; where they are of one size it keeps its offset.
void SliceSizer::observe(std::int32_t n_tokens, double seconds) {
    // Calls of a few tokens compute with other kernels, which read each weight for one token.
    if (n_tokens < std::min(kMinTokens, max_tokens_)) return;
    largest_seen_ = std::max(largest_seen_, n_tokens);
    if (seconds <= 0) return;
    const double n = n_tokens;
    const double share = token_price_s_ > 0 ? kNewestShare : 1.0;
    const auto mix = [share](double& mean, double newest) { mean += share * (newest - mean); };
    mix(means_.n, n);
    mix(means_.s, seconds);
    mix(means_.nn, n * n);
    mix(means_.ns, n * seconds);
    const double variance = means_.nn - means_.n * means_.n;
    if (variance > kLeastSpread * means_.n * means_.n) {
        const double slope = (means_.ns - means_.n * means_.s) / variance;
        call_price_s_ = means_.s - slope * means_.n;
    }
    constexpr double kMostOfCall = 0.99;  // a token costs something
    call_price_s_ = std::clamp(call_price_s_, 0.0, kMostOfCall * std::min(seconds, means_.s));
    token_price_s_ = (means_.s - call_price_s_) / means_.n;
}

}  // namespace luce::engine
