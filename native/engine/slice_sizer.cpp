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

}  // namespace

std::int32_t SliceSizer::next(bool lanes_are_waiting) const {
    // Grow at most twofold over what was measured: a small call says little about a large one.
    const std::int32_t ceiling = std::max(kFirstSlice, 2 * largest_seen_);
    std::int32_t n = ceiling;
    if (token_price_s_ > 0) {
        const double target_s = lanes_are_waiting ? kSharedTarget_s : kAloneTarget_s / n_at_once_;
        const double affordable = std::min(target_s / token_price_s_, static_cast<double>(max_tokens_));
        n = std::min(ceiling, static_cast<std::int32_t>(affordable));
    }
    n = std::max(n, kMinTokens);
    const std::int32_t tile = n > kLargeTile ? kLargeTile : kTile;
    if (n > tile && n < max_tokens_) n -= n % tile;
    return std::min(n, max_tokens_);
}

void SliceSizer::observe(std::int32_t n_tokens, double seconds) {
    // Calls of a few tokens pay for reading the weights, not for the tokens.
    if (n_tokens < std::min(kMinTokens, max_tokens_)) return;
    largest_seen_ = std::max(largest_seen_, n_tokens);
    if (seconds <= 0) return;
    const double price_s = seconds / n_tokens;
    token_price_s_ = token_price_s_ > 0 ? (1 - kNewestShare) * token_price_s_ + kNewestShare * price_s : price_s;
}

}  // namespace luce::engine
