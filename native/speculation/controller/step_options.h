// StepOptions: the ways to run a step with the drafts that lie on the table, and how many right tokens each may bring.
// Arithmetic on chances; knows no time and no source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "speculation/controller/cost_model.h"

namespace luce::speculation {

struct StepOption {
    std::int32_t n_drafted = 0;  // tokens to verify in all lanes together, filling included
    std::int32_t width = 0;      // where all lanes are as wide
    double n_right = 0;          // expected
};

class StepOptions {
public:
    using Chances = std::span<const float>;  // of a lane's draft: that a token and all before it are right

    // Each lane as wide as it likes: what is likeliest of all lanes' tokens first, in numbers that are rungs.
    void lay_out(std::span<const Chances> lanes);

    // All lanes as wide, at most `n_most`; those with shorter drafts are filled up. Several lanes only by what halving
    // `n_widest` gives: each width of each set of lanes is a call of its own shape, whose graph has to be made first.
    void lay_out_equal(std::span<const Chances> lanes, std::int32_t n_most, std::int32_t n_widest);

    // The first one is the plain step.
    std::span<const StepOption> all() const { return options_; }

    // How much of each lane's draft that takes.
    void widths(const StepOption& option, std::span<std::int32_t> widths) const;

private:
    struct Token {
        float chance = 0;
        std::uint32_t lane = 0;
        std::uint32_t index = 0;
    };

    bool are_equal_ = false;
    std::vector<StepOption> options_;
    std::vector<Token> tokens_;  // likeliest first
    std::vector<std::int32_t> lengths_;
};

// The best prefix of a draft by itself, if a second is worth `rate` tokens and n_sharing lanes do the same.
struct BestPart {
    double worth = 0;  // tokens: the right ones less the cost of all; 0 where nothing is worth taking
    std::int32_t width = 0;
    double n_right = 0;  // expected
};
BestPart best_part(StepOptions::Chances chances, const CostCurve& costs, double rate, std::int32_t n_sharing);

}  // namespace luce::speculation
