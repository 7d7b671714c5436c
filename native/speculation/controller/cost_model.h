// CostModel: what calls of the target and drafts cost on this machine, by how many lanes they serve, how many drafted
// tokens they verify and how long the longest text is; learnt from measurements as they happen. It must not know lanes,
// drafts or what anything is worth.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace luce::speculation {

inline constexpr double kLongest_s = 1e6;  // that a measurement is believed

// Contexts that are told apart: up to a thousand tokens, and each doubling of that; the last one is open.
inline constexpr std::size_t kContexts = 8;
inline std::size_t context_octave(std::int32_t n_tokens) {
    const auto octaves = static_cast<std::uint32_t>(std::max(n_tokens, 0) / 1024);
    return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(octaves)), kContexts - 1);
}

// Numbers of drafted tokens that are told apart: all up to 16, then eight an octave.
class TokenLadder {
public:
    static std::int32_t rung(std::size_t index);
    static std::size_t index_below(std::int32_t n);  // the highest rung <= n
    static bool is_rung(std::int32_t n) { return rung(index_below(n)) == n; }
};

// A logarithm of seconds that is measured again and again. Durations are sometimes ten times too long and never too
// short, so a large surprise upwards counts for little unless it comes three times in a row.
struct LogEstimate {
    double mean = 0;
    double variance = std::numeric_limits<double>::infinity();  // infinity: never measured
    int n_large = 0;                                            // large surprises in a row; below 0: downwards

    bool is_measured() const { return variance < std::numeric_limits<double>::infinity(); }
    void observe(double measured, double noise);
};

// What calls for so many lanes and texts of such a length cost, by the tokens that they verify: the plain call's
// seconds, and for each number of drafted tokens the ratio to it, which hardly moves. Ratios between measured ones are
// interpolated; how far they may be off grows with the distance.
class CostCurve {
public:
    // Never falls as tokens are added. Numbers of tokens may be means.
    double expected_s(double n_drafted) const { return at(expected_, n_drafted); }
    // What it may well be at best, where it is not known well; elsewhere what is expected.
    double hopeful_s(double n_drafted) const { return at(hopeful_, n_drafted); }
    // What it may well be at worst: where it is not known well no more than one plain call a token.
    double worst_s(double n_drafted) const { return at(worst_, n_drafted); }
    double plain_s() const { return expected_.empty() ? 0 : expected_.front(); }

    bool is_known() const { return !expected_.empty(); }  // plain calls were measured
    // How far the logarithm of the ratio to a plain call may be off.
    double deviation(double n_drafted) const { return at(deviation_, n_drafted); }
    std::uint64_t n_calls_since_plain() const { return n_calls_ - last_plain_; }
    std::uint64_t n_plain() const { return n_plain_; }

private:
    friend class CostModel;
    static double at(const std::vector<double>& values, double n_drafted);
    void guess(std::int32_t n_lanes, std::int32_t n_most);
    void inherit(const CostCurve& other, bool has_own_plain);
    double guessed_or_measured(std::size_t rung, double& variance) const;
    void observe(std::int32_t n_drafted, double seconds, double noise, double idle);
    void draw();

    std::int32_t n_lanes_ = 0;         // 0: never used
    std::vector<double> guess_;        // by rung: the logarithm of its ratio to the plain call
    double spread_ = 0;                // of the guess: its variance, times ln(1 + tokens)
    std::vector<LogEstimate> ratios_;  // by rung
    LogEstimate plain_;
    std::uint64_t least_plain_ = 0;
    std::uint64_t n_plain_ = 0;
    std::uint64_t n_calls_ = 0;
    std::uint64_t last_plain_ = 0;
    std::uint64_t last_call_ = 0;                                 // of all curves'
    std::vector<double> expected_, hopeful_, worst_, deviation_;  // by rung
};

// Costs of calls. REQUIRES: 1 <= n_lanes <= the most.
class CostModel {
public:
    // At most so many lanes, and so many drafted tokens in each.
    CostModel(std::int32_t n_lanes, std::int32_t n_most);

    // Measurements that cannot be are left out.
    void observe(std::int32_t n_lanes, std::int32_t n_drafted, std::int32_t n_longest, double seconds);
    const CostCurve& curve(std::int32_t n_lanes, std::int32_t n_longest);

private:
    std::int32_t n_lanes_;
    std::int32_t n_most_;
    std::vector<CostCurve> curves_;  // by octave of context, then by lanes
    std::uint64_t n_calls_ = 0;
    double noise_ = 0.01;  // a measurement's variance
};

// Costs of one source's drafts, by lanes that are drafted together, tokens of each, and context. A block draft costs
// the same however many of its tokens are wanted, one token by token does not: which of the two it is, is measured.
class DraftCosts {
public:
    DraftCosts(std::int32_t n_lanes, std::int32_t n_most);

    void observe(std::int32_t n_lanes, std::int32_t n_tokens, std::int32_t n_longest, double seconds);
    void pass(double seconds) { idle_s_ += seconds; }  // time without a draft

    // Of all three: unset if nothing was ever measured. hopeful_s falls the longer nobody asked: a bad moment must not
    // keep a source from being asked for good. worst_s is more where little is known.
    std::optional<double> cost_s(std::int32_t n_lanes, std::int32_t n_tokens_each, std::int32_t n_longest) const;
    std::optional<double> hopeful_s(std::int32_t n_lanes, std::int32_t n_tokens_each, std::int32_t n_longest) const;
    std::optional<double> worst_s(std::int32_t n_lanes, std::int32_t n_tokens_each, std::int32_t n_longest) const;

    // It is not known yet whether fewer tokens cost less: worth a try, behind a full draft of such a context.
    bool wants_short_draft(std::int32_t n_longest) const;
    bool is_flat() const;  // the same cost however many tokens, as far as is known

private:
    LogEstimate of_lanes(std::int32_t n_lanes) const;
    LogEstimate growth(std::int32_t n_longest) const;
    double idle_variance() const;

    std::int32_t n_most_;
    std::vector<LogEstimate> lanes_;   // by lanes - 1: of full drafts of short texts
    std::vector<LogEstimate> growth_;  // by octave: how many times as much
    std::vector<bool> was_measured_;   // by octave, then by lanes
    double token_share_ = 0;           // of a full draft's cost: what goes with its tokens
    std::uint64_t n_full_ = 0;
    std::uint64_t n_short_ = 0;
    std::optional<std::size_t> last_full_;  // octave of the last draft, if it was full
    double idle_s_ = 0;
};

}  // namespace luce::speculation
