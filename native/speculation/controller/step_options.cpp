#include "speculation/controller/step_options.h"

#include <algorithm>

namespace luce::speculation {
namespace {

bool is_halving(std::int32_t width, std::int32_t n_widest) {
    while (n_widest > width) n_widest /= 2;
    return n_widest == width;
}

}  // namespace

void StepOptions::lay_out(std::span<const Chances> lanes) {
    are_equal_ = false;
    options_.assign(1, {});
    tokens_.clear();
    for (std::uint32_t lane = 0; lane < lanes.size(); ++lane) {
        for (std::uint32_t i = 0; i < lanes[lane].size(); ++i) tokens_.push_back({lanes[lane][i], lane, i});
    }
    // Chances never rise along a draft, so a token never comes before one that it needs.
    std::sort(tokens_.begin(), tokens_.end(), [](const Token& a, const Token& b) {
        if (a.chance != b.chance) return a.chance > b.chance;
        return a.index != b.index ? a.index < b.index : a.lane < b.lane;
    });
    double n_right = 0;
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
        n_right += static_cast<double>(tokens_[i].chance);
        const auto n = static_cast<std::int32_t>(i + 1);
        if (TokenLadder::is_rung(n)) options_.push_back({n, 0, n_right});
    }
}

void StepOptions::lay_out_equal(std::span<const Chances> lanes, std::int32_t n_most, std::int32_t n_widest) {
    are_equal_ = true;
    options_.assign(1, {});
    lengths_.clear();
    std::int32_t longest = 0;
    for (const Chances& chances : lanes) {
        lengths_.push_back(static_cast<std::int32_t>(chances.size()));
        longest = std::max(longest, lengths_.back());
    }
    double n_right = 0;
    for (std::int32_t width = 1; width <= std::min(longest, n_most); ++width) {
        const auto last = static_cast<std::size_t>(width - 1);
        for (const Chances& chances : lanes) n_right += last < chances.size() ? static_cast<double>(chances[last]) : 0;
        if (lanes.size() > 1 && !is_halving(width, n_widest)) continue;
        options_.push_back({width * static_cast<std::int32_t>(lanes.size()), width, n_right});
    }
}

void StepOptions::widths(const StepOption& option, std::span<std::int32_t> widths) const {
    for (std::size_t lane = 0; lane < widths.size(); ++lane) {
        widths[lane] = are_equal_ ? std::min(option.width, lengths_[lane]) : 0;
    }
    if (are_equal_) return;
    for (std::size_t i = 0; i < static_cast<std::size_t>(option.n_drafted); ++i) ++widths[tokens_[i].lane];
}

BestPart best_part(StepOptions::Chances chances, const CostCurve& costs, double rate, std::int32_t n_sharing) {
    BestPart best;
    double n_right = 0;
    for (std::int32_t width = 1; width <= static_cast<std::int32_t>(chances.size()); ++width) {
        n_right += static_cast<double>(chances[static_cast<std::size_t>(width - 1)]);
        const double extra_s = costs.expected_s(n_sharing * width) - costs.plain_s();
        const double worth = n_right - rate * extra_s / n_sharing;
        if (worth > best.worth) best = {worth, width, n_right};
    }
    return best;
}

}  // namespace luce::speculation
