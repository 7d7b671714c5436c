// DraftCosts: what asking one source costs on this machine, by how many lanes are asked together, how many tokens of
// each, and how long the longest text is: each octave of contexts costs so many times what short ones do, and of one
// that was never met no more is known than of those before it. A block draft costs the same however many of its tokens
// are wanted; a model that drafts token by token does not: which of the two it is, is measured, as the share of a full
// draft's cost that goes with its tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "speculation/log_filter.h"

namespace luce::speculation {

class DraftCosts {
public:
    // At most so many lanes, and so many tokens of each.
    DraftCosts(std::int32_t n_lanes, std::int32_t n_most);

    // A draft for so many lanes, the longest of which has n_longest tokens. Measurements that cannot be are left out.
    void observe(std::int32_t n_lanes, std::int32_t n_tokens, std::int32_t n_longest, double seconds);

    // So much time went by without a draft.
    void pass(double seconds) { idle_s_ += seconds; }

    // What is to be expected; of all three: unset if nothing was ever measured. REQUIRES: n_tokens_each >= 1.
    std::optional<double> cost_s(std::int32_t n_lanes, std::int32_t n_tokens_each, std::int32_t n_longest) const;
    // What it may well be at best by now; the same where it was measured lately. A bad moment of the machine must not
    // keep a source from being asked for good: nothing else would show that it is over.
    std::optional<double> hopeful_s(std::int32_t n_lanes, std::int32_t n_tokens_each, std::int32_t n_longest) const;
    // What it may well be at worst, where it is not known well.
    std::optional<double> worst_s(std::int32_t n_lanes, std::int32_t n_tokens_each, std::int32_t n_longest) const;

    // It is not known yet whether fewer tokens cost less: worth a try.
    bool wants_short_draft() const;
    // The same cost however many tokens, as far as is known.
    bool is_flat() const { return share() == 0; }

private:
    double share() const;
    double idle_variance() const;
    std::size_t lanes_index(std::int32_t n_lanes) const;
    // Of the growth from short contexts; unset: it is one.
    std::optional<std::size_t> growth_index(std::int32_t n_longest) const;
    double variance(std::int32_t n_lanes, std::int32_t n_longest) const;

    std::int32_t n_lanes_;
    std::int32_t n_most_;
    // At 0 the tokens' share; at n the logarithm of what a full draft for n lanes costs on short texts; behind these
    // the logarithms of how many times as much it is in each further octave.
    LogFilter state_;
    LogNoise noise_;
    std::uint64_t n_measured_ = 0;
    std::uint64_t n_full_ = 0;
    std::uint64_t n_short_ = 0;
    bool was_full_ = false;  // the last one
    double idle_s_ = 0;      // since then
};

}  // namespace luce::speculation
