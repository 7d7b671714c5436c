// SpeedUp: how many times as fast as plain decoding the last steps were, drafts included: what a second is worth. A
// step that takes t seconds must bring more than t times the tokens a second that are to be had otherwise: then the
// tokens of all steps together over their time are the most they can be (Dinkelbach, 1967), which comparing each step's
// own ratio does not give where good and bad drafts take turns. One for each number of lanes: few gain more than many.
#pragma once

#include <algorithm>

namespace luce::speculation {

class SpeedUp {
public:
    // A step's tokens and time in those of a plain step.
    void observe(double tokens, double time) {
        of_late_.blend({tokens, time}, kLateShare);
        n_seen_ = std::min(n_seen_ + 1, 1 / kLongShare);
        for_long_.blend({tokens, time}, 1 / (n_seen_ + 1));
    }

    // A share of the lanes serves other texts now, of which the average one is expected.
    void forget(double share) { of_late_.blend(for_long_, share); }

    double value() const { return std::max(1.0, of_late_.tokens / of_late_.time); }

private:
    static constexpr double kLateShare = 1.0 / 32;
    static constexpr double kLongShare = 1.0 / 512;

    struct Mean {
        double tokens = 1;
        double time = 1;
        void blend(Mean newest, double share) {
            tokens += share * (newest.tokens - tokens);
            time += share * (newest.time - time);
        }
    };
    Mean of_late_;
    Mean for_long_;
    double n_seen_ = 0;
};

}  // namespace luce::speculation
