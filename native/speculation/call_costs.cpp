#include "speculation/call_costs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "speculation/context_octave.h"

namespace luce::speculation {
namespace {

constexpr std::int32_t kFineRungs = 16;  // one a token up to here
constexpr std::int32_t kRungsAnOctave = 8;

// A drafted token's cost in plain calls before any was measured: low, so that the gate tries, but not so low that wide
// calls look as if they cost nothing.
constexpr double kGuessedSlope = 0.08;
constexpr double kGuessSpread = 0.12;    // the guess's variance, times ln(1 + drafted tokens)
constexpr double kOwnSpread = 0.003;     // of each rung alone: kernels have steps
constexpr double kInheritedShare = 0.2;  // of these variances, where another table's ratios are the guess
constexpr double kWearShare = 4e-6;      // of these variances, that each call adds
constexpr std::uint64_t kWearInterval = 64;

constexpr double kDrift = 2e-4;  // of the plain call's variance, a call
constexpr double kMostDrift = 0.25;

constexpr double kLeastVariance = 0.0004;
constexpr double kHopefulDeviations = 1;
constexpr double kWorstDeviations = 1.5;  // times these
constexpr double kKnownDeviation = 0.05;  // known well enough

// All is held against the plain call, so it is measured so often first, whatever other numbers of lanes say. The first
// calls of a kind are sometimes far too long and never too short: the shortest of them counts. Once where another
// context's is known: believed of longer ones, it would make each draft behind them a failure.
constexpr std::uint64_t kLeastPlain = 3;
constexpr double kFirstPlain = 0.02;  // its variance then
constexpr double kLongest_s = 1e6;

// The covariance of two rungs' ratios before anything was measured.
double spread(std::size_t a, std::size_t b) {
    if (std::min(a, b) == 0) return 0;
    const double common = kGuessSpread * std::log1p(TokenLadder::rung(std::min(a, b)));
    return a == b ? common + kOwnSpread : common;
}

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

double CostCurve::at(const std::vector<double>& values, double n_drafted) {
    if (values.empty()) return 0;
    const std::size_t below = TokenLadder::index_below(static_cast<std::int32_t>(n_drafted));
    if (below + 1 >= values.size()) return values.back();
    const std::int32_t low = TokenLadder::rung(below), high = TokenLadder::rung(below + 1);
    return values[below] + (values[below + 1] - values[below]) * (n_drafted - low) / (high - low);
}

CallCosts::CallCosts(std::int32_t n_lanes, std::int32_t n_most)
    : n_lanes_(std::max(n_lanes, 1)),
      n_most_(std::max(n_most, 0)),
      tables_(kContexts * static_cast<std::size_t>(n_lanes_)) {}

CallCosts::Table& CallCosts::table_of(std::int32_t n_lanes, std::int32_t n_longest) {
    const std::size_t context = context_octave(n_longest);
    const auto lanes = static_cast<std::size_t>(n_lanes - 1);
    Table& table = tables_[context * static_cast<std::size_t>(n_lanes_) + lanes];
    if (table.state.size() == 0) {
        table.n_lanes = n_lanes;
        guess(table);
    }
    if (table.n_calls == 0 && !table.is_inherited) inherit(table, context, lanes);
    return table;
}

void CallCosts::guess(Table& table) const {
    // One rung beyond, so that all numbers lie between two.
    const std::size_t n_rungs = TokenLadder::index_below(table.n_lanes * n_most_) + 2;
    table.state = LogFilter(n_rungs);
    for (std::size_t i = 1; i < n_rungs; ++i) {
        table.state.set_mean(i, std::log1p(kGuessedSlope * TokenLadder::rung(i)));
    }
    wear(table, 1);
}

// Another context's ratios are the best guess there is, then those of another number of lanes.
void CallCosts::inherit(Table& table, std::size_t context, std::size_t lanes) {
    const auto apart = [](std::size_t a, std::size_t b) { return a < b ? b - a : a - b; };
    Table* from = nullptr;
    std::size_t least = std::numeric_limits<std::size_t>::max();
    for (std::size_t i = 0; i < tables_.size(); ++i) {
        if (tables_[i].n_calls == 0 || !tables_[i].curve.is_known()) continue;
        const std::size_t distance = apart(context, i / static_cast<std::size_t>(n_lanes_)) +
                                     kContexts * apart(lanes, i % static_cast<std::size_t>(n_lanes_));
        if (distance >= least) continue;
        least = distance;
        from = &tables_[i];
    }
    if (from == nullptr) return;
    table.is_inherited = true;
    table.last_call = n_calls_;
    if (from->n_lanes == table.n_lanes) {
        table.knows_plain = true;
        table.state = from->state;
    } else {
        // The same number of tokens in all costs about the same; beyond what that table has, as much each as in it.
        if (from->is_stale) draw(*from);
        const std::int32_t n_widest = from->n_lanes * n_most_;
        const double widest_s = from->curve.expected_s(n_widest);
        const double each_s = n_widest > 0 ? (widest_s - from->curve.plain_s()) / n_widest : 0;
        const auto cost = [&](std::int32_t n_tokens) {
            const std::int32_t n_drafted = std::max(n_tokens - from->n_lanes, 0);
            return std::log(n_drafted <= n_widest ? from->curve.expected_s(n_drafted)
                                                  : widest_s + (n_drafted - n_widest) * each_s);
        };
        const std::size_t n_rungs = table.state.size();
        table.state = LogFilter(n_rungs);
        table.state.set_mean(0, cost(table.n_lanes));
        for (std::size_t i = 1; i < n_rungs; ++i) {
            table.state.set_mean(i, cost(table.n_lanes + TokenLadder::rung(i)) - table.state.mean(0));
        }
    }
    wear(table, kInheritedShare);
    // How dear the plain call is here is not known; what it has to do with the ratios was another table's.
    table.state.loosen(0, kMostDrift);
}

// Ratios that were known are known a little less.
void CallCosts::wear(Table& table, double share) const {
    const std::size_t n = table.state.size();
    for (std::size_t i = 1; i < n; ++i) {
        for (std::size_t j = 1; j < n; ++j) table.state.add_covariance(i, j, share * spread(i, j));
    }
}

void CallCosts::observe(std::int32_t n_lanes, std::int32_t n_drafted, std::int32_t n_longest, double seconds) {
    const bool can_be = n_lanes >= 1 && n_lanes <= n_lanes_ && n_drafted >= 0 && n_drafted <= n_lanes * n_most_ &&
                        seconds > 0 && seconds < kLongest_s;  // false for NaN
    if (!can_be) return;
    Table& table = table_of(n_lanes, n_longest);
    std::size_t index = TokenLadder::index_below(n_drafted);
    if (2 * n_drafted > TokenLadder::rung(index) + TokenLadder::rung(index + 1)) ++index;
    ++n_calls_;
    ++table.n_calls;
    if (index == 0) {
        ++table.n_plain;
        table.last_plain = table.n_calls;
    }
    if (table.n_calls % kWearInterval == 0) wear(table, kWearShare * kWearInterval);
    learn(table, index, std::log(seconds));
    table.is_stale = true;
    if (!table.curve.is_known()) draw(table);  // others may inherit it
}

void CallCosts::learn(Table& table, std::size_t rung, double log_s) {
    LogFilter& state = table.state;
    const double idle = static_cast<double>(n_calls_ - std::exchange(table.last_call, n_calls_));
    const double ratio = rung > 0 ? state.mean(rung) : 0;
    if (rung == 0 && table.n_plain <= kLeastPlain && !table.knows_plain) {
        state.set_mean(0, table.n_plain == 1 ? log_s : std::min(state.mean(0), log_s));
        state.loosen(0, kFirstPlain);
        return;
    }
    const double drift = std::min(kDrift * idle, kMostDrift - state.variance(0));
    if (drift > 0) state.add_covariance(0, 0, drift);
    const std::array<LogFilter::Term, 2> terms = {{{0, 1}, {rung, 1}}};
    state.observe(std::span(terms).first(rung > 0 ? 2 : 1), state.mean(0) + ratio, log_s, 0, 0, noise_);
}

const CostCurve& CallCosts::curve(std::int32_t n_lanes, std::int32_t n_longest) {
    Table& table = table_of(n_lanes, n_longest);
    if (table.is_stale) draw(table);
    return table.curve;
}

// The means, made so that they never fall: neighbours that do are averaged by how well they are known (the
// pool-adjacent-violators algorithm).
void CallCosts::draw(Table& table) {
    table.is_stale = false;
    CostCurve& curve = table.curve;
    curve.is_known_ = table.n_plain >= (table.knows_plain ? 1 : kLeastPlain);
    curve.n_plain_ = table.n_plain;
    curve.n_calls_since_plain_ = table.n_calls - table.last_plain;
    if (!curve.is_known_) return;
    const std::size_t n = table.state.size();
    curve.expected_.resize(n);
    curve.hopeful_.resize(n);
    curve.worst_.resize(n);
    curve.deviation_.resize(n);
    blocks_.clear();
    for (std::size_t i = 0; i < n; ++i) {
        const double variance = i == 0 ? 0 : std::max(table.state.variance(i), 0.0);
        curve.deviation_[i] = std::sqrt(variance);
        curve.expected_[i] = std::exp(table.state.mean(0) + (i > 0 ? table.state.mean(i) : 0));
        blocks_.push_back({curve.expected_[i], 1 / (variance + kLeastVariance), i});
        while (blocks_.size() > 1 && blocks_[blocks_.size() - 2].cost > blocks_.back().cost) {
            const Block block = blocks_.back();
            blocks_.pop_back();
            Block& before = blocks_.back();
            const double sum = before.weight + block.weight;
            before = {(before.cost * before.weight + block.cost * block.weight) / sum, sum, block.last};
        }
    }
    std::size_t i = 0;
    for (const Block& block : blocks_) {
        for (; i <= block.last; ++i) {
            curve.expected_[i] = block.cost;
            const double hope = kHopefulDeviations * std::max(curve.deviation_[i] - kKnownDeviation, 0.0);
            curve.hopeful_[i] = std::max(block.cost * std::exp(-hope), curve.expected_[0]);
            const double one_each =
                (1 + static_cast<double>(TokenLadder::rung(i)) / table.n_lanes) * curve.expected_[0];
            curve.worst_[i] = std::max(block.cost, std::min(block.cost * std::exp(kWorstDeviations * hope), one_each));
        }
    }
}

}  // namespace luce::speculation
