#include "speculation/controller/cost_model.h"

#include <cmath>
#include <utility>

namespace luce::speculation {
namespace {

constexpr std::int32_t kFineRungs = 16;
constexpr std::int32_t kRungsAnOctave = 8;

// Of LogEstimate, in logarithms.
constexpr double kLarge = 4;      // deviations
constexpr int kLasting = 3;       // large surprises in a row are no accident: the machine is another one now
constexpr double kTooLong = 0.7;  // twice as long as expected is as likely an accident
constexpr double kWear = 3e-5;    // variance gained a measurement

constexpr double kGuessedSlope = 0.08;  // a drafted token's cost in plain calls before any was measured
constexpr double kGuessSpread = 0.12;   // low, so that it is tried, and so much off
constexpr double kInheritedSpread = 0.024;
constexpr double kOwnSpread = 0.003;  // of each rung alone: kernels have steps
constexpr double kPlainDrift = 2e-4;  // of the plain call's variance, a call
constexpr double kMostDrift = 0.25;
constexpr double kFirstPlain = 0.02;  // its variance when it was measured at first
constexpr double kKnownDeviation = 0.05;
constexpr double kWorstDeviations = 1.5;
constexpr double kLeastVariance = 4e-4;

constexpr double kLaneSlope = 0.15;     // a further lane's draft, in drafts for one, before it was measured
constexpr double kLaneSpread = 0.1;     // that guess's variance, times ln(lanes)
constexpr double kContextSpread = 0.3;  // variance that an octave's growth may have more than the one before it
constexpr double kFirstDraft = 0.05;
constexpr double kDraftNoise = 0.01;
constexpr double kDraftWear = 1e-4;
constexpr double kFresh_s = 5;            // without drafts, in which what they cost is known as well as before
constexpr double kIdleDrift = 0.02;       // variance gained a second from then on
constexpr double kKnownDraft = 0.15;      // deviation
constexpr double kShort = 0.6;            // of the most tokens: fewer tell what tokens cost
constexpr double kLeastTokenShare = 0.2;  // below, it may as well be none
constexpr double kMostShare = 0.98;
constexpr std::uint64_t kFirstDrafts = 2;  // full ones, before short ones are tried
constexpr std::uint64_t kShortDrafts = 3;  // enough to know

double bridge(double a, double b) { return std::abs(std::log1p(a) - std::log1p(b)); }

}  // namespace

std::int32_t TokenLadder::rung(std::size_t index) {
    const auto i = static_cast<std::int32_t>(index);
    if (i <= kFineRungs) return i;
    const std::int32_t octave = (i - kFineRungs) / kRungsAnOctave;
    const std::int32_t step = (i - kFineRungs) % kRungsAnOctave;
    return (kFineRungs << octave) + step * ((kFineRungs / kRungsAnOctave) << octave);
}

std::size_t TokenLadder::index_below(std::int32_t n) {
    if (n <= kFineRungs) return static_cast<std::size_t>(std::max(n, 0));
    const std::int32_t octave = std::bit_width(static_cast<std::uint32_t>(n / kFineRungs)) - 1;
    const std::int32_t step = (n - (kFineRungs << octave)) / ((kFineRungs / kRungsAnOctave) << octave);
    return static_cast<std::size_t>(kFineRungs + octave * kRungsAnOctave + step);
}

void LogEstimate::observe(double measured, double noise) {
    const double surprise = measured - mean;
    const bool is_large = std::abs(surprise) > kLarge * std::sqrt(variance + noise);
    n_large = !is_large ? 0 : surprise > 0 ? std::max(n_large, 0) + 1 : std::min(n_large, 0) - 1;
    if (std::abs(n_large) >= kLasting)
        variance += surprise * surprise / 4;
    else if (is_large && surprise > 0)
        noise = std::max(noise, surprise * surprise);
    else if (surprise > kTooLong)
        noise = std::max(noise, surprise * surprise / 4);
    const double gain = variance / (variance + noise);
    mean += gain * surprise;
    variance = variance * (1 - gain) + kWear;
}

double CostCurve::at(const std::vector<double>& values, double n_drafted) {
    if (values.empty()) return 0;
    const std::size_t below = TokenLadder::index_below(static_cast<std::int32_t>(n_drafted));
    if (below + 1 >= values.size()) return values.back();
    const std::int32_t low = TokenLadder::rung(below), high = TokenLadder::rung(below + 1);
    return values[below] + (values[below + 1] - values[below]) * (n_drafted - low) / (high - low);
}

void CostCurve::guess(std::int32_t n_lanes, std::int32_t n_most) {
    n_lanes_ = n_lanes;
    // One rung beyond, so that all numbers lie between two.
    const std::size_t n_rungs = TokenLadder::index_below(n_lanes * n_most) + 2;
    for (std::size_t i = 0; i < n_rungs; ++i) guess_.push_back(std::log1p(kGuessedSlope * TokenLadder::rung(i)));
    spread_ = kGuessSpread;
    ratios_.assign(n_rungs, {});
}

// Another curve's ratios are the best guess there is: of calls with as many tokens.
void CostCurve::inherit(const CostCurve& other, bool has_own_plain) {
    const std::int32_t n_widest = TokenLadder::rung(other.guess_.size() - 2);
    const double each_s = n_widest > 0 ? (other.expected_s(n_widest) - other.plain_s()) / n_widest : 0;
    const auto log_cost = [&](std::int32_t n_tokens) {
        const std::int32_t n = std::max(n_tokens - other.n_lanes_, 0);
        return std::log(n <= n_widest ? other.expected_s(n) : other.expected_s(n_widest) + (n - n_widest) * each_s);
    };
    for (std::size_t i = 0; i < guess_.size(); ++i) {
        guess_[i] = log_cost(n_lanes_ + TokenLadder::rung(i)) - log_cost(n_lanes_);
    }
    spread_ = kInheritedSpread;
    least_plain_ = has_own_plain ? 1 : 3;
}

// A ratio's logarithm: of what was measured of its neighbours, by how near they are.
double CostCurve::guessed_or_measured(std::size_t rung, double& variance) const {
    if (ratios_[rung].is_measured()) {
        variance = ratios_[rung].variance;
        return ratios_[rung].mean;
    }
    std::size_t below = rung, above = rung;
    while (below > 0 && !ratios_[below].is_measured()) --below;
    while (above < ratios_.size() && !ratios_[above].is_measured()) ++above;
    const double from_below = bridge(TokenLadder::rung(rung), TokenLadder::rung(below));
    const double off_below = below > 0 ? ratios_[below].mean - guess_[below] : 0;
    const double of_below = below > 0 ? ratios_[below].variance : 0;
    if (above == ratios_.size()) {
        variance = of_below + spread_ * from_below + kOwnSpread;
        return guess_[rung] + off_below;
    }
    const double from_above = bridge(TokenLadder::rung(rung), TokenLadder::rung(above));
    const double share = from_below / (from_below + from_above);
    variance =
        (1 - share) * of_below + share * ratios_[above].variance + spread_ * from_below * (1 - share) + kOwnSpread;
    return guess_[rung] + (1 - share) * off_below + share * (ratios_[above].mean - guess_[above]);
}

// All is held against the plain call, so only plain calls say what it costs, and it is measured a few times first. The
// first calls of a kind are sometimes far too long and never too short: the shortest of them counts.
void CostCurve::observe(std::int32_t n_drafted, double seconds, double noise, double idle) {
    std::size_t rung = TokenLadder::index_below(n_drafted);
    if (2 * n_drafted > TokenLadder::rung(rung) + TokenLadder::rung(rung + 1)) ++rung;
    ++n_calls_;
    const double log_s = std::log(seconds);
    plain_.variance = std::min(plain_.variance + kPlainDrift * idle, std::max(kMostDrift, plain_.variance));
    if (rung == 0) {
        last_plain_ = n_calls_;
        ++n_plain_;
        if (n_plain_ <= least_plain_ || n_plain_ == 1) {
            plain_ = {n_plain_ == 1 ? log_s : std::min(plain_.mean, log_s), kFirstPlain, 0};
        } else {
            plain_.observe(log_s, noise);
        }
    } else if (is_known()) {
        LogEstimate& ratio = ratios_[rung];
        if (!ratio.is_measured()) {
            double variance = 0;
            ratio.mean = guessed_or_measured(rung, variance);
            ratio.variance = variance;
        }
        ratio.observe(log_s - plain_.mean, noise);
    }
    if (n_plain_ >= least_plain_) draw();
}

// The means, made so that they never fall: neighbours that do are averaged by how well they are known (the
// pool-adjacent-violators algorithm).
void CostCurve::draw() {
    struct Block {
        double cost = 0;
        double weight = 0;
        std::size_t last = 0;
    };
    const std::size_t n = guess_.size();
    for (auto* values : {&expected_, &hopeful_, &worst_, &deviation_}) values->resize(n);
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < n; ++i) {
        double variance = 0;
        const double ratio = i > 0 ? guessed_or_measured(i, variance) : 0;
        deviation_[i] = std::sqrt(variance);
        blocks.push_back({std::exp(plain_.mean + ratio), 1 / (variance + kLeastVariance), i});
        while (blocks.size() > 1 && blocks[blocks.size() - 2].cost > blocks.back().cost) {
            const Block block = blocks.back();
            blocks.pop_back();
            Block& before = blocks.back();
            const double sum = before.weight + block.weight;
            before = {(before.cost * before.weight + block.cost * block.weight) / sum, sum, block.last};
        }
    }
    std::size_t i = 0;
    for (const Block& block : blocks) {
        for (; i <= block.last; ++i) {
            expected_[i] = block.cost;
            const double hope = std::max(deviation_[i] - kKnownDeviation, 0.0);
            hopeful_[i] = std::max(block.cost * std::exp(-hope), expected_[0]);
            const double one_each = (1 + static_cast<double>(TokenLadder::rung(i)) / n_lanes_) * expected_[0];
            worst_[i] = std::max(block.cost, std::min(block.cost * std::exp(kWorstDeviations * hope), one_each));
        }
    }
}

CostModel::CostModel(std::int32_t n_lanes, std::int32_t n_most)
    : n_lanes_(std::max(n_lanes, 1)),
      n_most_(std::max(n_most, 0)),
      curves_(kContexts * static_cast<std::size_t>(n_lanes_)) {}

void CostModel::observe(std::int32_t n_lanes, std::int32_t n_drafted, std::int32_t n_longest, double seconds) {
    const bool can_be = n_lanes >= 1 && n_lanes <= n_lanes_ && n_drafted >= 0 && n_drafted <= n_lanes * n_most_ &&
                        seconds > 0 && seconds < kLongest_s;  // false for NaN
    if (!can_be) return;
    CostCurve& curve = const_cast<CostCurve&>(this->curve(n_lanes, n_longest));
    ++n_calls_;
    if (curve.is_known()) {
        const double surprise = std::log(seconds / curve.expected_s(n_drafted));
        const double deviation = curve.deviation(n_drafted);
        if (std::abs(surprise) < kLarge * std::sqrt(noise_ + deviation * deviation)) {
            noise_ = std::clamp(noise_ + 0.02 * (surprise * surprise - deviation * deviation - noise_), 4e-4, 0.04);
        }
    }
    curve.observe(n_drafted, seconds, noise_,
                  static_cast<double>(n_calls_ - std::exchange(curve.last_call_, n_calls_)));
}

// A curve that was never used begins with what is known of other contexts, or else of other numbers of lanes.
const CostCurve& CostModel::curve(std::int32_t n_lanes, std::int32_t n_longest) {
    const std::size_t octave = context_octave(n_longest);
    const auto lanes = static_cast<std::size_t>(n_lanes - 1), n = static_cast<std::size_t>(n_lanes_);
    CostCurve& curve = curves_[octave * n + lanes];
    if (curve.n_calls_ > 0) return curve;
    const auto apart = [](std::size_t a, std::size_t b) { return a < b ? b - a : a - b; };
    const CostCurve* nearest = nullptr;
    std::size_t least = std::numeric_limits<std::size_t>::max();
    for (std::size_t i = 0; i < curves_.size(); ++i) {
        const std::size_t distance = apart(octave, i / n) + kContexts * apart(lanes, i % n);
        if (!curves_[i].is_known() || distance >= least) continue;
        least = distance;
        nearest = &curves_[i];
    }
    if (curve.n_lanes_ == 0) curve.guess(n_lanes, n_most_);
    curve.least_plain_ = 3;
    if (nearest != nullptr && nearest != &curve) curve.inherit(*nearest, nearest->n_lanes_ == n_lanes);
    return curve;
}

DraftCosts::DraftCosts(std::int32_t n_lanes, std::int32_t n_most)
    : n_most_(std::max(n_most, 1)),
      lanes_(static_cast<std::size_t>(std::max(n_lanes, 1))),
      growth_(kContexts),
      was_measured_(kContexts * lanes_.size()) {
    growth_[0] = {0, 0, 0};
}

// Where it was not measured: from the nearest number of lanes that was.
LogEstimate DraftCosts::of_lanes(std::int32_t n_lanes) const {
    const auto at = static_cast<std::size_t>(std::clamp(n_lanes, 1, static_cast<std::int32_t>(lanes_.size())) - 1);
    for (std::size_t distance = 0; distance < lanes_.size(); ++distance) {
        for (const std::size_t other : {at + distance, at - std::min(distance, at)}) {
            if (other >= lanes_.size() || !lanes_[other].is_measured()) continue;
            const auto a = static_cast<double>(at), b = static_cast<double>(other);
            LogEstimate estimate = lanes_[other];
            estimate.mean += std::log1p(kLaneSlope * a) - std::log1p(kLaneSlope * b);
            estimate.variance += kLaneSpread * bridge(a, b);
            return estimate;
        }
    }
    return {};
}

// What is longer costs no less than what was measured of shorter texts.
LogEstimate DraftCosts::growth(std::int32_t n_longest) const {
    const std::size_t octave = context_octave(n_longest);
    std::size_t known = octave;
    while (!growth_[known].is_measured()) --known;
    LogEstimate estimate = growth_[known];
    estimate.variance += kContextSpread * static_cast<double>(octave - known);
    return estimate;
}

double DraftCosts::idle_variance() const { return kIdleDrift * std::max(idle_s_ - kFresh_s, 0.0); }

bool DraftCosts::is_flat() const { return n_short_ < kShortDrafts || token_share_ < kLeastTokenShare; }

// In turn with full ones, which the short ones are compared with.
bool DraftCosts::wants_short_draft(std::int32_t n_longest) const {
    return n_full_ >= kFirstDrafts && n_short_ < kShortDrafts && idle_variance() == 0 &&
           last_full_ == context_octave(n_longest);
}

void DraftCosts::observe(std::int32_t n_lanes, std::int32_t n_tokens, std::int32_t n_longest, double seconds) {
    const bool can_be = n_lanes >= 1 && n_lanes <= static_cast<std::int32_t>(lanes_.size()) && n_tokens >= 0 &&
                        seconds > 0 && seconds < kLongest_s;
    if (!can_be) return;  // NaN too
    LogEstimate lanes = of_lanes(n_lanes), longer = growth(n_longest);
    const double part = std::min(static_cast<double>(std::max(n_tokens, n_lanes)) / n_lanes / n_most_, 1.0);
    const bool is_full = part > kShort;
    const double idle = idle_variance();
    idle_s_ = 0;
    const bool is_comparable = !is_full && idle == 0 && last_full_ == context_octave(n_longest);
    last_full_ = is_full ? std::optional(context_octave(n_longest)) : std::nullopt;
    n_full_ += is_full ? 1 : 0;
    n_short_ += is_comparable ? 1 : 0;
    if (!lanes.is_measured()) lanes = {std::log(seconds) - longer.mean, kFirstDraft, 0};
    if (is_comparable) {
        const double share = (1 - seconds / std::exp(lanes.mean + longer.mean)) / (1 - part);
        token_share_ +=
            (std::clamp(share, 0.0, kMostShare) - token_share_) / std::min<double>(static_cast<double>(n_short_), 20);
    }
    const double full = std::log(seconds / (1 - (is_flat() ? 0 : std::min(token_share_, kMostShare)) * (1 - part)));
    if (!is_full && is_flat() && idle == 0) return;  // it may be shorter for its tokens' sake
    // What is measured is the sum; how dear the machine is goes for all numbers of lanes.
    lanes.variance += idle;
    const double doubt = lanes.variance + longer.variance;
    LogEstimate sum{lanes.mean + longer.mean, doubt, lanes.n_large};
    sum.observe(full, kDraftNoise);
    const double moved = sum.mean - lanes.mean - longer.mean, to_lanes = moved * lanes.variance / doubt;
    for (LogEstimate& other : lanes_) other.mean += idle > 0 ? to_lanes : 0;
    lanes = {lanes.mean + to_lanes, lanes.variance * (1 - lanes.variance / (doubt + kDraftNoise)) + kDraftWear,
             sum.n_large};
    longer.variance *= 1 - longer.variance / (doubt + kDraftNoise);
    const std::size_t at = static_cast<std::size_t>(n_lanes - 1), octave = context_octave(n_longest);
    lanes_[at] = lanes;
    if (octave > 0) growth_[octave] = {longer.mean + moved - to_lanes, longer.variance + kDraftWear, 0};
    was_measured_[octave * lanes_.size() + at] = true;
}

std::optional<double> DraftCosts::cost_s(std::int32_t n_lanes, std::int32_t n_tokens_each,
                                         std::int32_t n_longest) const {
    const LogEstimate lanes = of_lanes(n_lanes);
    if (!lanes.is_measured()) return std::nullopt;
    const double part = std::min(static_cast<double>(n_tokens_each) / n_most_, 1.0);
    const double share = is_flat() ? 0 : std::min(token_share_, kMostShare);
    return std::exp(lanes.mean + growth(n_longest).mean) * (1 - share * (1 - part));
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
    const std::int32_t most = static_cast<std::int32_t>(lanes_.size());
    const auto at = static_cast<std::size_t>(std::clamp(n_lanes, 1, most) - 1);
    if (!cost || was_measured_[context_octave(n_longest) * lanes_.size() + at]) return cost;
    const double deviation = std::sqrt(of_lanes(n_lanes).variance + growth(n_longest).variance);
    *cost *= std::exp(std::max(deviation - kKnownDraft, 0.0));
    return cost;
}

}  // namespace luce::speculation
