#include "speculation/draft_costs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "speculation/context_octave.h"

namespace luce::speculation {
namespace {

constexpr double kGuessedShare = 0.3;
constexpr double kGuessedShareVariance = 0.1;
constexpr double kCertainty = 2;      // deviations
constexpr double kLeastShare = 0.15;  // below, it may as well be none
constexpr double kMostShare = 0.98;
constexpr double kShareDrift = 1e-6;  // variances gained a draft
constexpr double kCostDrift = 3e-4;
constexpr double kFresh_s = 5;       // without drafts, in which what they cost is known as well as before
constexpr double kIdleDrift = 0.02;  // gained a second from then on
constexpr double kLaneSlope = 0.15;  // a further lane's cost before it was measured, in drafts for one
constexpr double kLaneSpread = 0.1;  // that guess's variance, times ln(lanes)
constexpr double kFirstVariance = 0.25;
constexpr double kContextSpread = 0.3;     // variance that an octave's growth may have more than the one before it
constexpr double kContextDrift = 1e-3;     // it gains a draft in the octave, whose ends differ, too
constexpr double kKnown = 0.15;            // deviation
constexpr double kShort = 0.6;             // of the most tokens: fewer tell what tokens cost
constexpr std::uint64_t kFirstDrafts = 3;  // full ones, before short ones are tried
constexpr std::uint64_t kShortDrafts = 6;  // enough to know
constexpr double kLongest_s = 1e6;

}  // namespace

DraftCosts::DraftCosts(std::int32_t n_lanes, std::int32_t n_most)
    : n_lanes_(std::max(n_lanes, 1)),
      n_most_(std::max(n_most, 1)),
      state_(static_cast<std::size_t>(n_lanes_) + kContexts) {
    state_.set_mean(0, kGuessedShare);
    state_.add_covariance(0, 0, kGuessedShareVariance);
    const std::size_t most = lanes_index(n_lanes_);
    for (std::size_t i = 1; i <= most; ++i) {
        state_.set_mean(i, std::log1p(kLaneSlope * static_cast<double>(i - 1)));
        for (std::size_t j = 1; j <= most; ++j) {
            const double common = kFirstVariance + kLaneSpread * std::log(static_cast<double>(std::min(i, j)));
            state_.add_covariance(i, j, common);
        }
    }
    for (std::size_t i = 1; i < kContexts; ++i) {
        for (std::size_t j = 1; j < kContexts; ++j) {
            state_.add_covariance(most + i, most + j, kContextSpread * static_cast<double>(std::min(i, j)));
        }
    }
}

std::size_t DraftCosts::lanes_index(std::int32_t n_lanes) const {
    return static_cast<std::size_t>(std::clamp(n_lanes, 1, n_lanes_));
}

std::optional<std::size_t> DraftCosts::growth_index(std::int32_t n_longest) const {
    const std::size_t octave = context_octave(n_longest);
    if (octave == 0) return std::nullopt;
    return lanes_index(n_lanes_) + octave;
}

double DraftCosts::variance(std::int32_t n_lanes, std::int32_t n_longest) const {
    const std::size_t lanes = lanes_index(n_lanes);
    const std::optional<std::size_t> growth = growth_index(n_longest);
    if (!growth) return state_.variance(lanes);
    return state_.variance(lanes) + state_.variance(*growth) + 2 * state_.covariance(lanes, *growth);
}

double DraftCosts::share() const {
    const bool is_certain = state_.mean(0) - kCertainty * std::sqrt(state_.variance(0)) >= kLeastShare;
    return is_certain ? std::min(state_.mean(0), kMostShare) : 0;
}

// In turn with full ones, which the short ones are compared with.
bool DraftCosts::wants_short_draft() const {
    return n_full_ >= kFirstDrafts && n_short_ < kShortDrafts && was_full_ && is_flat();
}

void DraftCosts::observe(std::int32_t n_lanes, std::int32_t n_tokens, std::int32_t n_longest, double seconds) {
    const bool can_be = n_lanes >= 1 && n_lanes <= n_lanes_ && n_tokens >= 0 && seconds > 0 && seconds < kLongest_s;
    if (!can_be) return;  // NaN too
    const std::size_t lanes = lanes_index(n_lanes), most = lanes_index(n_lanes_);
    const std::optional<std::size_t> growth = growth_index(n_longest);
    const double log_s = std::log(seconds);
    if (n_measured_ == 0) {
        const double first = log_s - state_.mean(lanes);
        for (std::size_t i = 1; i <= most; ++i) state_.set_mean(i, state_.mean(i) + first);
    }
    ++n_measured_;
    state_.add_covariance(0, 0, kShareDrift);
    // All numbers of lanes drift together.
    const double drift = idle_variance() + (state_.variance(lanes) < kFirstVariance ? kCostDrift : 0);
    idle_s_ = 0;
    for (std::size_t i = 1; i <= most; ++i) {
        for (std::size_t j = 1; j <= most; ++j) state_.add_covariance(i, j, drift);
    }
    if (growth && state_.variance(*growth) < kContextSpread) state_.add_covariance(*growth, *growth, kContextDrift);
    const double part = std::min(static_cast<double>(std::max(n_tokens, n_lanes)) / n_lanes / n_most_, 1.0);
    was_full_ = part > kShort;
    ++(was_full_ ? n_full_ : n_short_);
    const double left = 1 - std::clamp(state_.mean(0), 0.0, kMostShare) * (1 - part);
    const std::array<LogFilter::Term, 3> terms = {{{lanes, 1}, {0, -(1 - part) / left}, {growth.value_or(0), 1}}};
    const double expected = state_.mean(lanes) + std::log(left) + (growth ? state_.mean(*growth) : 0);
    state_.observe(std::span(terms).first(growth ? 3 : 2), expected, log_s, 1, most, noise_);
    state_.set_mean(0, std::clamp(state_.mean(0), 0.0, kMostShare));
}

double DraftCosts::idle_variance() const { return kIdleDrift * std::max(idle_s_ - kFresh_s, 0.0); }

std::optional<double> DraftCosts::cost_s(std::int32_t n_lanes, std::int32_t n_tokens_each,
                                         std::int32_t n_longest) const {
    if (n_measured_ == 0) return std::nullopt;
    const std::optional<std::size_t> growth = growth_index(n_longest);
    const double part = std::min(static_cast<double>(n_tokens_each) / n_most_, 1.0);
    const double log_s = state_.mean(lanes_index(n_lanes)) + (growth ? state_.mean(*growth) : 0);
    return std::exp(log_s) * (1 - share() * (1 - part));
}

std::optional<double> DraftCosts::hopeful_s(std::int32_t n_lanes, std::int32_t n_tokens_each,
                                            std::int32_t n_longest) const {
    std::optional<double> cost = cost_s(n_lanes, n_tokens_each, n_longest);
    if (cost) *cost *= std::exp(-std::sqrt(idle_variance()));
    return cost;
}

std::optional<double> DraftCosts::worst_s(std::int32_t n_lanes, std::int32_t n_tokens_each,
                                          std::int32_t n_longest) const {
    std::optional<double> cost = cost_s(n_lanes, n_tokens_each, n_longest);
    const double deviation = std::sqrt(std::max(variance(n_lanes, n_longest), 0.0));
    if (cost) *cost *= std::exp(std::max(deviation - kKnown, 0.0));
    return cost;
}

}  // namespace luce::speculation
